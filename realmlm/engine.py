"""Question → Answer: the one call behind the command, the library and the service."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
from torch import Tensor

from realmlm.bundled import MINI, model_place, text_place
from realmlm.corpus.documents import DOCUMENT_WORDPIECES, Watch, open_documents
from realmlm.corpus.store import Corpus, Passage
from realmlm.defaults import READ, SHOWN
from realmlm.device import pick_device
from realmlm.errors import BadInput
from realmlm.index.exact import Index
from realmlm.index.keep import Kept
from realmlm.index.shared import SharedPlace, index_place
from realmlm.log import say
from realmlm.model.realm import Realm
from realmlm.names import short_names
from realmlm.parallel import in_background
from realmlm.reading.answer import Answer, Answerer, MaskWords, check_reranks
from realmlm.reading.combine import Combiner, ReadSpans
from realmlm.reading.records import Evidence
from realmlm.reading.retrieve import (
    LearnedRetriever,
    NoRetriever,
    Retrieved,
    Retriever,
    check_readable,
    hybrid_of,
    index_of,
    open_to_answer,
    retrieve,
)
from realmlm.reading.suggest import OFFERED, suggest
from realmlm.sources.article import Article

T = TypeVar("T")
PATIENCE_S = 5.0  # seconds that a question waits for changed files to be read; then the former state answers


@dataclass(frozen=True, kw_only=True)
class Found(Passage):
    """A passage that a search found, and how well it fits."""

    score: float
    """f(x,z), with λ · BM25(x,z) added where the search is hybrid."""
    retrieval_probability: float
    """p(z|x) among the passages found, by the retriever alone: no reader has a say in it."""
    vector_score: float | None = None
    """f(x,z), where the search is hybrid."""
    word_score: float | None = None
    """λ · BM25(x,z), which the words of question and passage add to it."""

    def as_json(self) -> dict[str, Any]:
        """As `search --json` prints it and the service sends it."""
        return {**vars(self), "file": self.file}

    def __str__(self) -> str:
        numbers = f"p(z|x) {self.retrieval_probability:.3f}   "
        if self.vector_score is None:
            numbers += f"f {self.score:.1f}"
        else:
            numbers += f"f {self.vector_score:.1f} + words {self.word_score:.1f}"
        shown = Evidence(self.id, self.title, self.text, None, None, self.retrieval_probability, 0, self.file)
        return f"  {numbers}   {shown.where()}\n      {shown.quote()[0]}"


class Engine:
    """A model over a corpus or over documents, loaded and ready; `realmlm.load` makes one.

    ```python
    engine = realmlm.load().read("notes/")
    answer = engine.ask("Which animal is the symbol of Taremo?")
    answer.answer, answer.probability, answer.evidence[0].title
    ```
    """

    def __init__(
        self,
        model: str | Path | Realm = MINI,
        corpus: str | Path | Corpus | None = None,
        *,
        docs: str | Path | Sequence[str | Path] = (),
        index: str | Path | SharedPlace | None = None,
        retriever: Retriever | None = None,
        hybrid: float | None = None,
        rerank: int = 0,
        device: str = "auto",
    ) -> None:
        """`model` is a folder, a `Realm`, or `mini`, the one that comes with realmlm. `corpus` is one that
        `realmlm corpus` made, `docs` a folder or file of documents, or several, as in `.read(docs)`. `index`
        is one that `realmlm index` wrote elsewhere, or one that another system holds, "lance:PATH" or
        "postgres:DSN" (`SharedPlace.of(place, filters)` finds some of its passages alone). `retriever` takes
        the place of the model's own: any callable of the form of `realmlm.reading.retrieve.Retriever`.
        `hybrid` is the weight λ of word matching in the search, f + λ · BM25, in place of the model's own; 0:
        none. With `rerank`, so many passages are retrieved for a question, and those that the reader finds
        best are answered from."""
        if hybrid is not None and hybrid < 0:
            raise BadInput(f"hybrid is a weight of 0 or more, not {hybrid}")
        if corpus is not None and docs:
            both = "a corpus and documents cannot be searched together"
            raise BadInput(f"{both}; give one of them, or add the documents with `realmlm edit`")
        where = pick_device(device)
        name = "the given model" if isinstance(model, Realm) else str(model_place(model))
        self.model: Realm
        if isinstance(model, Realm):
            self.model = model.to(where).eval()
        else:
            self.model = open_to_answer(model, where)
        self._index_place = None if not index else index_place(index)
        self._retriever = retriever
        self._hybrid = hybrid
        check_reranks(self.model, rerank)
        self._rerank = rerank
        self._state: _State | None = None
        self._watch: Watch | None = None  # where documents are searched
        self._catching_up: Future[tuple[_State, Watch]] | None = None
        self._said = set[str]()  # of documents that could not be read
        self._trouble = ""  # why what changed could not be taken up, as it was said
        if corpus is not None:
            opened = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
            check_readable(self.model, opened, name=name)
            self._state = self._opened(opened)
        elif docs:
            self.read(docs)

    def read(self, *docs: str | Path | Sequence[str | Path]) -> "Engine":
        """Answer from these folders and files from now on, beside what was read before, and as they change.

        What is made of them is cached: only what changed is embedded again. "pocket" is the encyclopedia that
        comes with realmlm.
        """
        if self._state is not None and self._watch is None:
            edit = "add documents to it with `realmlm edit`, or load the model without it"
            raise BadInput(f"{self.corpus.folder} is being searched; {edit}")
        if self._catching_up is not None:
            wait([self._catching_up])
            self._catching_up = None
        named = [place for some in docs for place in ([some] if isinstance(some, str | Path) else some)]
        places = [*(self._watch.places if self._watch else []), *map(text_place, named)]
        if not places:
            raise BadInput("name a folder or file to read")
        self._state, self._watch = self._read(places)
        return self

    def _read(self, places: Sequence[Path]) -> "tuple[_State, Watch]":
        """Documents as they are now."""
        watch = Watch(places)  # looked at before they are read: what changes meanwhile is seen later
        longest = min(DOCUMENT_WORDPIECES, self.model.config.max_passage)
        with ExitStack() as held:
            corpus = open_documents(
                watch.places, self.model.wordpieces, max_wordpieces=longest, held=held, said=self._said
            )
            return self._opened(corpus, others=corpus.folder.parent), watch

    def _opened(self, corpus: Corpus, *, others: Path | None = None) -> "_State":
        if self._retriever is not None:
            return _State(None, Answerer(self.model, corpus, self._retriever, rerank=self._rerank))
        kept = index_of(self.model, corpus, path=self._index_place, others=others, follow=True)
        hybrid = hybrid_of(self.model, kept.corpus, self._hybrid, only=kept.found)
        own = LearnedRetriever.settled(self.model, kept.index, hybrid)
        rerank = self._rerank if kept.found is None else min(self._rerank, len(kept.found))
        return _State(kept, Answerer(self.model, kept.corpus, own, rerank=rerank))

    @property
    def _current(self) -> "_State":
        if self._state is None:
            how = '.read("notes/") a folder or file of yours, or .read(realmlm.pocket), an encyclopedia'
            raise BadInput(f"nothing has been read yet; {how}")
        return self._state

    @property
    def _answerer(self) -> Answerer:
        return self._current.answerer

    @property
    def index(self) -> Index:
        """What the model's own retriever searches."""
        kept = self._current.kept
        if kept is None:
            raise BadInput("this engine retrieves with a retriever of its own, which has no index here")
        return kept.index

    @property
    def corpus(self) -> Corpus:
        """What is searched."""
        return self._answerer.corpus

    @overload
    def ask(self, question: str, *, read: int = READ) -> Answer: ...
    @overload
    def ask(self, question: list[str], *, read: int = READ) -> list[Answer]: ...
    def ask(self, question: str | list[str], *, read: int = READ) -> Answer | list[Answer]:
        """The answer to a question from the `read` best passages; several questions are answered together."""
        answers = self.ask_through(Combiner.answers, _texts(question), read=read)
        return answers[0] if isinstance(question, str) else answers

    def ask_through(
        self, combine: Callable[[Combiner, ReadSpans], Sequence[T]], questions: list[str], *, read: int = READ
    ) -> list[T | Answer]:
        """For each question what `combine` makes of what was read, for example in another process; an answer
        where the retriever offers nothing."""
        self.follow()
        return self._answerer.ask_through(combine, questions, read=self._at_most(read))

    def ask_without_reading(self, questions: list[str]) -> list[Answer]:
        """What the reader says by itself, no passage read."""
        queries = [self._answerer.query(question) for question in _texts(questions)]
        return self._answerer.read_spans(queries, NoRetriever()(queries, 0))

    @overload
    def fill(self, sentence: str, *, read: int = READ) -> Answer: ...
    @overload
    def fill(self, sentence: list[str], *, read: int = READ) -> list[Answer]: ...
    def fill(self, sentence: str | list[str], *, read: int = READ) -> Answer | list[Answer]:
        """What stands at the [MASK]s of a sentence, or of several, each [MASK] one wordpiece; from the `read`
        best passages and the null document."""
        filled = [answer for answer, _ in self.fill_with_words(_texts(sentence), read=read)]
        return filled[0] if isinstance(sentence, str) else filled

    def fill_with_words(
        self, sentences: Sequence[str], *, read: int = READ
    ) -> list[tuple[Answer, list[MaskWords]]]:
        """The same for several sentences, with the likeliest words of each mask."""
        self.follow()
        filled: list[tuple[Answer, list[MaskWords]]] = []
        # one by one: the vocabulary of every mask in every passage is held
        for sentence in _texts(sentences):
            queries = [self._answerer.sentence(sentence)]
            retrieved = retrieve(self._answerer.retriever, queries, self._at_most(read))
            reading = self._answerer.read_masks(queries, retrieved)
            answers = self._answerer.fill_from(reading, retrieved)
            filled += zip(answers, self._answerer.mask_words(reading), strict=True)
        return filled

    @overload
    def search(self, query: str, k: int = READ) -> list[Found]: ...
    @overload
    def search(self, query: list[str], k: int = READ) -> list[list[Found]]: ...
    def search(self, query: str | list[str], k: int = READ) -> list[Found] | list[list[Found]]:
        """The `k` best passages for a question, or a sentence with [MASK], best first; nothing is read.
        Several are searched for together."""
        texts = _texts(query)
        if not texts:
            return []
        self.follow()
        retrieved = retrieve(
            self._answerer.retriever, self._answerer.queries(texts), self._at_most(k, "k is 1 or more")
        )
        found = [self._found(retrieved.some(np.array([row]), k)) for row in range(len(texts))]
        return found[0] if isinstance(query, str) else found

    def _found(self, retrieved: Retrieved) -> list[Found]:
        """What was retrieved for one query."""
        count = retrieved.ids_BK.shape[1]
        parts = [(None, None)] * count
        if (parts_2BK := retrieved.parts_2BK) is not None:
            parts = parts_2BK[:, 0].T.tolist()
        return [
            Found(
                **vars(self.corpus[number]),
                score=score,
                retrieval_probability=probability,
                vector_score=vector,
                word_score=word,
            )
            for number, score, probability, (vector, word) in zip(
                retrieved.ids_BK[0].tolist(),
                retrieved.scores_BK[0].tolist(),
                retrieved.scores_BK[0].softmax(0).tolist(),
                parts,
                strict=True,
            )
        ]

    def suggestions(self, count: int = OFFERED) -> list[str]:
        """Up to `count` questions made from sentences of what is searched, each asked and answered; seconds.
        There are fewer, or none, where the sentences are of no kind that the rules know."""
        self.follow()
        return list(islice(suggest(self.corpus, self.ask), count))

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Literal["query", "passage"] = "query",
        titles: Sequence[str] | None = None,
    ) -> Tensor:
        """The vectors of texts [N, D], by the query tower or the document tower; f(x,z) is the inner product
        of one of each. The index holds vectors of passages with their `titles`."""
        several = _texts(texts)
        if kind == "query":
            return self.model.embed_queries(several)
        return self.model.embed_passages(several, titles)

    @property
    def combiner(self) -> Combiner:
        """What makes answers of what was read."""
        return self._answerer.combiner

    @property
    def at_once(self) -> int:
        """How many questions are best asked together: more are read for in several parts."""
        return self._answerer.at_once

    @property
    def editable(self) -> bool:
        """Can passages be changed here? Those of documents follow their files, and a corpus may be one that
        can only be read."""
        return self._watch is None and os.access(self.corpus.folder, os.W_OK)

    @property
    def follows_files(self) -> bool:
        """Does it answer from documents, and not from a corpus?"""
        return self._watch is not None

    @property
    def sources(self) -> list[str]:
        """The names of the folders and files, or of the corpus, that it answers from."""
        places = [self.corpus.folder] if self._watch is None else list(self._watch.places)
        return short_names(places)

    @property
    def up_to_date(self) -> bool:
        """Was all that changed taken up? If not, it is being read, or could not be and it was said why."""
        return not self._trouble and self._catching_up is None

    def edit(
        self,
        *,
        add: Iterable[Article] = (),
        replace: Mapping[int, Article] | None = None,
        remove: Iterable[int] = (),
    ) -> list[int]:
        """Change passages for good: the next answer knows. Gives the ids of the added ones.

        Once the corpus has the change, this succeeds: where the index cannot follow at once, on a full disk
        for example, `up_to_date` is false, and it is tried again before each answer.
        """
        if self._watch is not None:
            raise BadInput("passages of documents come from their files; change the files")
        add = list(add)
        if wrong := [one for one in (*add, *(replace or {}).values()) if not isinstance(one, Article)]:
            raise BadInput(f"a passage is given as Article(title, text, source), not as {wrong[0]!r}")
        self.follow()
        corpus, added = self.corpus.newest().edit(add=add, replace=replace, remove=remove)
        self._attempt(lambda: self._follow(corpus))
        return added

    def follow(self) -> None:
        """Take up what others changed: edits of a corpus at once, files of documents within seconds.

        Questions and edits do this first. What takes long to read is read in the background. Until then, and
        where something cannot be taken up, which is said once, the former state goes on answering. An edit is
        tried again each time, files when they change again.
        """
        if self._state is not None:
            watch = self._watch
            self._attempt(self._follow_edits if watch is None else lambda: self._follow_files(watch))

    def _attempt(self, follow: Callable[[], bool]) -> None:
        try:
            taken_up = follow()
        # whatever it is: a question that the former state can answer must not fail for it
        except Exception as error:
            why = str(error) or type(error).__name__
            # without the name of a file, which may be another each time
            trouble = getattr(error, "strerror", None) or why
            if trouble != self._trouble:
                say(f"changes could not be loaded, answers come from what was there before: {why}")
            self._trouble = trouble
        else:
            self._trouble = "" if taken_up else self._trouble

    def _follow_edits(self) -> bool:
        newest = self.corpus.newest()
        return newest is self.corpus or self._follow(newest)

    def _follow_files(self, watch: Watch) -> bool:
        """Was something taken up just now?"""
        if self._catching_up is None:
            if not watch.changed():
                return False
            self._catching_up = in_background(lambda: self._read(watch.places))
            wait([self._catching_up], PATIENCE_S)
        if not self._catching_up.done():
            return False
        ended = self._catching_up
        self._catching_up = None
        self._state, self._watch = ended.result()
        return True

    def _follow(self, corpus: Corpus) -> bool:
        """Answer from this later state of the corpus from now on. If it fails, the earlier one stays."""
        kept = self._current.kept
        if kept is None:
            self._answerer.corpus = corpus
            return True
        try:
            same = kept.follow(corpus)
        finally:  # what others embedded may be taken up, even where the rest fails
            own = self._answerer.retriever
            changed = kept.corpus is not self._answerer.corpus
            if changed and isinstance(own, LearnedRetriever) and own.hybrid is not None:
                own.hybrid.words.follow(kept.corpus, only=kept.found)
            self._answerer.corpus = kept.corpus
        if not same:
            self._state = self._opened(corpus)
        return True

    def find(self, text: str, *, limit: int = SHOWN) -> list[Passage]:
        """The first passages with this in title, text or source, upper and lower case alike."""
        self.follow()
        return self.corpus.find(text, limit=limit)

    def around(self, number: int, *, count: int, corpus: Corpus | None = None) -> list[Passage]:
        """A passage between up to `count` others before and after it from the same file, in their order; in
        another state of the `corpus`, if it is given."""
        corpus = corpus or self.corpus
        ids = corpus.ids
        here = corpus[number]
        place = int(np.searchsorted(ids, number))
        before = corpus.passages(ids[max(0, place - count) : place][::-1].tolist())
        after = corpus.passages(ids[place + 1 : place + 1 + count].tolist())

        def file(passage: Passage) -> str:
            return re.sub(r":\d+\Z", "", passage.source)  # without the line, of JSON lines for example

        first, last = (list(takewhile(lambda one: file(one) == file(here), some)) for some in (before, after))
        return [*reversed(first), here, *last]

    def _at_most(self, read: int, cure: str = "choose --read 1 or more") -> int:
        if read < 1:
            raise BadInput(f"cannot read {read} passages; {cure}")
        kept = self._current.kept
        return min(read, len(self.corpus if kept is None else kept.index))


def _texts(given: str | Sequence[str]) -> list[str]:
    """One text or several, as a list; anything else is refused."""
    texts = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f'a question or sentence must be text, not {text!r}; ask with words: "Who …?"')
        try:
            text.encode()
        except UnicodeEncodeError as error:  # as Python has what was typed elsewhere than in UTF-8
            shown = text.encode(errors="backslashreplace").decode()
            odd = f"{shown!r} is not UTF-8 (character {error.start + 1})"
            raise BadInput(f"{odd}; type it again in a terminal that is set to UTF-8") from error
    return texts


@dataclass(frozen=True)
class _State:
    """What questions are answered from."""

    kept: Kept | None
    """None: the retriever is not the model's own."""
    answerer: Answerer


load = Engine
"""A model, ready to read and to be asked: `realmlm.load().read("notes/").ask("…")`."""
