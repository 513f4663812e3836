"""Question → Answer: the one call behind the command, the library and the service."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeVar

import torch

from realmlm.bundled import MINI, model_place, text_place
from realmlm.corpus.documents import DOCUMENT_WORDPIECES, Watch, open_documents
from realmlm.corpus.store import Corpus, Passage
from realmlm.device import pick_device
from realmlm.errors import BadInput
from realmlm.index.exact import Index
from realmlm.index.ivf import IVFIndex
from realmlm.index.keep import KeptIndex, index_for, kept_index
from realmlm.log import say
from realmlm.model.int8 import kept_packed
from realmlm.model.realm import Realm
from realmlm.reading.answer import Answer, Answerer, MaskWords
from realmlm.reading.retrieve import LearnedRetriever, NoRetriever, check_readable
from realmlm.sources.article import Article

Out = TypeVar("Out")
# seconds that a question waits for files that changed to be read; then it is answered from what was there
# before
PATIENCE_S = 5.0


class Engine:
    """A model over a corpus or over documents, loaded and ready.

    >>> realm = realmlm.load().read("notes/")
    >>> answer = realm.ask("Which animal is the symbol of Taremo?")
    >>> answer.answer, answer.probability, answer.evidence[0].title
    """

    def __init__(
        self,
        model: str | Path = MINI,
        corpus: str | Path | None = None,
        *,
        docs: str | Path | Sequence[str | Path] = (),
        index: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        """`docs` are folders and files of documents instead of a corpus; with neither, `read` comes first."""
        if corpus is not None and docs:
            raise BadInput(
                "a corpus and documents cannot be searched together; give one of them, or add the documents "
                "with `realmlm edit`"
            )
        place = model_place(model)
        where = pick_device(device)
        with kept_packed() if where.type == "cpu" else nullcontext():
            self.model, self.wordpieces = Realm.from_pretrained(place, device=where)
        self.model.compute_quickly()
        self._index_path = Path(index) if index else None
        self._state: _State | None = None
        self._watch: Watch | None = None  # where documents are searched
        self._catching_up: Future[tuple[_State, Watch]] | None = None
        self._trouble = ""  # why what changed could not be taken up, as it was said
        if corpus is not None:
            known = Corpus.open(corpus)
            check_readable(str(place), self.model, self.wordpieces, known)
            self._state = self._opened(known)
        elif docs:
            self.read(docs)

    def read(self, *docs: str | Path | Sequence[str | Path]) -> "Engine":
        """Answer from these folders and files from now on, beside what was read before; what changes in them
        later is known within seconds.

        What is made of them is kept in a cache: only what changed is embedded again. "pocket" is the
        encyclopedia that comes with realmlm.
        """
        if self._state is not None and self._watch is None:
            raise BadInput(
                f"{self.corpus.folder} is being searched; add documents to it with `realmlm edit`, or load "
                "the model without it"
            )
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
            corpus = open_documents(watch.places, self.wordpieces, max_wordpieces=longest, held=held)
            return self._opened(corpus, others=corpus.folder.parent), watch

    def _opened(self, corpus: Corpus, *, others: Path | None = None) -> "_State":
        kept = kept_index(self.model, self.wordpieces, corpus, path=self._index_path, others=others)
        retriever = LearnedRetriever.settled(self.model, self.wordpieces, kept.index)
        return _State(kept, Answerer(self.model, self.wordpieces, corpus, retriever))

    @property
    def _known(self) -> "_State":
        if self._state is None:
            raise BadInput(
                'nothing has been read yet; .read("notes/") a folder or file of yours, or '
                ".read(realmlm.pocket), an encyclopedia"
            )
        return self._state

    @property
    def _answerer(self) -> Answerer:
        return self._known.answerer

    @property
    def index(self) -> Index:
        """What it is searched with."""
        return self._known.kept.index

    @property
    def corpus(self) -> Corpus:
        """What is searched."""
        return self._answerer.corpus

    def ask(self, question: str, *, read: int = 5) -> Answer:
        """The answer to a question, from the `read` best passages."""
        return self.ask_all([question], read=read)[0]

    def ask_all(self, questions: list[str], *, read: int = 5) -> list[Answer]:
        """Answers to several questions, worked out together."""
        _check_text(questions)
        self.follow()
        return self._answerer.ask(questions, read=self._at_most(read))

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
        _check_text(sentences)
        self.follow()
        return [filled for sentence in sentences for filled in self._fill(sentence, read=read)]

    def _fill(self, sentence: str, *, read: int) -> Iterable[tuple[Answer, list[MaskWords]]]:
        """One after the other: of every mask in every passage the whole vocabulary is held at once."""
        queries = [self._answerer.sentence(sentence)]
        retrieved = self._answerer.retriever(queries, self._at_most(read))
        reading = self._answerer.read_masks(queries, retrieved)
        return zip(
            self._answerer.fill_from(reading, retrieved), self._answerer.mask_words(reading), strict=True
        )

    @property
    def editable(self) -> bool:
        """Can passages be changed here? Those of documents follow their files."""
        return self._watch is None

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
        """Change passages for good: the next answer knows. Gives the ids of the added ones."""
        if not self.editable:
            raise BadInput("passages of documents come from their files; change the files")
        self.follow()
        corpus, added = self.corpus.edit(add=add, replace=replace, remove=remove)
        self._follow(corpus)
        return added

    def follow(self) -> None:
        """Take up what others changed since: edits of a corpus at once, files of documents within seconds.
        Who asks or edits does it first.

        What takes long to read is read in the background. Until then, and where something cannot be taken up,
        which is said once, the former state goes on answering. An edit is tried again each time, files when
        they change again.
        """
        if self._state is None:
            return
        try:
            current = self._follow_edits() if self._watch is None else self._follow_files(self._watch)
        # whatever it is: a question that the former state can answer must not fail for it
        except Exception as error:
            why = str(error) or type(error).__name__
            # without the name of a file, which may be another each time
            trouble = getattr(error, "strerror", None) or why
            if trouble != self._trouble:
                say(f"changes could not be loaded, answers come from what was there before: {why}")
            self._trouble = trouble
        else:
            self._trouble = "" if current else self._trouble

    def _follow_edits(self) -> bool:
        if (newest := self.corpus.newest()) is not self.corpus:
            self._follow(newest)
        return True

    def _follow_files(self, watch: Watch) -> bool:
        """Was something taken up just now?"""
        if self._catching_up is None:
            if not watch.changed():
                return False
            self._catching_up = _in_background(lambda: self._read(watch.places))
            wait([self._catching_up], PATIENCE_S)
        if not self._catching_up.done():
            return False
        ended = self._catching_up
        self._catching_up = None
        self._state, self._watch = ended.result()
        return True

    def _follow(self, corpus: Corpus) -> None:
        """Answer from this later state of the corpus from now on. If it fails, the earlier one stays."""
        if self._known.kept.follow(corpus):
            self._answerer.corpus = corpus
        else:
            self._state = self._opened(corpus)

    def find(self, text: str, *, limit: int = 20) -> list[Passage]:
        """The first passages with this in title, text or source, upper and lower case alike."""
        self.follow()
        return self.corpus.find(text, limit=limit)

    def _at_most(self, read: int) -> int:
        if read < 1:
            raise BadInput(f"cannot read {read} passages; choose --read 1 or more")
        return min(read, len(self.corpus))


def _check_text(texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f'a question or sentence must be text, not {text!r}; ask with words: "Who …?"')


@dataclass(frozen=True)
class _State:
    """What questions are answered from."""

    kept: KeptIndex
    answerer: Answerer


def _in_background(work: Callable[[], Out]) -> "Future[Out]":
    """Work in a thread that does not keep the process alive."""
    future: Future[Out] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def make_index(
    *, model: Path, corpus: Path, out: Path | None, kind: str, dtype: str | None, device: str
) -> str:
    """Build an index ahead of its use; gives a line that says what was made."""
    realm, wordpieces = Realm.from_pretrained(model, device=pick_device(device))
    known = Corpus.open(corpus)
    check_readable(str(model), realm, wordpieces, known)
    index = index_for(
        realm, wordpieces, known, path=out, kind=kind, dtype=getattr(torch, dtype) if dtype else None
    )
    made = f"{len(index):,} passages, {index.dim} numbers each"
    if isinstance(index, IVFIndex):
        asked = "for queries made of a quarter of the words of sentences from the passages"
        made += (
            f"; recall against exact search {index.recall:.3f}, the worse of 1 and {index.settings.k} hits, "
            f"{asked}"
        )
    return made
