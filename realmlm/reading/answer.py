"""Answering: retrieve, read, and sum over passages: p(y|x) = Σ_z p(z|x) p(y|z,x), with the evidence kept.

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

from realmlm.corpus.store import Corpus
from realmlm.defaults import READ
from realmlm.errors import BadInput
from realmlm.model.marginal import hidden_log_p, joint_reading
from realmlm.model.realm import Realm
from realmlm.reading.confidence import UNSURE, Calibration
from realmlm.reading.read import join, read_masks, read_spans
from realmlm.reading.records import CONTROL, Answer, Evidence, MaskWords, Words
from realmlm.reading.retrieve import LearnedRetriever, Offered, Query, Retrieved, Retriever, retrieve
from realmlm.reading.units import units, widened

SPANS_KEPT = 20  # of each passage: what lies below adds nothing one could see
OTHERS = 5  # answers named beside the best
_AROUND = string.punctuation + string.whitespace + "«»“”„‘’–—…"
_YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|had)\s", re.IGNORECASE
)
MOST_MASKS = 20  # of a sentence that is filled in
CLOSED_BOOK_MASKS = 6  # longest answer tried without a passage, in wordpieces
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
        valid_BM = (
            torch.arange(targets_BM.shape[1], device=device)
            < torch.tensor(self.masks, device=device)[:, None]
        )
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
            best = self._best_spans(
                reading.log_NLW.cpu(), [ids_N[pair] for pair in pairs], alike.second_N.cpu()
            )
            spans.update(zip(pairs.tolist(), best, strict=True))
        p_BK = weight_N.unflatten(0, (-1, k)).softmax(-1).tolist()
        best_B = retrieved.scores_BK.amax(1).tolist()
        answers = []
        for row, (query, ids) in enumerate(zip(queries, retrieved.ids_BK.tolist(), strict=True)):
            answer = self._combine(ids, p_BK[row], [spans[row * k + column] for column in range(k)])
            answers.append(self._judged(query, answer, best_B[row]))
        return answers

    def _judged(self, query: Query, answer: Answer, relevance: float) -> Answer:
        """With its confidence (scores of word matching are on another scale than those it was calibrated
        with) and what is to be said."""
        known = self.model.config.calibration if isinstance(self.retriever, LearnedRetriever) else None
        confidence = Calibration(**known).confidence(answer.probability, relevance) if known else None
        longest = self.model.config.max_query
        cautions = {
            f"only the first {longest} wordpieces of the question were read": len(query.tokens) > longest,
            "yes or no is for you to say: answers are words of a passage": _YES_OR_NO.match(query.text)
            is not None,
            "unsure: the documents may not say this": confidence is not None and confidence < UNSURE,
        }
        said = "; ".join(words for words, applies in cautions.items() if applies)
        return replace(answer, relevance=relevance, confidence=confidence, caution=said)

    def _best_spans(
        self, log_NLW: Tensor, passages: list[int], second_N: Tensor
    ) -> list[list[tuple[int, int, float]]]:
        """Of each passage the character spans with their probability p(s|z,x), best first."""
        widths = log_NLW.shape[2]
        top = log_NLW.flatten(1).topk(min(SPANS_KEPT, log_NLW[0].numel()))
        first_NS = top.indices // widths - second_N[:, None]
        last_NS = first_NS + top.indices % widths
        found = []
        for number, first_S, last_S, p_S in zip(
            passages, first_NS.numpy(), last_NS.numpy(), top.values.exp().numpy(), strict=True
        ):
            chars = self.corpus.token_chars(number)
            likely = p_S > 0
            starts = chars[first_S[likely], 0].tolist()
            ends = chars[last_S[likely], 1].tolist()
            found.append(list(zip(starts, ends, p_S[likely].tolist(), strict=True)))
        return found

    def _combine(self, ids: list[int], p_K: list[float], spans: list[list[tuple[int, int, float]]]) -> Answer:
        """p(y|x), summed over passages and over the places where the same words stand; the released form
        takes the best single place."""
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
        evidence = []
        nowhere = (None, None)
        for number, passage in enumerate(passages):
            first, past = place.get((best, number), nowhere)
            p = p_K[number]
            reads = reading[best, number]
            evidence.append(
                Evidence(passage.id, passage.title, passage.text, first, past, p, reads, passage.file)
            )
        rest = sorted((words for words in total if words != best), key=lambda words: -total[words])[:OTHERS]
        return Answer(
            surface[best],
            total[best],
            _by_share(evidence),
            tuple(Words(surface[words], total[words]) for words in rest),
        )

    def _closed_book(self, queries: list[Query]) -> list[Answer]:
        """Each question followed by masks, as many as serve it best."""
        count = len(queries)
        found = []
        nothing = Retrieved(
            torch.zeros(count, 0, dtype=torch.int64), torch.zeros(count, 0), torch.zeros(count)
        )
        for masks in range(1, CLOSED_BOOK_MASKS + 1):
            room = self.model.config.max_query - masks
            end = np.full(masks, self.model.wordpieces.mask)
            asked = [Query(query.text, np.concatenate([query.tokens[:room], end])) for query in queries]
            found.append(
                [
                    (np.log(max(answer.probability, 1e-30)) / masks, answer)
                    for answer in self.fill_masks(asked, nothing)
                ]
            )
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
        """What the reader expects at the masks, in each passage and in the null document where that is
        weighed."""
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

    def mask_words(self, read: ReadSentences, *, most: int = 5) -> list[list["MaskWords"]]:
        """For each sentence and each of its masks the likeliest wordpieces, with what was read and, where it
        was weighed, without."""
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
            start, end = _place(words, passage.text)
            evidence.append(
                Evidence(passage.id, passage.title, passage.text, start, end, p, reading, passage.file)
            )
        ordered = _by_share(evidence)
        whole = _longer(words, ordered)
        part = f"perhaps a part of “{whole}”: each [MASK] is one piece of a word" if whole else ""
        return Answer(words, float(np.dot(p_K, reading_K)), ordered, caution=part)


def _by_share(evidence: list[Evidence]) -> tuple[Evidence, ...]:
    """First what the answer comes from most, p(z|x) p(y|z,x)."""
    return tuple(
        sorted(
            evidence,
            key=lambda item: (
                -item.retrieval_probability * item.reading_probability,
                -item.retrieval_probability,
            ),
        )
    )


def _place(words: str, text: str) -> tuple[int, int] | tuple[None, None]:
    """Where words stand in a text, or a longer word or number that begins with them."""
    ahead = rf"(?<!\w){re.escape(words)}"
    match = re.search(rf"{ahead}(?!\w)", text, re.IGNORECASE) or re.search(
        rf"{ahead}\w*", text, re.IGNORECASE
    )
    return widened(*match.span(), units(text)) if match else (None, None)


def _longer(words: str, evidence: tuple[Evidence, ...]) -> str:
    """The word or number that these words are a part of, in the passage that says so most; else nothing."""
    first = evidence[0] if evidence else None
    span = first.passage[first.start : first.end] if first and first.start is not None else words
    return span if _same_words(span) != _same_words(words) else ""


def _same_words(text: str) -> str:
    """What answers are equal by: upper and lower case, spaces and what stands around the words do not
    count."""
    return " ".join(text.casefold().strip(_AROUND).split())
