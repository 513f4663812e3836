"""Question → Answer: the one call behind the command, the library and the service."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from realmlm.corpus.sentences import split_sentences
from realmlm.corpus.store import Article, Corpus, Passage
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough
from realmlm.model.answering import Answer, Answerer, MaskWords
from realmlm.model.realm import Realm
from realmlm.model.retrieval import LearnedRetriever, NoRetriever, check_readable, index_for
from realmlm.serve.documents import open_documents

DOCUMENT_WORDPIECES = 128  # of a passage that is cut from a folder's documents


class Engine:
    """A model over a corpus, loaded and ready.

    >>> realm = realmlm.load("model", "corpus")
    >>> answer = realm.ask("Which animal is the symbol of Taremo?")
    >>> answer.answer, answer.probability, answer.evidence[0].title
    """

    def __init__(
        self,
        model: str | Path,
        corpus: str | Path | None = None,
        *,
        docs: str | Path | None = None,
        index: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        """`docs` is a folder of documents instead of a corpus; what is made of it is kept in a cache."""
        self.model, self.wordpieces = Realm.from_pretrained(model, device=pick_device(device))
        self._index_path = Path(index) if index else None
        known = Corpus.open(corpus) if corpus is not None else self._documents(docs)
        check_readable(str(model), self.model, self.wordpieces, known)
        self._take_up(known)

    def _documents(self, folder: str | Path | None) -> Corpus:
        if folder is None:
            raise BadInput("name what is to be searched: a corpus, or a folder with documents")
        return open_documents(Path(folder), self.wordpieces, max_wordpieces=min(DOCUMENT_WORDPIECES, self.model.config.max_passage))

    def _take_up(self, corpus: Corpus) -> None:
        """Answer from this state of the corpus from now on."""
        self.corpus = corpus
        self.index = index_for(self.model, self.wordpieces, corpus, path=self._index_path)
        self._answerer = Answerer(self.model, self.wordpieces, corpus, LearnedRetriever(self.model, self.wordpieces, self.index))

    def ask(self, question: str, *, read: int = 5) -> Answer:
        """The answer to a question, from the `read` best passages."""
        return self.ask_all([question], read=read)[0]

    def ask_all(self, questions: list[str], *, read: int = 5) -> list[Answer]:
        """Answers to several questions, worked out together."""
        self._check(read)
        return self._answerer.ask(questions, read=read)

    def ask_without_reading(self, questions: list[str]) -> list[Answer]:
        """What the reader says by itself, no passage read."""
        nothing = NoRetriever()
        queries = [self._answerer.query(question) for question in questions]
        return self._answerer.read_spans(queries, nothing(queries, 0))

    def fill(self, sentence: str, *, read: int = 5) -> Answer:
        """What stands at the [MASK]s of a sentence, from the `read` best passages and the null document."""
        return self.fill_all([sentence], read=read)[0][0]

    def fill_all(self, sentences: list[str], *, read: int = 5) -> list[tuple[Answer, list[MaskWords]]]:
        """The same for several sentences, with the likeliest words of each mask."""
        self._check(read)
        queries = [self._answerer.query(sentence) for sentence in sentences]
        retrieved = self._answerer.retriever(queries, read)
        reading = self._answerer.read_masks(queries, retrieved)
        return list(zip(self._answerer.fill_from(reading, retrieved), self._answerer.mask_words(reading), strict=True))

    def edit(self, *, add: Iterable[Article] = (), replace: Mapping[int, Article] | None = None, remove: Iterable[int] = ()) -> list[int]:
        """Change passages for good: the next answer knows. Gives the ids of the added ones."""
        corpus, added = self.corpus.edit(add=add, replace=replace, remove=remove)
        self._take_up(corpus)
        return added

    def find(self, text: str, *, limit: int = 20) -> list[Passage]:
        """Passages with this in title or text, upper and lower case alike, in the order of their ids."""
        wanted = text.casefold()
        passages = (self.corpus[number] for number in self.corpus.ids.tolist())
        return list(islice((p for p in passages if wanted in p.title.casefold() or wanted in p.text.casefold()), limit))

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
