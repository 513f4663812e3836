"""Vectors in a Lance dataset: a folder or an object store that many programs open; searched by its IVF index.

Every change of a dataset is a new version of it. The tag `realmlm` names the one that is whole: it is moved
when data, index and what they are of are all there, so that no reader sees a part of a change.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.errors import ArtefactExists, ArtefactMissing, BadInput, require
from realmlm.index.arrow import columns_of, schema_of
from realmlm.index.shared import COLUMNS, Batch, Check, Condition, Found, State, unchecked
from realmlm.storage.locks import locked

_TAG = "realmlm"
_STATE = "realmlm"  # among the schema's metadata
_AT_ONCE = 10_000  # ids in one condition
_FEWEST = 256  # passages below which an index is not worth while


def _lance() -> Any:
    return require("lance", extra="lance", why="a Lance dataset")


class LanceStore:
    """A dataset at a path or a URI (s3://…)."""

    def __init__(self, address: str) -> None:
        self.address = address if "://" in address else str(Path(address).expanduser().absolute())
        self._dataset: Any = None

    def __str__(self) -> str:
        return f"lance:{self.address}"

    def state(self) -> State:
        try:
            self._dataset = _lance().dataset(self.address, version=_TAG)
        except (ValueError, OSError) as error:
            how = f"realmlm export vectors --corpus CORPUS --to lance {self.address}"
            raise ArtefactMissing(f"no vectors of realmlm in {self}; write them: {how}") from error
        return _state(self._dataset, self)

    def check(self) -> None:
        self._exists(_lance())

    @contextmanager
    def write(self, given: Iterator[Batch], state: State) -> Iterator["_LanceDraft"]:
        lance = _lance()
        with self.locked():
            mode = "overwrite" if self._exists(lance) else "create"
            dataset = lance.write_dataset(
                map(columns_of, given), self.address, schema_of(state.dim), mode=mode
            )
            yield _LanceDraft(dataset)

    def _exists(self, lance: Any) -> bool:
        """Is there a dataset? What someone else made must not be replaced."""
        try:
            dataset = lance.dataset(self.address)
        except (ValueError, OSError):
            if "://" not in self.address and Path(self.address).exists():
                raise ArtefactExists(f"{self.address} exists and is no Lance dataset; name another") from None
            return False
        if list(dataset.schema.names)[: len(COLUMNS)] != list(COLUMNS):
            raise ArtefactExists(f"{self} was not written by realmlm; name another place")
        return True

    def edit(self, written: Batch | None, removed: list[int], state: State) -> None:
        lance = _lance()
        dataset = lance.dataset(self.address, version=_TAG)
        if dataset.version != dataset.latest_version:  # what was cut off, or is no change of ours
            dataset.restore()
        _edit(dataset, written, removed)
        _publish(lance.dataset(self.address), state)
        self.state()

    def search(
        self,
        query_D: np.ndarray,
        k: int,
        *,
        effort: int,
        only: Sequence[Condition],
        check: Check = unchecked,
    ) -> Found:
        check(_state(self._dataset, self))  # the version that `state` has opened, which no one changes
        return _search(self._dataset, query_D, k, effort=effort, only=only)

    def vectors(self, ids: list[int], *, check: Check = unchecked) -> tuple[np.ndarray, np.ndarray]:
        check(_state(self._dataset, self))
        found = [np.zeros(0, np.int64)]
        vectors = [np.zeros((0, self._dim), np.float32)]
        for first in range(0, len(ids), _AT_ONCE):
            some = _among(ids[first : first + _AT_ONCE])
            table = self._dataset.to_table(columns=["id", "vector"], filter=some)
            found.append(table["id"].to_numpy())
            vectors.append(_matrix(table))
        return np.concatenate(found), np.concatenate(vectors)

    def ids(self, only: Sequence[Condition], *, check: Check = unchecked) -> np.ndarray:
        check(_state(self._dataset, self))
        table = self._dataset.to_table(columns=["id"], filter=_clause(self._dataset, only))
        return np.sort(table["id"].to_numpy())

    @property
    def _dim(self) -> int:
        return int(self._dataset.schema.field("vector").type.list_size)

    def locked(self) -> AbstractContextManager[object]:
        if "://" in self.address:  # the object store itself refuses the second of two changes
            return nullcontext()
        place = Path(self.address)
        return locked(place.parent / f".{place.name}.lock")


class _LanceDraft:
    """A version that the tag does not name yet."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        rows = dataset.count_rows()
        self.most_effort = 1
        """Lists that a query looks into."""
        if rows >= _FEWEST:
            self.most_effort = round(rows**0.5)
            lists = {"num_partitions": self.most_effort, "metric": "dot"}
            self._dataset = dataset.create_index("vector", "IVF_FLAT", **lists)

    def search(self, query_D: np.ndarray, k: int, *, effort: int) -> Found:
        return _search(self._dataset, query_D, k, effort=effort, only=())

    def hold(self) -> None:
        """The lock is held since the draft was begun."""

    def edit(self, written: Batch | None, removed: list[int]) -> None:
        _edit(self._dataset, written, removed)

    def publish(self, state: State) -> None:
        _publish(self._dataset, state)
        self._dataset.cleanup_old_versions()  # of two weeks ago and before


def _edit(dataset: Any, written: Batch | None, removed: list[int]) -> None:
    """Change passages of the newest version, which `dataset` is: it is the new one then."""
    if written is not None:
        merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(_with_nulls(columns_of(written), dataset.schema))
        dataset.checkout_latest()
    for first in range(0, len(removed), _AT_ONCE):
        dataset.delete(_among(removed[first : first + _AT_ONCE]))


def _publish(dataset: Any, state: State) -> None:
    """Let the tag name the newest version, with what it holds."""
    dataset.update_schema_metadata({_STATE: state.to_json()})
    name = dataset.tags.update if _TAG in dataset.tags.list() else dataset.tags.create
    name(_TAG, dataset.version)


def _state(dataset: Any, store: LanceStore) -> State:
    state = State.of((dataset.schema.metadata or {}).get(_STATE.encode()))
    if state is None:
        raise ArtefactMissing(f"{store} does not say what its vectors are of; export them again")
    return state


def _search(dataset: Any, query_D: np.ndarray, k: int, *, effort: int, only: Sequence[Condition]) -> Found:
    nearest = {"column": "vector", "q": query_D, "k": k, "metric": "dot", "use_index": effort > 0}
    if effort:
        nearest["nprobes"] = effort
    clause = _clause(dataset, only)
    scanner = dataset.scanner(
        columns=["id", "vector", "_distance"], nearest=nearest, filter=clause, prefilter=clause is not None
    )
    table = scanner.to_table()
    return table["id"].to_numpy(), _matrix(table) @ query_D


def _among(ids: list[int]) -> str:
    return f"id IN ({', '.join(map(str, ids))})"


def _matrix(table: Any) -> np.ndarray:
    """The vectors of a table [N, D]."""
    column = table["vector"].combine_chunks()
    size = column.type.list_size
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(-1, size)


def _clause(dataset: Any, only: Sequence[Condition]) -> str | None:
    """Conditions in Lance's SQL, which takes no parameters: numbers are numbers, texts are quoted."""
    arrow = require("pyarrow", extra="lance", why="a Lance dataset")
    parts = []
    for one in only:
        one.check(dataset.schema.names)
        kind = dataset.schema.field(one.column).type
        value = "'" + one.value.replace("'", "''") + "'"
        if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
            try:
                value = repr(int(one.value) if arrow.types.is_integer(kind) else float(one.value))
            except ValueError:
                raise BadInput(f"'{one.column}' is compared with a number, not '{one.value}'") from None
        parts.append(f"`{one.column}` {one.operator} {value}")
    return " AND ".join(parts) or None


def _with_nulls(batch: Any, schema: Any) -> Any:
    """The columns that others added are empty for new passages."""
    arrow = require("pyarrow", extra="lance", why="a Lance dataset")
    own = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [own.get(field.name, arrow.nulls(batch.num_rows, field.type)) for field in schema]
    return arrow.table(columns, schema=schema.remove_metadata())
