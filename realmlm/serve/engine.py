"""Question → Answer: the one call behind the command, the library and the service."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from realmlm.corpus.sentences import split_sentences
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import NotEnough
from realmlm.model.answering import Answer, Answerer
from realmlm.model.realm import Realm
from realmlm.model.retrieval import LearnedRetriever, check_readable, index_for


class Engine:
    """A model over a corpus, loaded and ready.

    >>> realm = realmlm.load("model", "corpus")
    >>> answer = realm.ask("Which animal is the symbol of Taremo?")
    >>> answer.answer, answer.probability, answer.evidence[0].title
    """

    def __init__(self, model: str | Path, corpus: str | Path, *, index: str | Path | None = None, device: str = "auto") -> None:
        self.model, self.wordpieces = Realm.from_pretrained(model, device=pick_device(device))
        self.corpus = Corpus.open(corpus)
        check_readable(str(model), self.model, self.wordpieces, self.corpus)
        self.index = index_for(self.model, self.wordpieces, self.corpus, path=Path(index) if index else None)
        self._answerer = Answerer(self.model, self.wordpieces, self.corpus, LearnedRetriever(self.model, self.wordpieces, self.index))

    def ask(self, question: str, *, read: int = 5) -> Answer:
        """The answer to a question, from the `read` best passages."""
        self._check(read)
        return self._answerer.ask([question], read=read)[0]

    def fill(self, sentence: str, *, read: int = 5) -> Answer:
        """What stands at the [MASK]s of a sentence, from the `read` best passages and the null document."""
        self._check(read)
        return self._answerer.fill([sentence], read=read)[0]

    def _check(self, read: int) -> None:
        if not 1 <= read <= len(self.corpus):
            raise NotEnough(f"{read} passages cannot be read, the corpus has {len(self.corpus)}; choose --read between 1 and that")


def make_index(*, model: Path, corpus: Path, out: Path | None, kind: str, dtype: str, device: str) -> str:
    """Build an index ahead of its use; gives a line that says what was made."""
    realm, wordpieces = Realm.from_pretrained(model, device=pick_device(device))
    known = Corpus.open(corpus)
    check_readable(str(model), realm, wordpieces, known)
    index = index_for(realm, wordpieces, known, path=out, kind=kind, dtype=getattr(torch, dtype))
    recall = getattr(index, "recall", None)
    return f"{len(index):,} passages, {index.dim} numbers each" + (f"; recall@8 against exact search {recall:.3f}" if recall else "")


def as_json(answer: Answer) -> dict[str, Any]:
    return asdict(answer)


def as_text(answer: Answer) -> str:
    """An answer for the terminal: the words, how sure, and where they stand."""
    lines = [f"{answer.answer or '(no answer)'}   p = {answer.probability:.3f}", ""]
    for evidence in answer.evidence:
        numbers = f"p(z|x) {evidence.retrieval_probability:.3f}   p(y|z,x) {evidence.reading_probability:.3f}"
        if evidence.passage_id is None:
            lines.append(f"  {numbers}   without reading anything")
            continue
        lines.append(f"  {numbers}   {evidence.title or 'passage'} ({evidence.passage_id})")
        lines.append(f"      {_quote(evidence.passage, evidence.start, evidence.end)}")
    return "\n".join(lines)


def _quote(text: str, start: int | None, end: int | None, *, most: int = 240) -> str:
    """The sentence the span stands in, the span marked; or the passage's beginning."""
    if start is None or end is None:
        return _line(text[:most]) + ("…" if len(text) > most else "")
    first, last = next(((a, b) for a, b in split_sentences(text) if a <= start < b), (start, end))
    first, last = max(first, start - most), min(max(last, end), end + most)
    return f"{_line(text[first:start])}»{_line(text[start:end])}«{_line(text[end:last])}"


def _line(text: str) -> str:
    return text.replace("\n", " ")
