"""What a reading gives: an answer, the passages it was read from, and the words it was chosen among.

Plain records that need no torch. Answering makes them, `ask --json` and `evaluate --predictions` write them,
the service sends them (a field's docstring describes it in /openapi.json), and reports read them again.
"""

import re
from dataclasses import dataclass

from realmlm.reading.show import as_html, as_text
from realmlm.sentences import split_sentences

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # line breaks, and what would make a terminal do something


@dataclass(frozen=True)
class Evidence:
    """A passage that was read, and what it says; the null document has no id."""

    passage_id: int | None
    title: str
    passage: str
    start: int | None
    """Where the answer is in the passage, in characters; null if it is not there, or in the title alone."""
    end: int | None
    retrieval_probability: float
    """p(z|x): how much the passage weighs (docs/decisions/001)."""
    reading_probability: float
    """p(y|z,x): how likely it gives this answer."""
    file: str = ""
    """The file the passage comes from."""
    vector_score: float | None = None
    """f(x,z), where the search is hybrid."""
    word_score: float | None = None
    """λ · BM25(x,z), which the words of question and passage add to it."""
    passage_logit: float | None = None
    """g(x,z): does the passage answer the question at all? Above 0: rather yes; null if the model has not
    learned to say."""

    def where(self) -> str:
        """Title, id and file of the passage, on one line."""
        file = f", {self.file}" if self.file else ""
        return CONTROL.sub(" ", f"{self.title or 'passage'} ({self.passage_id}){file}")

    def quote(self, *, most: int = 240) -> tuple[str, str, str]:
        """The sentence with the answer, on one line: what comes before the answer, the answer, what comes
        after it, each side cut to `most` characters. Without an answer, the beginning of the passage."""
        text = CONTROL.sub(" ", self.passage)
        if self.start is None or self.end is None:
            return _beginning(text, most), "", ""
        touched = [(a, b) for a, b in split_sentences(self.passage) if a < self.end and self.start < b]
        first, past = (touched[0][0], touched[-1][1]) if touched else (self.start, self.end)
        before = _beginning(text[first : self.start][::-1], most)[::-1]
        return before, text[self.start : self.end], _beginning(text[self.end : past], most)


@dataclass(frozen=True)
class Words:
    """Words that could stand there, with their probability."""

    words: str
    probability: float


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer with p(y|x), and the passages that were read, those with most p(z|x) p(y|z,x) first."""

    answer: str
    probability: float
    evidence: tuple[Evidence, ...]
    others: tuple[Words, ...] = ()
    """The next likeliest answers with p(y|x); none for masked sentences."""
    relevance: float | None = None
    """max f(x,z) over what was read: unlike p(y|x) it falls where no passage is about the question."""
    confidence: float | None = None
    """How often such answers were right when the model was calibrated; None: it was not."""
    caution: str = ""
    """What to know before believing it, for example that the documents may not say it; mostly empty."""
    sure: str = ""
    """How sure, in a word, from the confidence: likely, unsure or not found; empty if there is none."""

    def text(self, *, numbers: bool = False) -> str:
        """For a terminal; with `numbers` all passages that were read, and every probability."""
        return as_text(self, numbers=numbers)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)


@dataclass(frozen=True)
class MaskWords:
    """The likeliest wordpieces of one [MASK]."""

    read: tuple[Words, ...]
    """The likeliest wordpieces with retrieval."""
    unread: tuple[Words, ...]
    """The likeliest wordpieces without: from the null document alone, where it was weighed."""


def _beginning(text: str, most: int) -> str:
    """So many characters at most, cut between words where there are several."""
    return text if len(text) <= most else (text[:most].rpartition(" ")[0] or text[:most]) + "…"
