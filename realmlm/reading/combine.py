"""From the likeliest spans of each passage to an answer: p(y|x) is summed over places with the same words.

None of it needs torch, so that other processes can do it. B questions, K passages each, N = B · K pairs, S
spans of each, U different passages, T wordpieces.
"""

import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from realmlm.corpus.store import Corpus, Passage
from realmlm.defaults import OVERLAPPING
from realmlm.reading.confidence import Calibration
from realmlm.reading.entries import in_named_entry
from realmlm.reading.kinds import fits
from realmlm.reading.language import looks_english
from realmlm.reading.records import CONTROL, Answer, Evidence, Words
from realmlm.reading.signs import signs_of
from realmlm.reading.tables import look_up
from realmlm.reading.units import all_widened, widened
from realmlm.reading.wholes import ALL, headings, kept_whole, made_whole, marks

OTHERS = 5  # answers named beside the best
GIVES_WAY = 0.02  # an answer of another kind than asked gives way to one with this share of its p
HEADING = 0.05  # what the reader's p counts for in a section's heading
CAUTIONS = {"unsure": "check it in the passage", "not found": "the documents may not say this"}
MOSTLY = 0.9  # a model whose questions were English to this share is taken to know English only
_AROUND = string.punctuation + string.whitespace + "«»“”„‘’–—…"
_YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|had)\s", re.IGNORECASE
)
_AUXILIARY = "are|were|do|does|did|have|had|can|could|may|must|should|will|would"
_SHARE = "number|percentage|percent|share|proportion|amount|rate"
# for several things: "Which members were present?", but not "What do members do?" or "On which days?"
_SEVERAL = re.compile(
    r"\s*(?:please\s+)?(?:list|enumerate|name\s+(?:all|every|the\s+(?:\w+\s+)?\w+[^\Wsui]s))\b"
    r"|\s*(?:\w+\s+)?(?:whom?\s+(?:are|were)(?!.*\w{2}ing\W*$)|what\s+(?:are|were)\s+the\s+names\s+of)\b"
    rf"|.*\b(?:which|what)\s+(?!(?:{_SHARE}|is|was|has|happens)\b)(?:(?!(?:{_AUXILIARY})\b)[\w-]+\s+){{0,2}}"
    rf"(?!(?:{_AUXILIARY}|dates|days|hours|times|gas|lens|means|news|series)\b)\w+[^\Wsui]s\s+(?:{_AUXILIARY})\b",
    re.IGNORECASE | re.DOTALL,
)
_AND = re.compile(r"[,;&]|\band\b|\w/\w")
Place = tuple[int, int] | tuple[None, None]  # the first character and the one past the last
NOWHERE = (None, None)
# what `split` would change in the middle of a text: white space other than one space
GAPS = (
    *("  ", "\t", "\n", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0", "\u1680"),
    *map(chr, range(0x2000, 0x200B)),
    *("\u2028", "\u2029", "\u202f", "\u205f", "\u3000"),
)


class ReadSpans(NamedTuple):
    """The likeliest spans that the reader found for some questions, in wordpieces."""

    questions: list[str]
    wordpieces: list[int]
    """How many each question has."""
    ids_BK: np.ndarray
    """The passages that were read."""
    relevance_B: np.ndarray
    """max f(x,z)."""
    p_BK: np.ndarray
    """p(z|x)."""
    first_NS: np.ndarray
    """The first wordpiece of each span, in the body of its passage; below 0 in the title, −1 is its last."""
    more_NS: np.ndarray
    """How many follow in it."""
    p_NS: np.ndarray
    """p(s|z,x), best first; 0 where there is no span."""
    searched_2BK: np.ndarray | None = None
    """f(x,z) and λ · BM25(x,z), where the search is hybrid."""
    logit_BK: np.ndarray | None = None
    """g(x,z), where the reader has learned it."""

    def parts(self, questions: int) -> "Iterator[ReadSpans]":
        """So many questions each, the last may have fewer."""
        k = self.ids_BK.shape[1]
        for first in range(0, len(self.questions), questions):
            rows = slice(first, first + questions)
            pairs = slice(first * k, (first + questions) * k)
            yield ReadSpans(
                self.questions[rows],
                self.wordpieces[rows],
                self.ids_BK[rows],
                self.relevance_B[rows],
                self.p_BK[rows],
                self.first_NS[pairs],
                self.more_NS[pairs],
                self.p_NS[pairs],
                None if self.searched_2BK is None else self.searched_2BK[:, rows],
                None if self.logit_BK is None else self.logit_BK[rows],
            )


@dataclass(frozen=True)
class Combiner:
    """Makes answers of what was read."""

    corpus: Corpus
    max_query: int
    released: bool
    """As the authors' code does: the best place of an answer counts, spans stay as they are."""
    calibration: Calibration | None
    overlapping: str = OVERLAPPING
    """merged: spans that overlap in one place are one answer."""

    def answers(self, read: ReadSpans) -> list[Answer]:
        """An answer to each question."""
        ids_U, place_N = np.unique(read.ids_BK.flatten(), return_inverse=True)
        passages = self.corpus.passages(ids_U.tolist())
        starts_NS, ends_NS = self._characters(read, ids_U, place_N)
        if not self.released:
            texts = [passage.text for passage in passages]
            starts_NS, ends_NS = all_widened(starts_NS, ends_NS, texts, place_N[:, None])
        if (in_title_NS := (read.first_NS < 0) & (read.p_NS > 0)).any():
            firsts = read.first_NS[in_title_NS]
            places = place_N[np.nonzero(in_title_NS)[0]]
            offered_n = [passages[place] for place in places.tolist()]
            starts_NS[in_title_NS], ends_NS[in_title_NS] = self._title_characters(
                offered_n, firsts, firsts + read.more_NS[in_title_NS]
            )
        spans = Spans(starts_NS, ends_NS, read.p_NS)
        k = read.ids_BK.shape[1]
        answers = []
        for row, (question, wordpieces) in enumerate(zip(read.questions, read.wordpieces, strict=True)):
            pairs = slice(row * k, (row + 1) * k)
            offered = [passages[place] for place in place_N[pairs].tolist()]
            logit_K = None if read.logit_BK is None else read.logit_BK[row]
            kept = None if self.released else kept_whole(question)
            kind = None if self.released else partial(fits, question)
            way = Way(self.released, self.overlapping == "merged", kept, kind)
            found = spans.rows(pairs)
            if not self.released:
                found = without_marks(found, offered)
                found = Spans(*look_up(question, [passage.text for passage in offered], *found))
                found = found._replace(p_KS=in_named_entry(question, offered, *found))
            answer = combine(offered, read.p_BK[row], found, way, logit_K=logit_K)
            if read.searched_2BK is not None:
                answer = with_scores(answer, read.ids_BK[row], read.searched_2BK[:, row])
            answers.append(self._judged(answer, question, wordpieces, float(read.relevance_B[row])))
        return answers

    def _characters(
        self, read: ReadSpans, ids_U: np.ndarray, place_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first character of each span of a body and the one past its last."""
        chars = [self.corpus.token_chars(number) for number in ids_U.tolist()]
        lengths_U = np.array([len(chars_T2) for chars_T2 in chars])
        begins_N = (np.cumsum(lengths_U) - lengths_U)[place_N]
        flat_T2 = np.concatenate([*chars, np.zeros((1, 2), dtype=np.uint16)])
        there_NS = (read.p_NS > 0) & (read.first_NS >= 0)
        first_NS = np.where(there_NS, read.first_NS + begins_N[:, None], -1)
        last_NS = np.where(there_NS, first_NS + read.more_NS, -1)
        return flat_T2[first_NS, 0].astype(np.int64), flat_T2[last_NS, 1].astype(np.int64)

    def _title_characters(
        self, passages: list[Passage], firsts_n: np.ndarray, lasts_n: np.ndarray
    ) -> tuple[list[int], list[int]]:
        """The same for spans of titles, counted back from the title's end."""
        chars = {passage.id: self.corpus.title_chars(passage.id) for passage in passages}
        starts = []
        ends = []
        for passage, first, last in zip(passages, firsts_n.tolist(), lasts_n.tolist(), strict=True):
            start, end = int(chars[passage.id][first, 0]), int(chars[passage.id][last, 1])
            start, end = (start, end) if self.released else widened(start, end, passage.title)
            starts.append(start - len(passage.title))
            ends.append(end - len(passage.title))
        return starts, ends

    def _judged(self, answer: Answer, question: str, wordpieces: int, relevance: float) -> Answer:
        """The answer with a caution and, if calibrated for the retriever used, its confidence."""
        answer = replace(answer, relevance=relevance)
        cautions = []
        confidence = None
        sure = ""
        if self.calibration is not None:
            confidence = self.calibration.confidence(signs_of(question, answer))
            sure = self.calibration.word(confidence)
            cautions += [CAUTIONS[sure]] if sure in CAUTIONS else []
            if self.calibration.english >= MOSTLY and not looks_english(question):
                cautions.append("the model knows English only, and this question looks like another language")
        if wordpieces > self.max_query:
            cautions.append(f"only the first {self.max_query} wordpieces of the question were read")
        if _YES_OR_NO.match(question):
            cautions.append("yes or no is for you to say: answers are words of a passage")
        elif _SEVERAL.match(question) and not _AND.search(answer.answer):
            cautions.append("there may be more than one: read them in the passage")
        return replace(answer, confidence=confidence, sure=sure, caution="; ".join(cautions))


class Spans(NamedTuple):
    """Spans of passages, of each the likeliest first."""

    starts_KS: np.ndarray
    """The first character in the passage's text; below 0 in its title, −1 is the title's last."""
    ends_KS: np.ndarray
    """The one past the last."""
    p_KS: np.ndarray
    """p(s|z,x); 0 where there is no span."""

    def rows(self, some: slice) -> "Spans":
        """Those of some of the passages."""
        return Spans(*(part_KS[some] for part_KS in self))


def without_marks(spans: Spans, passages: Sequence[Passage]) -> Spans:
    """The spans but for numbers of headings and items, those of a section's heading counting for little; what
    p these lose goes to others of their passage."""
    p_KS = spans.p_KS.copy()
    for number, passage in enumerate(passages):
        in_title, in_text = headings(passage.title, passage.text)
        weights = [(place, HEADING) for place in in_text] + [(place, 0.0) for place in marks(passage.text)]
        weights += [
            ((start - len(passage.title), end - len(passage.title)), weight)
            for places, weight in ((in_title, HEADING), (marks(passage.title), 0.0))
            for start, end in places
        ]
        for (start, end), weight in weights:
            p_KS[number, (spans.starts_KS[number] >= start) & (spans.ends_KS[number] <= end)] *= weight
        if (stays := p_KS[number].sum()) > 0:
            p_KS[number] *= spans.p_KS[number].sum() / stays
    return spans._replace(p_KS=p_KS)


class Way(NamedTuple):
    """How spans become answers."""

    released: bool = False
    """The best place of an answer counts."""
    merged: bool = OVERLAPPING == "merged"
    """Spans that overlap in one place are one answer."""
    kept: Collection[str] | None = ALL
    """The kinds of things that are given whole (realmlm/reading/wholes.py); None: spans stay as they are."""
    fits: Callable[[str], int] | None = None
    """Is an answer of the kind that is asked for (realmlm/reading/kinds.py)? None: that does not count."""


def combine(
    passages: list[Passage],
    p_K: np.ndarray,
    spans: Spans,
    way: Way,
    *,
    logit_K: np.ndarray | None = None,
) -> Answer:
    """The likeliest answer, with the others and the evidence for it.

    p(y|x) is summed over passages and places with the same words; `released` takes the best place. Which is
    the likeliest is decided by the reader's own spans, before those of the answers are made whole; one that
    is of another kind than was asked for gives way to the next that fits best. `logit_K` are g(x,z), for the
    evidence.
    """
    likely_KS = spans.p_KS > 0
    numbers = np.nonzero(likely_KS)[0].tolist()
    starts, ends, p = (part_KS[likely_KS].tolist() for part_KS in spans)
    places = list(zip(numbers, starts, ends, strict=True))
    shown = [_text_at(passages[number], start, end) for number, start, end in places]
    own = words = same_words(shown)
    weighed = (p_K[:, None].astype(np.float64) * spans.p_KS)[likely_KS].tolist()
    total = _sums(words, weighed)
    if way.merged and not way.released:
        words = merge_overlapping(places, p, words, total)
        total = _sums(words, weighed)
    if not way.released:
        total.pop("", None)  # punctuation alone answers nothing
    if not total:
        return Answer("", 0.0, ())

    likeliest: dict[str, int] = {}  # of the places of the same words: two dates may have one month
    for place, word in enumerate(own):
        if word not in likeliest or weighed[place] > weighed[likeliest[word]]:
            likeliest[word] = place

    def whole(number: int, start: int, end: int) -> tuple[int, int]:
        as_it_is = way.kept is None or start < 0
        return (start, end) if as_it_is else made_whole(start, end, passages[number].text, way.kept or ())

    def given(word: str) -> tuple[str, str]:
        """The answer as its passage has it, on one line, and what makes it the same as another."""
        number, start, end = places[likeliest[word]]
        whole_of = whole(number, start, end)
        surface = _text_at(passages[number], *whole_of)
        return _on_one_line(surface), word if whole_of == (start, end) else same_words([surface])[0]

    ordered = sorted(total, key=total.__getitem__, reverse=True)
    best = words[weighed.index(max(weighed))] if way.released else ordered[0]
    if (kind := way.fits) is not None and kind(given(best)[0]) < 0:
        likely = [word for word in ordered[1 : OTHERS + 1] if total[word] >= GIVES_WAY * total[best]]
        best = max([best, *likely], key=lambda word: kind(given(word)[0]))  # of equals the likeliest
    ordered = [best, *(word for word in ordered if word != best)]
    reading = [0.0] * len(passages)
    stands: list[Place] = [NOWHERE] * len(passages)
    for (number, start, end), likely, word, own_word in zip(places, p, words, own, strict=True):
        if word == ordered[0]:
            reading[number] += likely
            if start >= 0 and own_word == word and stands[number] is NOWHERE:
                stands[number] = whole(number, start, end)
    logits = [None] * len(passages) if logit_K is None else logit_K.tolist()
    evidence = map(evidence_of, passages, stands, p_K.tolist(), reading, logits)
    said: dict[str, Words] = {}
    places_said: list[tuple[int, int, int]] = []
    for word in ordered:
        where = places[likeliest[word]]
        if not way.released and any(_overlap(where, other) for other in places_said):
            continue  # more or less of what is said already is no other answer
        surface, key = given(word)
        said.setdefault(key, Words(surface, total[word]))
        places_said.append(where)
        if len(said) > OTHERS:
            break
    answer, *others = said.values()
    return Answer(answer.words, answer.probability, by_share(evidence), tuple(others))


def _text_at(passage: Passage, start: int, end: int) -> str:
    return passage.text[start:end] if start >= 0 else passage.title[start : end or None]


def _sums(words: list[str], weighed: list[float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for word, weight in zip(words, weighed, strict=True):
        total[word] = total.get(word, 0.0) + weight
    return total


def merge_overlapping(
    places: list[tuple[int, int, int]], p: list[float], words: list[str], total: dict[str, float]
) -> list[str]:
    """The words of each span, spans that overlap in one place being one answer.

    In each passage the likeliest span takes those that overlap it, then the likeliest of the rest, and so on:
    of "Paris, Rome and Oslo", "Paris" and "Oslo" are not one because "Paris, Rome" overlaps both. All have
    the words among them whose `total` over all places is largest. A place is the number of a passage, the
    first character and the one past the last.
    """
    merged = words.copy()
    by_passage: dict[int, list[int]] = {}
    for span, (number, _, _) in enumerate(places):
        by_passage.setdefault(number, []).append(span)
    for rest in by_passage.values():
        rest.sort(key=p.__getitem__, reverse=True)
        while rest:
            apart = [span for span in rest[1:] if not _overlap(places[rest[0]], places[span])]
            taken = set(rest).difference(apart)
            likeliest = max((words[span] for span in taken), key=lambda word: (word != "", total[word], word))
            for span in taken:
                merged[span] = likeliest
            rest = apart
    return merged


def _overlap(place: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether two places of one passage share characters."""
    return place[0] == other[0] and place[1] < other[2] and other[1] < place[2]


def _on_one_line(span: str) -> str:
    return " ".join(CONTROL.sub(" ", span).split())


def evidence_of(
    passage: Passage, place: Place, p: float, reading: float, logit: float | None = None
) -> Evidence:
    """A passage that was read, where the answer stands in it, p(z|x), p(y|z,x) and g(x,z)."""
    start, end = place
    return Evidence(
        passage.id, passage.title, passage.text, start, end, p, reading, passage.file, passage_logit=logit
    )


def with_scores(answer: Answer, ids_K: np.ndarray, searched_2K: np.ndarray) -> Answer:
    """The answer with both parts of the score by which each passage was found."""
    parts = dict(zip(ids_K.tolist(), searched_2K.T.tolist(), strict=True))

    def scored(read: Evidence) -> Evidence:
        if read.passage_id is None:
            return read
        near, words = parts[read.passage_id]
        return replace(read, vector_score=near, word_score=words)

    return replace(answer, evidence=tuple(map(scored, answer.evidence)))


def by_share(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """First what the answer comes from most, p(z|x) p(y|z,x)."""

    def rank(item: Evidence) -> tuple[float, float]:
        p = item.retrieval_probability
        return -p * item.reading_probability, -p

    return tuple(sorted(evidence, key=rank))


def same_words(texts: list[str]) -> list[str]:
    """Answers are the same if this is: letter case, spaces and punctuation around the words do not count."""
    words = [text.casefold().strip(_AROUND) for text in texts]
    joined = "".join(words)
    for gap in (gap for gap in GAPS if gap in joined):
        words = [" ".join(word.split()) if gap in word else word for word in words]
    return words
