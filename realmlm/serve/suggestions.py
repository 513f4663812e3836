"""Questions to begin with, made while others are answered."""

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice

from realmlm.corpus.store import Corpus
from realmlm.defaults import READ
from realmlm.engine import Engine
from realmlm.parallel import in_background
from realmlm.reading.records import Answer
from realmlm.reading.suggest import OFFERED, suggest
from realmlm.serve.worker import Worker


class Suggestions:
    """Questions that the passages can answer, as they are now.

    Nothing is done before someone wants them. Then they are made in a thread of their own, and the model is
    asked through the worker, a few at a time: whoever asks meanwhile waits for a few questions at most.
    """

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self._engine = engine
        self._worker = worker
        self._state: tuple[str, int] | None = None  # of the corpus that they are made from
        self._making: Future[None] | None = None
        self.questions: list[str] = []
        """Those made so far, or before."""

    def are_made(self) -> bool:
        """Are they made, of the passages that there are now? If not, that has begun."""
        corpus = self._engine.corpus
        state = (corpus.fingerprint, corpus.edits)
        if self._making is not None:
            if not self._making.done():
                return False
            if self._making.exception() is not None:
                self._state = None  # the service is overloaded, or stopping: when they are wanted again
            self._making = None
        if state == self._state:
            return True
        self._state = state
        self._making = in_background(lambda: self._make(corpus))
        return False

    def _make(self, corpus: Corpus) -> None:
        found: list[str] = []
        for question in islice(suggest(corpus, self._ask), OFFERED):
            found = [*found, question]
            self.questions = found
        self.questions = found  # none, perhaps

    def _ask(self, questions: list[str]) -> Sequence[Answer]:
        def work(several: list[str]) -> list[Answer]:
            return self._engine.ask(several, read=READ)

        asked = [self._worker.together(work, question, key=("ask", False, READ)) for question in questions]
        return [one.result() for one in asked]
