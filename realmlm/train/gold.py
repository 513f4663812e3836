"""Where the answers stand: found by one pass over the corpus, and written beside it for the next run."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.questions import Question
from realmlm.corpus.store import MAX_CHARACTERS, Corpus
from realmlm.errors import BadInput
from realmlm.evaluation.locate import AnswerMatcher, AnswerWords, Asked
from realmlm.evaluation.matching import answer_spans
from realmlm.log import progress, say
from realmlm.parallel import default_workers, ordered_map
from realmlm.sources.article import Article
from realmlm.storage.arrays import map_arrays, save_arrays

_CHUNK = 512  # passages a worker searches at once
_APART = 2 * MAX_CHARACTERS  # between two texts that are looked at as one
_RARE = 16  # passages to one candidate of a question, above which patterns are looked up when they are needed
_NO_SPANS = np.zeros((0, 2), dtype=np.int64)
_FEW = 8  # chunks; fewer are searched here, sooner than workers could start


class Gold:
    """Questions in wordpieces, and the passages and spans (in wordpieces) that equal one of their answers.

    Spans are counted from the body's first wordpiece. Those of a title, if they are looked for, come before
    it: (−2, 0) are the title's last two wordpieces.
    """

    def __init__(
        self,
        corpus: Corpus,
        asked: list[Question],
        answers: list[np.ndarray],
        arrays: dict[str, np.ndarray],
        given_Q: np.ndarray,
        *,
        titles: bool = False,
    ) -> None:
        """Rows firsts[i] to lasts[i] of `passages` and `spans` are the i-th question's places; questions
        beyond them have patterns, looked for in a passage when it is asked about. `given_Q` are the passages
        that questions came with, −1 for those that came alone: the corpus has them beside its own. With
        `titles`, answers are looked for in titles too."""
        self.corpus = corpus
        self._titles = titles
        self.given_Q = given_Q
        self.texts = [question.text for question in asked]
        self.answers = answers
        self.questions = [corpus.wordpieces.encode(text) for text in self.texts]
        self._firsts = arrays["firsts"]
        self._lasts = arrays["lasts"]
        self._passages = arrays["passages"]
        self._spans = arrays["spans"]
        self.asked = asked
        # by question the passages looked at, ascending: 8 bytes each, for most have nothing
        self._looked_up: dict[int, np.ndarray] = {}
        self._found: dict[tuple[int, int], np.ndarray] = {}  # (question, passage) -> spans, if any

    def __len__(self) -> int:
        return len(self.questions)

    @cached_property
    def first_given(self) -> int:
        """The smallest id of a paragraph that a question came with: no passage of the corpus has one as
        large."""
        return int(self.given_Q[self.given_Q >= 0].min(initial=np.iinfo(np.int64).max))

    def holds(self, question: int, ids_C: np.ndarray) -> np.ndarray:
        """Which of these passages hold an answer of the question."""
        if question >= len(self._firsts):
            self._look_up(question, ids_C)
            return np.array([(question, passage) in self._found for passage in ids_C.tolist()])
        found = self._passages[self._firsts[question] : self._lasts[question]]
        if not len(found):
            return np.zeros(len(ids_C), dtype=bool)
        ids_C = ids_C.astype(found.dtype)
        place = np.searchsorted(found, ids_C)  # found is ascending; np.isin would sort it at every step
        return (place < len(found)) & (found[np.minimum(place, len(found) - 1)] == ids_C)

    def spans(self, question: int, passage: int) -> np.ndarray:
        """Spans [n, 2] of the answers in a passage; in a question's own paragraph the one that is told."""
        if question >= len(self._firsts) or passage == self.given_Q[question]:
            self._look_up(question, np.array([passage]))
            return self._found.get((question, passage), _NO_SPANS)
        first = self._firsts[question]
        last = self._lasts[question]
        start, end = np.searchsorted(self._passages[first:last], [passage, passage + 1]) + first
        return self._spans[start:end]

    def lacking(self, question: int, ids_N: np.ndarray, count: int) -> list[int]:
        """Places of the first `count` of these paragraphs that do not hold an answer of the question; those
        of the corpus are not asked about here."""
        found: list[int] = []
        for place, passage in enumerate(ids_N.tolist()):
            if len(found) == count:
                break
            text = self.corpus.text(passage)
            if passage != self.given_Q[question] and not answer_spans(text, self.asked[question]):
                found.append(place)
        return found

    def _look_up(self, question: int, ids_C: np.ndarray) -> None:
        """Look for the question's patterns in those of the passages where that was not done yet."""
        before = self._looked_up.get(question, np.zeros(0, dtype=np.int64))
        new = np.setdiff1d(ids_C, before)
        for passage in new.tolist():
            asked = self.asked[question]
            own = passage == self.given_Q[question] and asked.start is not None
            spans = self._told_span(passage, asked) if own else _NO_SPANS
            spans = spans if len(spans) else self._spans_in(passage, asked)
            if len(spans):
                self._found[question, passage] = spans
        if len(new):
            self._looked_up[question] = np.union1d(before, new)

    def _told_span(self, passage: int, question: Question) -> np.ndarray:
        """Where the answer begins by what the question says of its paragraph [n, 2]: other places with the
        same words say something else, as the other sevens of a table do."""
        text = self.corpus.text(passage)
        told = (question.start or 0) - max(question.context.find(text), 0)
        found = [(start, end) for start, end in answer_spans(text, question) if start <= told < end]
        starts_n, ends_n = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return _in_wordpieces([self.corpus.token_chars(passage)], np.zeros_like(starts_n), starts_n, ends_n)

    def _spans_in(self, passage: int, question: Question) -> np.ndarray:
        """Where its answers stand in a passage [n, 2], found by looking through it."""
        parts = [(self.corpus.text(passage), self.corpus.token_chars(passage), 0)]
        if self._titles:
            title, chars_T2 = _title(self.corpus, passage)
            parts.insert(0, (title, chars_T2, len(chars_T2)))
        spans = [_NO_SPANS]
        for text, chars_T2, before in parts:
            found = answer_spans(text, question)
            starts_n, ends_n = np.array(found, dtype=np.int64).reshape(-1, 2).T
            spans_n2 = _in_wordpieces([chars_T2], np.zeros_like(starts_n), starts_n, ends_n)
            spans.append(spans_n2[spans_n2[:, 0] < spans_n2[:, 1]] - before)
        return np.concatenate(spans)


def locate_answers(
    corpus: Corpus, questions: list[Question], *, candidates: int | None = None, titles: bool = False
) -> Gold:
    """Find every answer of every question in every passage; the result stays beside the corpus for the next
    run.

    Questions whose answer stands nowhere are left out of training, and counted. A pattern costs a hundred
    times what a string does: if only a small part of the passages will be asked about (`candidates` for each
    question), patterns are looked up then and not before. With `titles`, an answer may stand in a title too.
    """
    questions = [_worth_finding(question) for question in questions]
    later = candidates is not None and candidates * _RARE < len(corpus)
    patterns = [question for question in questions if question.is_regex and later]
    questions = [question for question in questions if not (question.is_regex and later)]
    asked_for = [(question.text, question.answers, question.is_regex) for question in questions]
    where = " in titles too" if titles else ""
    fingerprint = hashlib.sha256((repr(asked_for) + where).encode()).hexdigest()

    def find() -> dict[str, np.ndarray]:
        return _locate(corpus, questions, titles=titles)

    arrays = kept_beside(corpus, "answers", sought="questions", fingerprint=fingerprint, find=find)
    found = arrays["questions"][np.flatnonzero(np.diff(arrays["questions"], prepend=-1))]
    corpus, given = with_given(corpus, questions)
    kept = np.union1d(found, list(given)).astype(np.int64)
    if not len(kept) and not patterns:
        nothing = "none of the answers occurs in the corpus: nothing to learn from"
        raise BadInput(f"{nothing}; give questions about these documents")
    say(f"{len(found):,} of {len(questions):,} questions have an answer in the corpus")
    if given:
        say(f"{len(given):,} come with the paragraph that they are asked of, and read it")
    if patterns:
        say(f"{len(patterns):,} more have patterns, which are looked for in the passages retrieved")
    firsts, lasts = (np.searchsorted(arrays["questions"], kept, side=side) for side in ("left", "right"))
    answers = [
        _first_answer(corpus, arrays, int(first), questions[number])
        for number, first in zip(kept, firsts, strict=True)
    ]
    answers += [np.zeros(0, dtype=np.int64)] * len(patterns)  # not known: nothing to learn by heart
    asked = [*(questions[number] for number in kept), *patterns]
    given_Q = np.array([given.get(number, -1) for number in kept.tolist()] + [-1] * len(patterns))
    places = arrays | {"firsts": firsts, "lasts": lasts}
    return Gold(corpus, asked, answers, places, given_Q, titles=titles)


def with_given(corpus: Corpus, questions: list[Question]) -> tuple[Corpus, dict[int, int]]:
    """The corpus with the paragraphs that questions come with beside its own passages, and by question the
    passage of its paragraph in which the answer stands; without those where it does not."""
    numbers = [number for number, question in enumerate(questions) if question.context]
    if not numbers:
        return corpus, {}
    articles = {number: Article(questions[number].title, questions[number].context) for number in numbers}
    different = list(dict.fromkeys(articles.values()))
    more, ids = corpus.with_passages(different)
    passages = dict(zip(different, ids, strict=True))
    found = {}
    for number, article in articles.items():
        if (passage := _passage_of(more, passages[article], questions[number])) is not None:
            found[number] = passage
    if missing := len(numbers) - len(found):
        say(f"{missing:,} do not have their answer in their paragraph; they are asked without it")
    return more, found


def _passage_of(corpus: Corpus, passages: list[int], question: Question) -> int | None:
    """The passage in which the answer begins where it is said to, or the first in which it stands."""
    holding = [passage for passage in passages if answer_spans(corpus.text(passage), question)]
    past = 0
    for passage in passages:
        text = corpus.text(passage)
        begins = question.context.find(text, past)
        past = begins + len(text)
        if question.start is not None and begins <= question.start < past and passage in holding:
            return passage
    return holding[0] if holding else None


def _title(corpus: Corpus, passage: int) -> tuple[str, np.ndarray]:
    """A passage's title as far as it is read, and the characters of its wordpieces [T, 2]."""
    chars_T2 = corpus.title_chars(passage)
    return corpus[passage].title[: int(chars_T2[:, 1].max(initial=0))], chars_T2


def _in_wordpieces(
    chars: list[np.ndarray], text_N: np.ndarray, starts_N: np.ndarray, ends_N: np.ndarray
) -> np.ndarray:
    """Spans of characters in texts as spans of the wordpieces they touch [N, 2]; those that touch none end
    where they begin, or before. `chars` has the characters of each text's wordpieces."""
    lengths_P = np.array([len(chars_T2) for chars_T2 in chars])
    texts_T = np.repeat(np.arange(len(chars)), lengths_P)
    chars_T2 = np.concatenate(chars) + texts_T[:, None] * _APART  # as if the texts were one
    firsts_N = np.searchsorted(chars_T2[:, 1], starts_N + text_N * _APART, side="right")
    lasts_N = np.searchsorted(chars_T2[:, 0], ends_N + text_N * _APART, side="left")
    begins_P = np.cumsum(lengths_P) - lengths_P
    return np.stack([firsts_N, lasts_N], axis=1) - begins_P[text_N, None]


def _worth_finding(question: Question) -> Question:
    """Without answers that have no letter or digit, such as TriviaQA's commas: they stand everywhere."""
    if question.is_regex:
        return question
    worth = tuple(answer for answer in question.answers if any(letter.isalnum() for letter in answer))
    return replace(question, answers=worth or question.answers)


def _first_answer(corpus: Corpus, arrays: dict[str, np.ndarray], row: int, question: Question) -> np.ndarray:
    """The answer in wordpieces: as given, or for a pattern as it stands in the first passage found."""
    if not question.is_regex:
        return corpus.wordpieces.encode(question.answers[0])
    start, end = arrays["spans"][row].tolist()
    passage = int(arrays["passages"][row])
    tokens = corpus.title_tokens(passage) if start < 0 else corpus.tokens(passage)
    return tokens[start : end or None].astype(np.int64)


def _locate(corpus: Corpus, questions: list[Question], *, titles: bool) -> dict[str, np.ndarray]:
    """Every place where an answer stands, by question, passage and place; one pass in parallel."""
    chunks = [corpus.ids[first : first + _CHUNK] for first in range(0, len(corpus), _CHUNK)]
    asked = Asked.by(questions)
    tables = [np.zeros((0, 4), dtype=np.int32)]
    with TemporaryDirectory() as scratch:
        # a file that all map: what is sent to a process must arrive before the next one is started
        words = Path(scratch) / "words.safetensors"
        save_arrays(words, asked.words._asdict())
        setting = (corpus.folder, corpus.edits, words, asked.patterns, titles)
        found = ordered_map(_finder, setting, chunks, workers=default_workers(), few=_FEW)
        with closing(found) as results, progress("locating answers", len(corpus), unit="passages") as bar:
            for chunk, table_N4 in zip(chunks, results, strict=True):
                tables.append(table_N4)
                bar.advance(len(chunk))
    table_N4 = np.concatenate(tables)
    places = asked.by_question(table_N4[:, 3])
    question_M = np.repeat(np.arange(len(questions), dtype=np.int32), [len(places_n) for places_n in places])
    table_M4 = np.concatenate([table_N4[:0], *(table_N4.take(places_n, axis=0) for places_n in places)])
    # a passage has no more characters; spans of titles are below 0
    spans_M2 = table_M4[:, 1:3].astype(np.int32 if titles else np.uint16)
    return {"questions": question_M, "passages": table_M4[:, 0], "spans": spans_M2}


def _finder(
    folder: Path, edits: int, words: Path, patterns: dict[int, Question], titles: bool
) -> Callable[[np.ndarray], np.ndarray]:
    corpus = Corpus.open(folder, edits=edits)
    matcher = AnswerMatcher(AnswerWords(**map_arrays(words)), patterns)

    def in_titles(ids_P: np.ndarray) -> np.ndarray:
        """The same in their titles; those of one article are looked at once."""
        with_title: dict[str, list[int]] = defaultdict(list)
        for passage in corpus.passages(ids_P.tolist()):
            with_title[passage.title].append(passage.id)
        texts, chars = zip(*(_title(corpus, numbers[0]) for numbers in with_title.values()), strict=True)
        answer_N, text_N, starts_N, ends_N = matcher.find(texts).T
        spans_N2 = _in_wordpieces(list(chars), text_N, starts_N, ends_N)
        there_N = spans_N2[:, 0] < spans_N2[:, 1]
        spans_N2 = spans_N2 - np.array([len(chars_T2) for chars_T2 in chars])[text_N, None]
        rows = [np.zeros((0, 4), dtype=np.int64)]
        for text, numbers in enumerate(with_title.values()):
            found_n3 = np.column_stack([spans_N2, answer_N])[there_N & (text_N == text)]
            rows += [np.insert(found_n3, 0, number, axis=1) for number in numbers]
        return np.concatenate(rows)

    def find(ids_P: np.ndarray) -> np.ndarray:
        """(passage, first wordpiece, past the last, answer) of every place in these passages, in order."""
        numbers = ids_P.tolist()
        chars = [corpus.token_chars(number) for number in numbers]
        answer_N, text_N, starts_N, ends_N = matcher.find([corpus.text(number) for number in numbers]).T
        spans_N2 = _in_wordpieces(chars, text_N, starts_N, ends_N)
        table_N4 = np.column_stack([ids_P[text_N], spans_N2, answer_N])[spans_N2[:, 0] < spans_N2[:, 1]]
        table_N4 = np.concatenate([in_titles(ids_P), table_N4]) if titles else table_N4
        return table_N4[np.lexsort(table_N4.T[::-1])].astype(np.int32)

    return find
