"""Answering: retrieve, read, and sum over passages, p(y|x) = Σ_z p(z|x) p(y|z,x), with the evidence for it.

B queries, K passages each (with the null document in column 0 where it is weighed), M masks, L wordpieces, W
span widths, V vocabulary.
"""

import re
import string
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus, Passage
from realmlm.defaults import READ
from realmlm.errors import BadInput
from realmlm.model.marginal import hidden_log_p, joint_reading
from realmlm.model.realm import Realm
from realmlm.reading.confidence import UNSURE, Calibration
from realmlm.reading.read import join, read_masks, read_spans
from realmlm.reading.records import CONTROL, Answer, Evidence, MaskWords, Words
from realmlm.reading.retrieve import (
    LearnedRetriever,
    NoRetriever,
    Offered,
    Query,
    Retrieved,
    Retriever,
    retrieve,
)
from realmlm.reading.units import units, widened

SPANS_KEPT = 20  # of each passage: what lies below adds nothing one could see
OTHERS = 5  # answers named beside the best
_AROUND = string.punctuation + string.whitespace + "«»“”„‘’–—…"
_YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|had)\s", re.IGNORECASE
)
MOST_MASKS = 20  # of a sentence that is filled in
CLOSED_BOOK_MASKS = 6  # longest answer tried without a passage, in wordpieces
_Place = tuple[int, int] | tuple[None, None]  # the first character and the one past the last
_NOWHERE = (None, None)
# questions
AT_ONCE = 16
AT_ONCE_GPU = 96


@dataclass(frozen=True)
class ReadSentences:
    """Masked sentences that were read with what was retrieved for them."""

    masks: list[int]
    """How many each sentence has."""
    scores_BK: Tensor
    """f(x,z) of what was read."""
    log_BKMV: Tensor
    """log p over the vocabulary at every mask."""
    null: bool
    """Is the null document in column 0?"""

    @property
    def log_p_BK(self) -> Tensor:
        """log p(z|x)."""
        return self.scores_BK.log_softmax(-1)

    @property
    def mixed_BMV(self) -> Tensor:
        """log p over the vocabulary at every mask, under the mixture over passages."""
        return (self.log_BKMV + self.log_p_BK[:, :, None, None]).logsumexp(1)

    def log_likelihood(self, targets: list[np.ndarray]) -> Tensor:
        """log p(y|z,x) [B, K] of the wordpieces that the masks hide."""
        targets_BM = np.zeros((len(self.masks), self.log_BKMV.shape[2]), dtype=np.int64)
        for row, (target, masks) in enumerate(zip(targets, self.masks, strict=True)):
            targets_BM[row, : len(target[:masks])] = target[:masks]
        device = self.log_BKMV.device
        masks_B1 = torch.tensor(self.masks, device=device)[:, None]
        valid_BM = torch.arange(targets_BM.shape[1], device=device) < masks_B1
        token_BKM = hidden_log_p(self.log_BKMV, torch.from_numpy(targets_BM).to(device))
        return joint_reading(token_BKM, valid_BM)


class Answerer:
    """Model, corpus and a way to retrieve, ready for questions and for sentences with [MASK]."""

    def __init__(self, model: Realm, corpus: Corpus, retriever: Retriever) -> None:
        self.model = model
        self.corpus = corpus
        self.retriever = retriever

    @property
    def at_once(self) -> int:
        """Questions to read for together."""
        return AT_ONCE_GPU if self.model.device.type == "cuda" else AT_ONCE

    def query(self, text: str) -> Query:
        """A question, or a sentence with [MASK], in wordpieces; an empty one is refused."""
        tokens = self.model.wordpieces.encode_query(text)
        if not len(tokens):
            raise BadInput("the question is empty; ask with words: Who …?")
        return Query(text, tokens)

    def sentence(self, text: str) -> Query:
        """A sentence that someone wants filled in."""
        query = self.query(text)
        if (masks := len(self._masks(query))) > MOST_MASKS:
            raise BadInput(f"{masks} [MASK]s are too many to fill in at once; {MOST_MASKS} at most")
        return query

    def _masks(self, query: Query) -> np.ndarray:
        """Where its masks stand; there must be one."""
        places = np.flatnonzero(query.tokens[: self.model.config.max_query] == self.model.wordpieces.mask)
        if not len(places):
            raise BadInput(
                f'nothing to fill in: "{query.text}" has no [MASK] among its first '
                f"{self.model.config.max_query} wordpieces; write one"
            )
        return places

    # --- questions ------------------------------------------------------------------------------------------

    def ask(self, questions: list[str], *, read: int = READ) -> list[Answer]:
        """An answer to each question."""
        return self._in_batches([self.query(question) for question in questions], read, self.read_spans)

    def _in_batches(
        self, queries: list[Query], read: int, way: Callable[[list[Query], Retrieved], list[Answer]]
    ) -> list[Answer]:
        batches = [queries[first : first + self.at_once] for first in range(0, len(queries), self.at_once)]
        return [answer for batch in batches for answer in way(batch, retrieve(self.retriever, batch, read))]

    @torch.inference_mode()
    def read_spans(self, queries: list[Query], retrieved: Retrieved) -> list[Answer]:
        """Answers from what was retrieved; without any passage, from the reader's own memory."""
        if retrieved.ids_BK.shape[1] == 0:
            return self._closed_book(queries)
        k = retrieved.ids_BK.shape[1]
        ids_N = retrieved.ids_BK.flatten().tolist()
        weight_N = retrieved.scores_BK.flatten().clone()
        spans: dict[int, list[tuple[int, int, float]]] = {}
        offered = Offered(self.corpus, retrieved.ids_BK.numpy(), null=False)
        inputs = join(self.model, [query.tokens for query in queries], offered).to(self.model.device)
        for pairs in inputs.alike():
            alike = inputs.rows(pairs)
            reading = read_spans(self.model, alike, weight_N[pairs].to(self.model.device))
            weight_N[pairs] = reading.weight_N.cpu()
            passages = [ids_N[pair] for pair in pairs]
            best = self._best_spans(reading.log_NLW.cpu(), passages, alike.second_N.cpu())
            spans.update(zip(pairs.tolist(), best, strict=True))
        p_BK = weight_N.unflatten(0, (-1, k)).softmax(-1).tolist()
        best_B = retrieved.scores_BK.amax(1).tolist()
        answers = []
        for row, (query, ids) in enumerate(zip(queries, retrieved.ids_BK.tolist(), strict=True)):
            answer = self._combine(ids, p_BK[row], [spans[row * k + column] for column in range(k)])
            answers.append(self._judged(query, answer, best_B[row]))
        return answers

    def _judged(self, query: Query, answer: Answer, relevance: float) -> Answer:
        """The answer with a caution and, if calibrated for the retriever used, its confidence."""
        fitted = self.model.config.calibration if isinstance(self.retriever, LearnedRetriever) else None
        confidence = Calibration(**fitted).confidence(answer.probability, relevance) if fitted else None
        longest = self.model.config.max_query
        cautions = []
        if len(query.tokens) > longest:
            cautions.append(f"only the first {longest} wordpieces of the question were read")
        if _YES_OR_NO.match(query.text):
            cautions.append("yes or no is for you to say: answers are words of a passage")
        if confidence is not None and confidence < UNSURE:
            cautions.append("unsure: the documents may not say this")
        return replace(answer, relevance=relevance, confidence=confidence, caution="; ".join(cautions))

    def _best_spans(
        self, log_NLW: Tensor, passages: list[int], second_N: Tensor
    ) -> list[list[tuple[int, int, float]]]:
        """Of each passage the character spans with their probability p(s|z,x), best first."""
        widths = log_NLW.shape[2]
        top = log_NLW.flatten(1).topk(min(SPANS_KEPT, log_NLW[0].numel()))
        first_NS = top.indices // widths - second_N[:, None]
        last_NS = first_NS + top.indices % widths
        best = zip(first_NS.numpy(), last_NS.numpy(), top.values.exp().numpy(), strict=True)
        found = []
        for number, (first_S, last_S, p_S) in zip(passages, best, strict=True):
            chars = self.corpus.token_chars(number)
            likely = p_S > 0
            starts = chars[first_S[likely], 0].tolist()
            ends = chars[last_S[likely], 1].tolist()
            found.append(list(zip(starts, ends, p_S[likely].tolist(), strict=True)))
        return found

    def _combine(self, ids: list[int], p_K: list[float], spans: list[list[tuple[int, int, float]]]) -> Answer:
        """p(y|x), summed over passages and places with the same words; `released` takes the best place."""
        passages = [self.corpus[number] for number in ids]
        released = self.model.config.reading == "released"
        total: defaultdict[str, float] = defaultdict(float)
        likeliest: defaultdict[str, float] = defaultdict(float)
        reading: defaultdict[tuple[str, int], float] = defaultdict(float)
        place: dict[tuple[str, int], tuple[int, int]] = {}
        surface: dict[str, str] = {}
        for number, (passage, found) in enumerate(zip(passages, spans, strict=True)):
            whole = [] if released else units(passage.text)
            for start, end, probability in found:
                start, end = widened(start, end, whole)
                span = passage.text[start:end]
                words = _same_words(span)
                if not words and not released:  # punctuation alone answers nothing
                    continue
                weighed = p_K[number] * probability
                total[words] += weighed
                likeliest[words] = max(likeliest[words], weighed)
                reading[words, number] += probability
                place.setdefault((words, number), (start, end))
                surface.setdefault(words, " ".join(CONTROL.sub(" ", span).split()))
        if not total:
            return Answer("", 0.0, ())
        chosen_by = likeliest if released else total
        best = max(chosen_by, key=lambda words: chosen_by[words])
        evidence = [
            _evidence(passage, place.get((best, number), _NOWHERE), p_K[number], reading[best, number])
            for number, passage in enumerate(passages)
        ]
        rest = sorted((words for words in total if words != best), key=lambda words: -total[words])[:OTHERS]
        others = tuple(Words(surface[words], total[words]) for words in rest)
        return Answer(surface[best], total[best], _by_share(evidence), others)

    def _closed_book(self, queries: list[Query]) -> list[Answer]:
        """Each question followed by masks, as many as serve it best."""
        found = []
        nothing = NoRetriever()(queries, 0)
        for masks in range(1, CLOSED_BOOK_MASKS + 1):
            room = self.model.config.max_query - masks
            end = np.full(masks, self.model.wordpieces.mask)
            asked = [Query(query.text, np.concatenate([query.tokens[:room], end])) for query in queries]
            answers = self.fill_masks(asked, nothing)
            found.append([(np.log(max(answer.probability, 1e-30)) / masks, answer) for answer in answers])
        return [max(tries, key=lambda tried: tried[0])[1] for tries in zip(*found, strict=True)]

    # --- masked sentences -----------------------------------------------------------------------------------

    def fill(self, sentences: list[str], *, read: int = READ) -> list[Answer]:
        """What stands at the [MASK]s of each sentence; each [MASK] is one wordpiece."""
        return self._in_batches([self.sentence(sentence) for sentence in sentences], read, self.fill_masks)

    def fill_masks(self, queries: list[Query], retrieved: Retrieved) -> list[Answer]:
        """The likeliest wordpiece of each mask under the mixture over passages, from what was retrieved."""
        return self.fill_from(self.read_masks(queries, retrieved), retrieved)

    def fill_from(self, read: ReadSentences, retrieved: Retrieved) -> list[Answer]:
        """The same from what was read already."""
        chosen_BM = read.mixed_BMV.argmax(-1)
        token_BKM = hidden_log_p(read.log_BKMV, chosen_BM).cpu()
        p_BK = read.log_p_BK.exp().tolist()
        answers = []
        for row, masks in enumerate(read.masks):
            words = self.model.wordpieces.decode(chosen_BM[row, :masks].tolist())
            reading_K = token_BKM[row, :, :masks].sum(-1).exp().tolist()
            ids = [None] * read.null + retrieved.ids_BK[row].tolist()
            answers.append(self._filled(words, ids, p_BK[row], reading_K))
        return answers

    @torch.inference_mode()
    def read_masks(self, queries: list[Query], retrieved: Retrieved) -> ReadSentences:
        """What the reader expects at the masks, in each passage and in the null document if it is weighed."""
        places = [self._masks(query) for query in queries]
        positions_BM = np.zeros((len(places), max(map(len, places))), dtype=np.int64)
        for row, masks in enumerate(places):
            positions_BM[row, : len(masks)] = masks
        null = retrieved.null_B is not None
        offered = Offered(self.corpus, retrieved.ids_BK.numpy(), null=null)
        device = self.model.device
        inputs = join(self.model, [query.tokens for query in queries], offered).to(device)
        reading = read_masks(self.model, inputs, torch.from_numpy(positions_BM).to(device))
        scores_BK = retrieved.with_null_BK.to(device)
        return ReadSentences([len(masks) for masks in places], scores_BK, reading.log_BKMV, null)

    def mask_words(self, read: ReadSentences, *, most: int = 5) -> list[list[MaskWords]]:
        """The likeliest wordpieces of each mask, by all that was read and by the null document alone."""
        mixed_BMV = read.mixed_BMV

        def likeliest(log_V: Tensor) -> tuple[Words, ...]:
            top = log_V.topk(most)
            pairs = zip(top.indices.tolist(), top.values.exp().tolist(), strict=True)
            return tuple(Words(self.model.wordpieces.decode([number]), p) for number, p in pairs)

        def of_mask(row: int, mask: int) -> MaskWords:
            unread = likeliest(read.log_BKMV[row, 0, mask]) if read.null else ()
            return MaskWords(likeliest(mixed_BMV[row, mask]), unread)

        return [[of_mask(row, mask) for mask in range(masks)] for row, masks in enumerate(read.masks)]

    def _filled(self, words: str, ids: list[int | None], p_K: list[float], reading_K: list[float]) -> Answer:
        evidence = []
        for number, p, reading in zip(ids, p_K, reading_K, strict=True):
            if number is None:
                evidence.append(Evidence(None, "", "", None, None, p, reading))
                continue
            passage = self.corpus[number]
            evidence.append(_evidence(passage, _place(words, passage.text), p, reading))
        ordered = _by_share(evidence)
        whole = _longer(words, ordered)
        part = f"perhaps a part of “{whole}”: each [MASK] is one piece of a word" if whole else ""
        return Answer(words, float(np.dot(p_K, reading_K)), ordered, caution=part)


def _evidence(passage: Passage, place: _Place, p: float, reading: float) -> Evidence:
    """A passage that was read, where the answer stands in it, p(z|x) and p(y|z,x)."""
    start, end = place
    return Evidence(passage.id, passage.title, passage.text, start, end, p, reading, passage.file)


def _by_share(evidence: list[Evidence]) -> tuple[Evidence, ...]:
    """First what the answer comes from most, p(z|x) p(y|z,x)."""

    def rank(item: Evidence) -> tuple[float, float]:
        p = item.retrieval_probability
        return -p * item.reading_probability, -p

    return tuple(sorted(evidence, key=rank))


def _place(words: str, text: str) -> _Place:
    """Where words stand in a text, or a longer word or number that begins with them."""
    ahead = rf"(?<!\w){re.escape(words)}"
    whole = re.search(rf"{ahead}(?!\w)", text, re.IGNORECASE)
    match = whole or re.search(rf"{ahead}\w*", text, re.IGNORECASE)
    return widened(*match.span(), units(text)) if match else _NOWHERE


def _longer(words: str, evidence: tuple[Evidence, ...]) -> str:
    """The word or number that these words are a part of, in the passage that says so most; else nothing."""
    first = evidence[0] if evidence else None
    span = first.passage[first.start : first.end] if first and first.start is not None else words
    return span if _same_words(span) != _same_words(words) else ""


def _same_words(text: str) -> str:
    """Answers are the same if this is: letter case, spaces and punctuation around the words do not count."""
    return " ".join(text.casefold().strip(_AROUND).split())
