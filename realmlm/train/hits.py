"""Passages found for questions before training begins; kept beside the corpus for the next run.

Q questions, C passages each, G paragraphs that questions came with, R of them as rivals, D vector size.
"""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.store import Corpus
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import Index
from realmlm.index.hybrid import Hybrid
from realmlm.log import progress
from realmlm.model.fingerprint import fingerprint_of, tower_fingerprint
from realmlm.model.marginal import inner_products
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.retrieve import LearnedRetriever, Query, embed_queries, index_of, retrieve
from realmlm.train.gold import Gold

_AT_ONCE = 256  # questions
_EMBEDDED = 512  # paragraphs
_LOOKED_AT = 4  # paragraphs for each rival: some hold the answer
MOST_KEPT = 2**28  # candidates of all questions: ids and scores take 2 GiB


@dataclass(frozen=True)
class Candidates:
    """Candidates of a retriever that does not learn, best first, and their scores [rows, C]."""

    ids: np.ndarray
    scores: np.ndarray
    given: np.ndarray | None = None
    """Scores of the paragraphs that questions came with [rows]; None: no one has scored them."""
    scale_learns: bool = False
    """The scores are f(x,z) without its learned scale: they are multiplied by it as it is at each step."""
    rows: np.ndarray | None = None
    """The row of each question, where questions share rows; None: each has its own."""

    def of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Candidates and scores of some questions, and the scores of the paragraphs they came with."""
        rows = numbers if self.rows is None else self.rows[numbers]
        given = None if self.given is None else self.given[rows]
        return self.ids[rows].astype(np.int64), self.scores[rows], given


def found_for(retriever: str, model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> np.ndarray:
    """Passages found for each question, best first [Q, C], by the model (`learned`), `bm25`, or by `both` in
    turn."""
    names = ("bm25", "learned") if retriever == "both" else (retriever,)
    count = min(candidates, len(corpus))
    ranked = [_kept(name, model, corpus, gold, candidates=count) for name in names]
    return np.stack(ranked, axis=2).reshape(len(gold), -1).astype(np.int64)


def _kept(name: str, model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> np.ndarray:
    made_by = name if name == "bm25" else fingerprint_of(model, asdict(model.config))
    sought = repr((made_by, candidates, gold.texts)).encode()

    def find() -> dict[str, np.ndarray]:
        if name == "bm25":
            found = word_matches(corpus, gold, candidates=candidates, device=model.device)
        else:
            found = own_matches(model, corpus, gold, candidates=candidates)
        return {"ids": found.ids.astype(np.int32)}

    fingerprint = hashlib.sha256(sought).hexdigest()
    return kept_beside(corpus, "hits", sought="questions", fingerprint=fingerprint, find=find)["ids"]


def word_matches(corpus: Corpus, gold: Gold, *, candidates: int, device: torch.device) -> Candidates:
    """BM25's candidates for every question."""
    index = BM25Index(corpus, device=device)
    parts = []
    with progress("matching words", len(gold), unit="questions") as bar:
        for first in range(0, len(gold), _AT_ONCE):
            some = gold.questions[first : first + _AT_ONCE]
            parts.append(index.search(some, candidates).hits)
            bar.advance(len(some))
    ids = torch.cat([hits.ids_QK.cpu() for hits in parts])
    return Candidates(ids.numpy(), torch.cat([hits.scores_QK.cpu() for hits in parts]).numpy())


def own_matches(model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> Candidates:
    """The model's own candidates for every question."""
    own = LearnedRetriever.settled(model, index_of(model, corpus).index)
    queries = [Query(text, tokens) for text, tokens in zip(gold.texts, gold.questions, strict=True)]
    parts = []
    with progress("searching", len(queries), unit="questions") as bar:
        for first in range(0, len(queries), _AT_ONCE):
            parts.append(retrieve(own, queries[first : first + _AT_ONCE], candidates))
            bar.advance(len(parts[-1].ids_BK))
    ids = np.concatenate([found.ids_BK.numpy() for found in parts])
    return Candidates(ids, np.concatenate([found.scores_BK.numpy() for found in parts]))


def matches_of_fixed_towers(
    model: Realm,
    index: Index,
    corpus: Corpus,
    gold: Gold,
    numbers: np.ndarray,
    *,
    candidates: int,
    scale_learns: bool,
) -> Candidates:
    """The candidates of a model whose towers learn no more, with their f(x,z) or, where the search is hybrid,
    f + λ · BM25; kept for the next run. Questions other than these `numbers` will not be asked. Where the
    scale of f(x,z) still learns, the scores are without it."""
    once = _Once.of(gold, numbers)
    how = (str(index.dtype), candidates, scale_learns)
    told = [_told(gold, int(given)) for given in gold.given_Q[once.numbers]]

    def find() -> dict[str, np.ndarray]:
        found = _search(model, index, corpus, gold, once.numbers, candidates=candidates)
        factor = _factor(model, scale_learns=scale_learns)
        return found | {name: found[name] / factor for name in ("scores", "given")}

    sought = _fingerprint(model, how, [gold.texts[number] for number in once.numbers], told)
    arrays = kept_beside(corpus, "hits", sought="questions", fingerprint=sought, find=find)
    rows_Q = np.zeros(len(gold), dtype=np.int64)
    rows_Q[numbers] = once.rows
    return Candidates(**arrays, scale_learns=scale_learns, rows=rows_Q)


@dataclass(frozen=True)
class _Once:
    """The different ones of some questions: sets may have a question several times."""

    numbers: np.ndarray
    rows: np.ndarray
    """Which of `numbers` stands for each of the questions."""

    @classmethod
    def of(cls, gold: Gold, numbers: np.ndarray) -> "_Once":
        asked = [_asked(gold, number) for number in numbers]
        number_of = dict(zip(asked, numbers.tolist(), strict=True))
        row_of = {question: row for row, question in enumerate(number_of)}
        return cls(np.array(list(number_of.values()), dtype=np.int64), np.array([row_of[q] for q in asked]))


def _asked(gold: Gold, number: int) -> tuple[str, tuple[str, ...], bool, int]:
    """What tells a question from others: its words, its answers and whether they are patterns, its
    paragraph."""
    asked = gold.asked[number]
    return gold.texts[number], asked.answers, asked.is_regex, int(gold.given_Q[number])


def _told(gold: Gold, paragraph: int) -> tuple[str, str] | None:
    """The title and the text of a paragraph that a question came with; None: it came alone."""
    return (gold.corpus[paragraph].title, gold.corpus[paragraph].text) if paragraph >= 0 else None


def _fingerprint(model: Realm, *sought: Any) -> str:
    """Of what a model whose towers learn no more is to find."""
    config = model.config
    towers = [tower_fingerprint(config, tower) for tower in (model.document, model.query)]
    return hashlib.sha256(repr((towers, config.max_query, config.hybrid, sought)).encode()).hexdigest()


def _factor(model: Realm, *, scale_learns: bool) -> np.float32:
    """The scale of f(x,z), where scores are kept without it."""
    scale = model.query.log_scale
    return np.float32(scale.exp().item() if scale_learns and scale is not None else 1.0)


@torch.inference_mode()
def _search(
    model: Realm, index: Index, corpus: Corpus, gold: Gold, numbers: np.ndarray, *, candidates: int
) -> dict[str, np.ndarray]:
    """Candidates of these questions, their scores, and those of the paragraphs that they came with."""
    hybrid = hybrid_over(model, corpus, gold)
    vectors_GD = given_vectors(model, gold)
    parts = []
    with progress("searching", len(numbers), unit="questions") as bar:
        for some in np.array_split(numbers, -(-len(numbers) // _AT_ONCE)):
            questions = [gold.questions[number] for number in some]
            query_QD = embed_queries(model, questions).float()
            told_Q = torch.from_numpy(gold.given_Q[some])
            given_Q = torch.zeros(len(some))
            if vectors_GD is not None:
                places_Q = (told_Q - gold.first_given).clamp(min=0).to(vectors_GD.device)
                given_Q = inner_products(query_QD, vectors_GD[places_Q][:, None])[:, 0].cpu()
            if hybrid is None:
                hits = index.search(query_QD, candidates)
                parts.append((hits.ids_QK.cpu(), hits.scores_QK.cpu(), given_Q))
            else:
                found = hybrid.search(index, query_QD, questions, candidates)
                scores_QC = found.near_QC + hybrid.weight * found.words_QC.to(found.near_QC.device)
                asked_Q1 = told_Q.where(told_Q >= 0, found.ids_QC[:, 0].cpu())[:, None]
                words_Q = hybrid.words.scores(questions, asked_Q1)[:, 0].cpu()
                parts.append((found.ids_QC.cpu(), scores_QC.cpu(), given_Q + hybrid.weight * words_Q))
            bar.advance(len(some))
    ids, scores, given = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return {"ids": ids.astype(np.int32), "scores": scores, "given": given}


@dataclass(frozen=True)
class Rivals:
    """For each question that came with a paragraph, paragraphs of others that do not hold its answer."""

    ids: np.ndarray
    """Nearest first [Q, R]; −1 where there is none."""
    scores: np.ndarray
    """Of them, as those of candidates found before [Q, R]."""

    def of(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of a question, and their scores."""
        there = self.ids[number] >= 0
        return self.ids[number][there], self.scores[number][there]


def find_rivals(
    model: Realm, corpus: Corpus, gold: Gold, numbers: np.ndarray, *, count: int, scale_learns: bool
) -> Rivals:
    """Rivals of these questions, by the towers as they are; kept for the next run. Without them, every
    paragraph that a reader is given in training holds the answer: it learns to trust whatever looks like
    one."""
    rivals = Rivals(np.full((len(gold), count), -1), np.zeros((len(gold), count), dtype=np.float32))
    told = numbers[gold.given_Q[numbers] >= 0]
    if not len(told):
        return rivals
    once = _Once.of(gold, told)

    def find() -> dict[str, np.ndarray]:
        ids, scores = _rivals(model, corpus, gold, once.numbers, count=count)
        return {"ids": ids.astype(np.int32), "scores": scores / _factor(model, scale_learns=scale_learns)}

    asked = [_asked(gold, number) for number in once.numbers]
    paragraphs = [_told(gold, paragraph) for paragraph in _given(gold).tolist()]
    sought = _fingerprint(model, (count, scale_learns), asked, paragraphs)
    arrays = kept_beside(corpus, "rivals", sought="questions", fingerprint=sought, find=find)
    rivals.ids[told] = arrays["ids"][once.rows]
    rivals.scores[told] = arrays["scores"][once.rows]
    return rivals


@torch.inference_mode()
def _rivals(
    model: Realm, corpus: Corpus, gold: Gold, numbers: np.ndarray, *, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores of the rivals of questions that came with a paragraph, in their order [rows, count]."""
    rivals = Rivals(np.full((len(numbers), count), -1), np.zeros((len(numbers), count), dtype=np.float32))
    vectors_GD = given_vectors(model, gold)
    assert vectors_GD is not None
    hybrid = hybrid_over(model, corpus, gold)
    near = min(_LOOKED_AT * count, len(vectors_GD))
    with progress("looking for rivals", len(numbers), unit="questions") as bar:
        for first in range(0, len(numbers), _AT_ONCE):
            some = numbers[first : first + _AT_ONCE]
            questions = [gold.questions[number] for number in some]
            query_QD = embed_queries(model, questions).float()
            scores_QN, places_QN = (query_QD @ vectors_GD.float().T).topk(near)
            ids_QN = places_QN.cpu() + gold.first_given
            if hybrid is not None:
                words_QN = hybrid.words.scores(questions, ids_QN)
                scores_QN = scores_QN + hybrid.weight * words_QN.to(scores_QN.device)
            rows = zip(some.tolist(), ids_QN.numpy(), scores_QN.cpu().numpy(), strict=True)
            for row, (number, ids_N, scores_N) in enumerate(rows, start=first):
                lacking = gold.lacking(number, ids_N, count)
                rivals.ids[row, : len(lacking)] = ids_N[lacking]
                rivals.scores[row, : len(lacking)] = scores_N[lacking]
            bar.advance(len(some))
    return rivals.ids, rivals.scores


def hybrid_over(model: Realm, corpus: Corpus, gold: Gold) -> Hybrid | None:
    """Word matching beside the model's own search, if the model has a weight for it. The paragraphs that
    questions came with are scored, never found."""
    if not model.config.hybrid:
        return None
    words = BM25Index(gold.corpus, device=model.device, only=corpus.ids)
    return Hybrid(words, model.config.hybrid)


def given_vectors(model: Realm, gold: Gold) -> Tensor | None:
    """Embed_doc of the paragraphs that questions came with, from the one with the smallest id on [G, D]: no
    index has them. None: there are none."""
    if gold.given_Q.max(initial=-1) < 0:
        return None
    encode = DocumentEncoder.of(model)
    ids_G = _given(gold)
    parts = np.array_split(ids_G, -(-len(ids_G) // _EMBEDDED))
    return torch.cat([encode(gold.corpus, some) for some in parts])


def _given(gold: Gold) -> np.ndarray:
    """The paragraphs that questions came with, and those between them."""
    return np.arange(gold.first_given, gold.given_Q.max() + 1)
