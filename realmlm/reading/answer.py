"""Answering: retrieve, read, and sum over passages, p(y|x) = Σ_z p(z|x) p(y|z,x), with the evidence for it.

B queries, K passages each (with the null document in column 0 where it is weighed), M masks, L wordpieces, W
span widths, V vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.corpus.store import Corpus
from realmlm.defaults import OVERLAPPING, READ
from realmlm.errors import BadInput
from realmlm.model.inputs import send
from realmlm.model.marginal import hidden_log_p, joint_reading
from realmlm.model.realm import Realm
from realmlm.model.resident import Queries, Resident
from realmlm.reading.combine import (
    NOWHERE,
    Combiner,
    Place,
    ReadSpans,
    by_share,
    evidence_of,
    same_words,
    with_scores,
)
from realmlm.reading.confidence import Calibration
from realmlm.reading.packed import lay_out, pair_size, read_spans_packed, rows_of
from realmlm.reading.read import SpanReading, join, read_masks, read_spans
from realmlm.reading.records import Answer, Evidence, MaskWords, Words
from realmlm.reading.retrieve import (
    LearnedRetriever,
    NoRetriever,
    Offered,
    Query,
    Retrieved,
    Retriever,
    retrieve,
)
from realmlm.reading.units import widened
from realmlm.sentences import has_words

T = TypeVar("T")
SPANS_KEPT = 20  # the likeliest of each passage; the rest add nothing to a probability that is shown
_EMPTY = "the question is empty; ask with words: Who …?"
MOST_MASKS = 20  # that a sentence to be filled in may have
CLOSED_BOOK_MASKS = 6  # longest answer tried without a passage, in wordpieces
# questions and sentences with [MASK] that are answered together
TOGETHER_CPU = 16
TOGETHER_GPU = 96
QUESTIONS_TOGETHER_GPU = 512  # without sentences, of which each mask takes log p over the whole vocabulary
_PACKED_TOGETHER = 2**19  # wordpieces of packed pairs that are read in one pass, at most


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


@dataclass(frozen=True)
class ReadPassages:
    """Questions that were read with what was retrieved for them: the likeliest spans of each passage, on
    their way from the device."""

    queries: list[Query]
    retrieved: Retrieved
    order_BR: Tensor | None
    """The places of what was retrieved, most p(z|x) first, where it was reranked; the first K are answered
    from."""
    weight_N: Tensor
    """What weighs the passages of a question against each other."""
    logit_N: Tensor | None
    """g(x,z), where the reader has learned it."""
    log_NS: Tensor
    """log p(s|z,x), best first; −inf where there is no span."""
    first_NS: Tensor
    """The first wordpiece of a span, in its passage."""
    more_NS: Tensor
    """How many wordpieces follow in it."""
    there: torch.cuda.Event | None
    """When all has arrived; None: it has."""

    def ids_BR(self) -> Tensor:
        """What was retrieved, in the order in which it was ranked, when that has arrived."""
        if self.there is not None:
            self.there.synchronize()
        ids_BR = self.retrieved.ids_BK
        return ids_BR if self.order_BR is None else ids_BR.gather(1, self.order_BR)

    def arrays(self) -> ReadSpans:
        """The same without torch, when it has arrived."""
        ids_BK = self.ids_BR()[:, : len(self.weight_N) // len(self.queries)]
        return ReadSpans(
            questions=[query.text for query in self.queries],
            wordpieces=[len(query.tokens) for query in self.queries],
            ids_BK=ids_BK.numpy(),
            relevance_B=self.retrieved.near_BK.amax(1).numpy(),
            p_BK=self.weight_N.view_as(ids_BK).softmax(-1).numpy(),
            logit_BK=None if self.logit_N is None else self.logit_N.view_as(ids_BK).numpy(),
            first_NS=self.first_NS.numpy(),
            more_NS=self.more_NS.numpy(),
            p_NS=self.log_NS.exp().float().numpy(),
            searched_2BK=self._searched(ids_BK.shape[1]),
        )

    def _searched(self, k: int) -> np.ndarray | None:
        """Both parts of the score of a hybrid search, of those that are answered from [2, B, K]."""
        parts_2BR = self.retrieved.parts_2BK
        if parts_2BR is not None and self.order_BR is not None:
            parts_2BR = np.take_along_axis(parts_2BR, self.order_BR.numpy()[None], axis=2)
        return None if parts_2BR is None else parts_2BR[:, :, :k]


class _BestSpans(NamedTuple):
    """The likeliest spans of some pairs' passages."""

    pairs_n: Tensor
    weight_n: Tensor
    logit_n: Tensor | None
    log_nS: Tensor
    first_nS: Tensor
    more_nS: Tensor

    @classmethod
    def of(cls, pairs_n: Tensor, reading: SpanReading) -> "_BestSpans":
        """Of what was read."""
        widths = reading.log_NLW.shape[2]
        top = reading.log_NLW.flatten(1).topk(min(SPANS_KEPT, reading.log_NLW[0].numel()))
        first_nS = reading.firsts(top.indices // widths)
        return cls(pairs_n, reading.weight_N, reading.logit_N, top.values, first_nS, top.indices % widths)


class Answerer:
    """Model, corpus and a way to retrieve, ready for questions and for sentences with [MASK]."""

    def __init__(
        self,
        model: Realm,
        corpus: Corpus,
        retriever: Retriever,
        *,
        rerank: int = 0,
        overlapping: str = OVERLAPPING,
    ) -> None:
        """With `rerank`, so many passages are retrieved for a question and read, and those with the most
        weight p(z|x) are answered from: the reader has a say in it. With `overlapping` merged, spans that
        overlap in one place are one answer."""
        check_reranks(model, rerank)
        self.overlapping = overlapping
        self.rerank = rerank
        self.model = model
        self.corpus = corpus
        self.retriever = retriever

    @property
    def at_once(self) -> int:
        """Questions to read for together."""
        return TOGETHER_GPU if self.model.device.type == "cuda" else TOGETHER_CPU

    @property
    def spans_at_once(self) -> int:
        """Questions to read for together where none is a sentence with [MASK]."""
        return QUESTIONS_TOGETHER_GPU if self.model.device.type == "cuda" else TOGETHER_CPU

    def query(self, text: str) -> Query:
        """A question, or a sentence with [MASK], in wordpieces; one without words is refused."""
        tokens = self.model.wordpieces.encode_query(text)
        if not len(tokens) or not has_words(text):
            raise BadInput(_EMPTY)
        return Query(text, tokens)

    def queries(self, texts: list[str]) -> list[Query]:
        """Several questions in wordpieces, made in parallel."""
        encoded = self.model.wordpieces.encode_queries(texts)
        if not all(map(len, encoded)) or not all(map(has_words, texts)):
            raise BadInput(_EMPTY)
        return [Query(text, tokens) for text, tokens in zip(texts, encoded, strict=True)]

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
        return self.ask_through(Combiner.answers, questions, read=read)

    def ask_through(
        self, combine: Callable[[Combiner, ReadSpans], Sequence[T]], questions: list[str], *, read: int = READ
    ) -> list[T | Answer]:
        """For each question what `combine` makes of what was read; an answer where nothing was retrieved."""

        def way(queries: list[Query], retrieved: Retrieved) -> Sequence[T | Answer]:
            if retrieved.ids_BK.shape[1] == 0:
                return self._closed_book(queries)
            return combine(self.combiner, self.read_passages(queries, retrieved, read=read).arrays())

        depth = max(read, min(self.rerank, len(self.corpus)))
        return self._in_batches(self.queries(questions), depth, way)

    def _in_batches(
        self, queries: list[Query], depth: int, way: Callable[[list[Query], Retrieved], Sequence[T]]
    ) -> list[T]:
        batches = [queries[first : first + self.at_once] for first in range(0, len(queries), self.at_once)]
        return [answer for batch in batches for answer in way(batch, retrieve(self.retriever, batch, depth))]

    def read_spans(self, queries: list[Query], retrieved: Retrieved) -> list[Answer]:
        """Answers from what was retrieved; without any passage, from the reader's own memory."""
        if retrieved.ids_BK.shape[1] == 0:
            return self._closed_book(queries)
        return self.answers_from(self.read_passages(queries, retrieved))

    @torch.inference_mode()
    def read_passages(
        self, queries: list[Query], retrieved: Retrieved, *, read: int | None = None
    ) -> ReadPassages:
        """Read what was retrieved, and keep the `read` passages with most weight p(z|x). A GPU may still be
        at it when this returns."""
        device = self.model.device
        tokens = [query.tokens for query in queries]
        weight_N = send(retrieved.scores_BK.flatten(), device)
        ids_BK = retrieved.ids_BK.numpy()
        way = self._read_padded if self.resident is None else self._read_packed
        rows = list(way(tokens, ids_BK, weight_N))
        order_N = torch.cat([some.pairs_n for some in rows]).argsort()
        weights_N = torch.cat([some.weight_n for some in rows])
        order_BR = None
        if read is not None and read < ids_BK.shape[1]:
            order_BR = weights_N[order_N].view(ids_BK.shape).sort(descending=True, stable=True).indices
            order_N = order_N.view(ids_BK.shape).gather(1, order_BR[:, :read]).flatten()
        logits = [some.logit_n for some in rows if some.logit_n is not None]
        logit_N = torch.cat(logits) if logits else None
        most = max(some.log_nS.shape[1] for some in rows)

        def sent(tensor: Tensor) -> Tensor:
            return tensor.to("cpu", non_blocking=True)

        def whole(groups: list[Tensor], *, missing: float) -> Tensor:
            """The rows of all groups in the order of the pairs, on their way from the device."""
            padded = [nn.functional.pad(part, (0, most - part.shape[1]), value=missing) for part in groups]
            return sent(torch.cat(padded)[order_N])

        return ReadPassages(
            queries,
            retrieved,
            order_BR=None if order_BR is None else sent(order_BR),
            weight_N=sent(weights_N[order_N].float()),
            logit_N=None if logit_N is None else sent(logit_N[order_N]),
            log_NS=whole([some.log_nS for some in rows], missing=-torch.inf),
            first_NS=whole([some.first_nS for some in rows], missing=0),
            more_NS=whole([some.more_nS for some in rows], missing=0),
            there=torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None,
        )

    @cached_property
    def resident(self) -> Resident | None:
        """The corpus on the device, if the reader reads packed there."""
        encoder = self.model.reader.encoder
        return lay_out(self.model, self.corpus, [encoder], bf16=encoder.quick)

    def _read_padded(
        self, queries: list[np.ndarray], ids_BK: np.ndarray, weight_N: Tensor
    ) -> Iterator[_BestSpans]:
        inputs = join(self.model, queries, Offered(self.corpus, ids_BK, null=False)).to(weight_N.device)
        for pairs in inputs.alike():
            alike = inputs.rows(pairs)
            pairs_n = send(torch.from_numpy(pairs), weight_N.device)
            reading = read_spans(self.model, alike, weight_N[pairs_n])
            yield _BestSpans.of(pairs_n, reading)

    def _read_packed(
        self, queries: list[np.ndarray], ids_BK: np.ndarray, weight_N: Tensor
    ) -> Iterator[_BestSpans]:
        resident = self.resident
        assert resident is not None
        k = ids_BK.shape[1]
        few = max(1, _PACKED_TOGETHER // (k * self.model.config.max_joint))  # questions
        for first in range(0, len(queries), few):
            some = queries[first : first + few]
            ids_bK = ids_BK[first : first + few]
            size = pair_size(self.model, self.corpus, some, ids_bK)
            held = Queries.of(some, width=self.model.config.max_query, device=resident.device)
            ids = send(torch.from_numpy(ids_bK), resident.device)
            packed = resident.pairs(held, rows_of(ids), ids.flatten(), size)
            pairs_n = torch.arange(first * k, first * k + ids.numel(), device=resident.device)
            reading = read_spans_packed(self.model, packed, weight_N[pairs_n])
            yield _BestSpans.of(pairs_n, reading)

    def answers_from(self, read: ReadPassages) -> list[Answer]:
        """Answers from what was read."""
        return self.combiner.answers(read.arrays())

    @property
    def combiner(self) -> Combiner:
        """What makes answers of what was read, without the model."""
        config = self.model.config
        own = isinstance(self.retriever, LearnedRetriever) and self.retriever.calibrated
        fitted = config.calibration if own else None
        calibration = Calibration(**fitted) if fitted else None
        released = config.reading == "released"
        return Combiner(self.corpus, config.max_query, released, calibration, self.overlapping)

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
        searched_2BK = retrieved.parts_2BK
        answers = []
        for row, masks in enumerate(read.masks):
            words = self.model.wordpieces.decode(chosen_BM[row, :masks].tolist())
            reading_K = token_BKM[row, :, :masks].sum(-1).exp().tolist()
            ids = [None] * read.null + retrieved.ids_BK[row].tolist()
            answer = self._filled(words, ids, p_BK[row], reading_K)
            if searched_2BK is not None:
                answer = with_scores(answer, retrieved.ids_BK[row].numpy(), searched_2BK[:, row])
            answers.append(answer)
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
            evidence.append(evidence_of(passage, _place(words, passage.text), p, reading))
        ordered = by_share(evidence)
        whole = _longer(words, ordered)
        part = f"perhaps a part of “{whole}”: each [MASK] is one piece of a word" if whole else ""
        return Answer(words, float(np.dot(p_K, reading_K)), ordered, caution=part)


def check_reranks(model: Realm, rerank: int) -> None:
    """Only a model whose reader has a say in what passages weigh can rerank them."""
    if rerank and not (model.config.passage_logit or model.config.weighs_together):
        lacking = "the model's reader has not learned which passages answer a question"
        raise BadInput(f"{lacking}; fine-tune it with --passage-logit, or leave out --rerank")


def _place(words: str, text: str) -> Place:
    """Where words stand in a text, or a longer word or number that begins with them."""
    ahead = rf"(?<!\w){re.escape(words)}"
    whole = re.search(rf"{ahead}(?!\w)", text, re.IGNORECASE)
    match = whole or re.search(rf"{ahead}\w*", text, re.IGNORECASE)
    return widened(*match.span(), text) if match else NOWHERE


def _longer(words: str, evidence: tuple[Evidence, ...]) -> str:
    """The word or number that these words are a part of, in the passage that says so most; else nothing."""
    first = evidence[0] if evidence else None
    span = first.passage[first.start : first.end] if first and first.start is not None else words
    same = same_words([span, words])
    return span if same[0] != same[1] else ""
