"""Answers made of what was read, and written as JSON, by processes beside the one that has the model.

Python runs one thread at a time: beside a GPU, which is given its work by that thread, this is most of what
keeps it waiting.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from realmlm.corpus.store import Corpus
from realmlm.errors import Mismatch
from realmlm.log import say
from realmlm.parallel import apply, in_background, sheltered, worker_pool
from realmlm.reading.combine import Combiner, ReadSpans
from realmlm.reading.confidence import Calibration
from realmlm.serve.shapes import Answered

MOST_WRITERS = 4  # processes; each makes some thousand answers a second
PART = 16  # questions that one is given at a time
FEW = 4  # questions; fewer are answered here, sooner than another process could


def bodies(combiner: Combiner, read: ReadSpans) -> list[bytes]:
    """The body of the answer to each question."""
    answers = combiner.answers(read)
    return [Answered(**vars(answer)).model_dump_json().encode() for answer in answers]


class _State(NamedTuple):
    """The state of a corpus, so that another process can open the same."""

    folder: Path
    fingerprint: str
    edits: int

    def opened(self, before: Corpus | None) -> Corpus:
        """The corpus in this state; `before` is one that is open, perhaps in an earlier state."""
        if before is None or (before.folder, before.fingerprint) != self[:2] or before.edits > self.edits:
            before = Corpus.open(self.folder, edits=self.edits)
        if before.fingerprint != self.fingerprint:
            raise Mismatch(f"{self.folder} was rebuilt since the service opened it; start the service again")
        if before.edits == self.edits:
            return before
        return Corpus(self.folder, before.manifest, self.edits, before=before)


def make_writer(
    max_query: int, released: bool, calibration: Calibration | None
) -> Callable[[tuple[_State, ReadSpans]], list[bytes]]:
    """What a process needs to do it."""
    corpus: Corpus | None = None

    def write(item: tuple[_State, ReadSpans]) -> list[bytes]:
        nonlocal corpus
        state, read = item
        corpus = state.opened(corpus)
        return bodies(Combiner(corpus, max_query, released, calibration), read)

    return write


class Writers:
    """Some such processes. Until they are up, and whenever one fails, its work is done in this process."""

    def __init__(self, combiner: Combiner, *, count: int) -> None:
        """`combiner` is as those that will be given, whatever its corpus."""
        self._setting = (combiner.max_query, combiner.released, combiner.calibration)
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._said = ""
        self._starting = in_background(self._start)

    def _start(self) -> None:
        pool = worker_pool(make_writer, self._setting, workers=self._count)
        try:
            with sheltered():
                up = [pool.submit(os.getpid) for _ in range(self._count)]
            for each in up:
                each.result()
        except BrokenExecutor as error:
            self._say(error)
        else:
            self._pool = pool

    def wait(self) -> None:
        """Until they are up, or cannot be."""
        wait([self._starting])

    def close(self) -> None:
        """Let them finish what they were given, then stop them."""
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()

    def bodies(self, combiner: Combiner, read: ReadSpans) -> "Sequence[bytes | Future[bytes]]":
        """The body of the answer to each question, or a future of it."""
        pool = self._pool
        if pool is None or len(read.questions) < FEW:
            return bodies(combiner, read)
        return [body for part in read.parts(PART) for body in self._handed_over(pool, combiner, part)]

    def _handed_over(
        self, pool: ProcessPoolExecutor, combiner: Combiner, read: ReadSpans
    ) -> "list[Future[bytes]]":
        futures: list[Future[bytes]] = [Future() for _ in read.questions]

        def finish(written: "Future[list[bytes]]") -> None:
            try:
                if (error := written.exception()) is not None:
                    self._failed(pool, error)
                texts = written.result() if error is None else bodies(combiner, read)
            except Exception as here_too:
                for future in futures:
                    future.set_exception(here_too)
            else:
                for future, text in zip(futures, texts, strict=True):
                    future.set_result(text)

        corpus = combiner.corpus
        state = _State(corpus.folder, corpus.fingerprint, corpus.edits)
        try:
            with sheltered():
                written = pool.submit(apply, (state, read))
        except BrokenExecutor as error:
            written = Future()
            written.set_exception(error)
        written.add_done_callback(finish)
        return futures

    def _failed(self, pool: ProcessPoolExecutor, error: BaseException) -> None:
        """Say why; where a process died, start others."""
        self._say(error)
        if isinstance(error, BrokenExecutor) and pool is self._pool:
            self._pool = None
            self._starting = in_background(self._start)

    def _say(self, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        if why != self._said:
            say(f"a process that makes answers failed, the service makes them itself: {why}")
        self._said = why
