"""Answering: retrieve, read, and sum over passages: p(y|x) = Σ_z p(z|x) p(y|z,x), with the evidence kept.

B queries, K passages each (with the null document in column 0 where it is weighed), M masks, L wordpieces, W
span widths, V vocabulary.
"""

import re
import string
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.model.inputs import Inputs, joint_inputs
from realmlm.model.marginal import hidden_log_p, joint_reading, span_log_probabilities, weighed_together
from realmlm.model.realm import Realm
from realmlm.reading.confidence import UNSURE, Calibration
from realmlm.reading.retrieve import LearnedRetriever, Query, Retrieved, Retriever
from realmlm.sentences import split_sentences

SPANS_KEPT = 20  # of each passage: what lies below adds nothing one could see
OTHERS = 5  # answers named beside the best
_AROUND = string.punctuation + string.whitespace + "«»“”„‘’–—…"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # line breaks, and what would make a terminal do something
_UNITS = re.compile(  # what an answer neither begins nor ends within
    r"(?<![\w.+-])[\w.+-]+@[\w.-]+\w"  # an e-mail address
    r"|(?<![\w:])(?:[\dA-Fa-f]{2}:){2,}[\dA-Fa-f]{2}\b"  # a hardware address
    r"|(?<!\w)v\d+(?:\.\d+)*(?:-[a-z]+[\d.]*\b)?|(?<![\w.])\d+(?:\.\d+){2,}(?:-[a-z]+[\d.]*\b)?"  # a version
    r"|\b(?=[A-Z./-]*\d)(?=[\d./-]*[A-Z])[A-Z\d]+(?:[./-][A-Z\d]+)+\b"  # a code of capitals and digits
    r"|(?<![\w+])\+\d{1,3}(?:[ -]\d{2,})+\b"  # a telephone number
    r"|(?<![\w.,])\d+(?:[-/:.]\d+){2,}\b|(?<![\w.,:])\d{1,2}:\d\d\b"  # a date or a time in digits
    r"|(?<![\w.,])[-−+]?\d+(?:[.,]\d+)*"  # a number with its sign
)
_YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|had)\s", re.IGNORECASE
)
MOST_MASKS = 20  # of a sentence that is filled in
CLOSED_BOOK_MASKS = 6  # longest answer tried without a passage, in wordpieces
# questions
AT_ONCE = 16
AT_ONCE_GPU = 96
# wordpieces whose spans are scored at once: each is a vector
SCORED_AT_ONCE = 512
SCORED_AT_ONCE_GPU = 2**17


@dataclass(frozen=True)
class Evidence:
    """A passage that was read, and what it says: where the answer stands in it, p(z|x) and p(y|z,x). The null
    document has no id."""

    passage_id: int | None
    title: str
    passage: str
    start: int | None
    end: int | None
    retrieval_probability: float
    reading_probability: float
    file: str = ""

    def where(self) -> str:
        """Title, id and file of the passage."""
        return _CONTROL.sub(
            " ", f"{self.title or 'passage'} ({self.passage_id})" + f", {self.file}" * bool(self.file)
        )

    def quote(self, *, most: int = 240) -> tuple[str, str, str]:
        """The sentence of the answer as what comes before it, the answer, what comes after; without one the
        passage's beginning."""
        text = _CONTROL.sub(" ", self.passage)
        if self.start is None or self.end is None:
            return _beginning(text, most), "", ""
        touched = [(a, b) for a, b in split_sentences(self.passage) if a < self.end and self.start < b] or [
            (self.start, self.end)
        ]
        before = text[touched[0][0] : self.start]
        after = text[self.end : touched[-1][1]]
        return _beginning(before[::-1], most)[::-1], text[self.start : self.end], _beginning(after, most)


@dataclass(frozen=True)
class Words:
    """Words that could stand there, with their probability."""

    words: str
    probability: float


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer, p(y|x), and the passages it was read from: first those that it comes from most, p(z|x)
    p(y|z,x)."""

    answer: str
    probability: float
    evidence: tuple[Evidence, ...]
    others: tuple[Words, ...] = ()
    """The next likeliest answers with p(y|x); none for masked sentences."""
    relevance: float | None = None
    """max f(x,z) over what was read: unlike p(y|x) it falls where no passage is about the question."""
    confidence: float | None = None
    """How often such answers were right where the model was calibrated (realmlm.reading.confidence); None: it
    was not."""
    caution: str = ""
    """What whoever asked should know before believing it."""

    def __str__(self) -> str:
        """For a terminal: the words, how sure, and where they stand."""
        lines = [
            f"{self.answer or '(no answer)'}   p = {self.probability:.3f}"
            + f"   {self.caution}" * bool(self.caution),
            "",
        ]
        for evidence in self.evidence:
            numbers = (
                f"p(z|x) {evidence.retrieval_probability:.3f}   p(y|z,x) {evidence.reading_probability:.3f}"
            )
            if evidence.passage_id is None:
                lines.append(f"  {numbers}   without reading anything")
                continue
            before, span, after = evidence.quote()
            lines.append(f"  {numbers}   {evidence.where()}")
            lines.append(f"      {before}{f'»{span}«' if span else ''}{after}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook: the same, the answer marked where it stands and the probabilities as bars."""
        rows = [
            f"<b>{escape(self.answer or '(no answer)')}</b> &nbsp; p = {self.probability:.3f} &nbsp; "
            f"<i>{escape(self.caution)}</i>"
        ]
        for evidence in self.evidence:
            before, span, after = map(escape, evidence.quote())
            bars = _bar("p(z|x)", evidence.retrieval_probability) + _bar(
                "p(y|z,x)", evidence.reading_probability
            )
            known = evidence.passage_id is not None
            title = escape(evidence.where()) if known else "without reading anything"
            mark = f'<mark style="background:#ffe59a;color:#1d2329">{span}</mark>' if span else ""
            rows.append(f'{bars}<b>{title}</b><div style="margin-left:1em">{before}{mark}{after}</div>')
        return "".join(f'<div style="margin:.4em 0;text-align:left">{row}</div>' for row in rows)


@dataclass(frozen=True)
class MaskWords:
    """The likeliest wordpieces of one mask: with retrieval, and from the null document alone where it was
    weighed."""

    read: tuple[Words, ...]
    unread: tuple[Words, ...]


@dataclass(frozen=True)
class MaskReading:
    """How many masks each query has, p(z|x) of what was read, and log p over the vocabulary at every mask."""

    masks: list[int]
    p_BK: Tensor
    log_BKMV: Tensor
    null: bool
    """Is the null document in column 0?"""

    def log_likelihood(self, targets: list[np.ndarray]) -> Tensor:
        """log p(y|z,x) [B, K] of the wordpieces that the masks hide."""
        width = self.log_BKMV.shape[2]
        device = self.log_BKMV.device
        hidden = [
            [*target[:masks], *[0] * (width - len(target[:masks]))]
            for target, masks in zip(targets, self.masks, strict=True)
        ]
        targets_NM = torch.tensor(hidden, device=device).repeat_interleave(self.log_BKMV.shape[1], dim=0)
        token_BKM = hidden_log_p(self.log_BKMV.flatten(0, 1), targets_NM).view(self.log_BKMV.shape[:3])
        valid_BM = torch.arange(width, device=device) < torch.tensor(self.masks, device=device)[:, None]
        return joint_reading(token_BKM, valid_BM)


class Answerer:
    """Model, corpus and a way to retrieve, ready for questions and for sentences with [MASK]."""

    def __init__(self, model: Realm, wordpieces: Wordpieces, corpus: Corpus, retriever: Retriever) -> None:
        self.model = model
        self.wordpieces = wordpieces
        self.corpus = corpus
        self.retriever = retriever

    @property
    def at_once(self) -> int:
        """Questions to read for together."""
        return AT_ONCE_GPU if self.model.device.type == "cuda" else AT_ONCE

    def query(self, text: str) -> Query:
        tokens = self.wordpieces.encode_query(text)
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
        places = np.flatnonzero(query.tokens[: self.model.config.max_query] == self.wordpieces.mask)
        if not len(places):
            raise BadInput(
                f'nothing to fill in: "{query.text}" has no [MASK] among its first '
                f"{self.model.config.max_query} wordpieces; write one"
            )
        return places

    # --- questions ------------------------------------------------------------------------------------------

    def ask(self, questions: list[str], *, read: int = 5) -> list[Answer]:
        """An answer to each question."""
        return self._in_batches([self.query(question) for question in questions], read, self.read_spans)

    def _in_batches(
        self, queries: list[Query], read: int, way: Callable[[list[Query], Retrieved], list[Answer]]
    ) -> list[Answer]:
        batches = [queries[first : first + self.at_once] for first in range(0, len(queries), self.at_once)]
        return [answer for batch in batches for answer in way(batch, self.retriever(batch, read))]

    @torch.inference_mode()
    def read_spans(self, queries: list[Query], retrieved: Retrieved) -> list[Answer]:
        """Answers from what was retrieved; without any passage, from the reader's own memory."""
        if retrieved.ids_BK.shape[1] == 0:
            return self._closed_book(queries)
        k = retrieved.ids_BK.shape[1]
        tokens = [query.tokens for query in queries for _ in range(k)]
        passages = retrieved.ids_BK.flatten().tolist()
        scores_N = retrieved.scores_BK.flatten().clone()
        spans: dict[int, list[tuple[int, int, float]]] = {}
        inputs = self._joint(tokens, passages)
        for pairs in inputs.alike():
            alike = inputs.rows(pairs)
            scores_NLW, allowed_NLW = self._span_scores(alike)
            if self.model.config.weighs_together:
                scores_N[pairs] = weighed_together(scores_N[pairs], scores_NLW, allowed_NLW)
            log_NLW = span_log_probabilities(scores_NLW, allowed_NLW)
            best = self._best_spans(log_NLW, [passages[pair] for pair in pairs], alike.second_N.cpu())
            spans.update(zip(pairs.tolist(), best, strict=True))
        rows = zip(
            retrieved.ids_BK.tolist(), scores_N.unflatten(0, (-1, k)).softmax(-1).tolist(), strict=True
        )
        answers = [
            self._combine(ids, p_K, [spans[row * k + column] for column in range(k)])
            for row, (ids, p_K) in enumerate(rows)
        ]
        best_B = retrieved.scores_BK.amax(1).tolist()
        return [
            self._judged(query, answer, best)
            for query, answer, best in zip(queries, answers, best_B, strict=True)
        ]

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

    def _joint(self, queries: list[np.ndarray], passages: list[int | None]) -> Inputs:
        return joint_inputs(queries, passages, self.corpus, self.wordpieces, self.model.config).to(
            self.model.device
        )

    def _span_scores(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Scores and which are allowed, as `Reader.spans` has them, for a few pairs after the others."""
        hidden_NLH = self.model.reader.encoder(inputs)
        head = self.model.reader.span_head
        few = max(1, (SCORED_AT_ONCE_GPU if hidden_NLH.is_cuda else SCORED_AT_ONCE) // hidden_NLH.shape[1])
        scores_NLW = torch.cat([head(some_NLH) for some_NLH in hidden_NLH.split(few)])
        return scores_NLW.cpu(), head.allowed(inputs).cpu()

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
                surface.setdefault(words, " ".join(_CONTROL.sub(" ", span).split()))
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
            end = np.full(masks, self.wordpieces.mask)
            asked = [Query(query.text, np.concatenate([query.tokens[:room], end])) for query in queries]
            found.append(
                [
                    (np.log(max(answer.probability, 1e-30)) / masks, answer)
                    for answer in self.fill_masks(asked, nothing)
                ]
            )
        return [max(tries, key=lambda tried: tried[0])[1] for tries in zip(*found, strict=True)]

    # --- masked sentences -----------------------------------------------------------------------------------

    def fill(self, sentences: list[str], *, read: int = 5) -> list[Answer]:
        """What stands at the [MASK]s of each sentence; each [MASK] is one wordpiece."""
        return self._in_batches([self.sentence(sentence) for sentence in sentences], read, self.fill_masks)

    def fill_masks(self, queries: list[Query], retrieved: Retrieved) -> list[Answer]:
        """The likeliest wordpiece of each mask under the mixture over passages, from what was retrieved."""
        return self.fill_from(self.read_masks(queries, retrieved), retrieved)

    def fill_from(self, read: "MaskReading", retrieved: Retrieved) -> list[Answer]:
        """The same from what was read already."""
        k = read.p_BK.shape[1]
        chosen_BM = (read.log_BKMV + read.p_BK.log()[:, :, None, None]).logsumexp(1).argmax(-1)
        token_BKM = read.log_BKMV.gather(3, chosen_BM[:, None, :, None].expand(-1, k, -1, 1))[..., 0].cpu()
        answers = []
        for row, masks in enumerate(read.masks):
            words = self.wordpieces.decode(chosen_BM[row, :masks].tolist())
            reading_K = token_BKM[row, :, :masks].sum(-1).exp().tolist()
            ids = [None] * (k - retrieved.ids_BK.shape[1]) + retrieved.ids_BK[row].tolist()
            answers.append(self._filled(words, ids, read.p_BK[row].tolist(), reading_K))
        return answers

    @torch.inference_mode()
    def read_masks(self, queries: list[Query], retrieved: Retrieved) -> "MaskReading":
        """What the reader expects at the masks, in each passage and in the null document where that is
        weighed."""
        places = [self._masks(query) for query in queries]
        null = retrieved.null_B is not None
        scores_BK = (
            torch.cat([retrieved.null_B[:, None], retrieved.scores_BK], 1) if null else retrieved.scores_BK  # type: ignore[index]
        )
        k = scores_BK.shape[1]
        passages = [number for row in retrieved.ids_BK.tolist() for number in ([None] * null + row)]
        inputs = self._joint([query.tokens for query in queries for _ in range(k)], passages)
        width = max(len(masks) for masks in places)
        positions_BM = torch.tensor(
            [[*masks, *[0] * (width - len(masks))] for masks in places], device=self.model.device
        )
        log_BKMV = self.model.reader.masks(inputs, positions_BM.repeat_interleave(k, 0)).unflatten(
            0, (len(queries), k)
        )
        return MaskReading(
            [len(masks) for masks in places], scores_BK.softmax(-1).to(log_BKMV.device), log_BKMV, null
        )

    def mask_words(self, read: "MaskReading", *, most: int = 5) -> list[list["MaskWords"]]:
        """For each sentence and each of its masks the likeliest wordpieces, with what was read and, where it
        was weighed, without."""
        mixed_BMV = (read.log_BKMV + read.p_BK.log()[:, :, None, None]).logsumexp(1)

        def likeliest(log_V: Tensor) -> tuple[Words, ...]:
            top = log_V.topk(most)
            return tuple(
                Words(self.wordpieces.decode([number]), p)
                for number, p in zip(top.indices.tolist(), top.values.exp().tolist(), strict=True)
            )

        return [
            [
                MaskWords(
                    likeliest(mixed_BMV[row, mask]),
                    likeliest(read.log_BKMV[row, 0, mask]) if read.null else (),
                )
                for mask in range(masks)
            ]
            for row, masks in enumerate(read.masks)
        ]

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


def units(text: str) -> list[tuple[int, int]]:
    """Where numbers, codes and addresses stand in a text: 11 of 11,400 is another number."""
    return [unit.span() for unit in _UNITS.finditer(text)]


def widened(start: int, end: int, units: list[tuple[int, int]]) -> tuple[int, int]:
    """The span with the whole of what it begins or ends within."""
    for first, past in units:
        start = first if first < start < past else start
        end = past if first < end < past else end
    return start, end


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


def _beginning(text: str, most: int) -> str:
    """So many characters at most, cut between words where there are several."""
    return text if len(text) <= most else (text[:most].rpartition(" ")[0] or text[:most]) + "…"


def _bar(name: str, probability: float) -> str:
    """A probability as a small bar; its colours are legible on light and dark ground."""
    track = (
        "display:inline-block;vertical-align:middle;width:5em;height:.6em;border-radius:.3em;background:#8884"
    )
    filled = f"display:block;width:{100 * probability:.0f}%;height:100%;border-radius:.3em;background:#4a90c4"
    return f'{name} <span style="{track}"><span style="{filled}"></span></span> {probability:.3f} &nbsp; '


def _same_words(text: str) -> str:
    """What answers are equal by: upper and lower case, spaces and what stands around the words do not
    count."""
    return " ".join(text.casefold().strip(_AROUND).split())
