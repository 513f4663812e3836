"""Indexes that other systems hold, Lance or PostgreSQL with pgvector: searched there, where others see the
same vectors. A system is a `Store`; this is what they have in common.

The store says which document tower and which corpus its vectors are of, and how many edits of it it holds.
The corpus itself stays where it is: what is found is read from there.

Q queries, K hits each, E passages never among them, N passages, D vector size.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.defaults import SHARED
from realmlm.errors import (
    ArtefactDamaged,
    ArtefactMissing,
    BadInput,
    Diverged,
    Mismatch,
    NotEnough,
    Unavailable,
)
from realmlm.index.build import Encode, embed_passages
from realmlm.index.exact import Hits, Index, as_ids, drop, each_once, ranked
from realmlm.index.ivf import share_found
from realmlm.log import say

T = TypeVar("T")
COLUMNS = ("id", "title", "text", "source", "vector")
BATCH = 4096  # passages written at a time
_TARGET = 0.99  # recall to be reached, at 1 hit and at _K
_K = 8
_FILTER = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>|\blike\b)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class State:
    """What a store says about the vectors that it holds."""

    weights: str
    """Fingerprint of the document tower."""
    corpus: str
    """Fingerprint of the corpus."""
    corpus_edits: int
    """How many edits of the corpus are in it."""
    corpus_state: str | None = None
    """What identifies the corpus with them; None in stores of older releases."""
    dim: int
    dtype: str
    """What the vectors were rounded to before they were stored, in float32."""
    effort: int = 0
    """How much is looked at for a query, in the system's own unit; 0: everything."""
    recall: float = 1.0
    """Measured against exact search, the worse of that at 1 hit and at 8."""

    def to_json(self) -> str:
        return json.dumps({"realmlm": asdict(self)})

    @classmethod
    def of(cls, text: str | bytes | None) -> "State | None":
        """What `to_json` wrote; None for anything else."""
        try:
            return cls(**json.loads(text or "")["realmlm"])
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Condition:
    """A condition on the metadata of passages: `source = notes.md`, `title like Har%`, `id < 100`."""

    column: str
    operator: str
    value: str

    @classmethod
    def of(cls, text: str) -> "Condition":
        match = _FILTER.fullmatch(text)
        if match is None:
            how = "write COLUMN OPERATOR VALUE, with one of = != < <= > >= like"
            raise BadInput(f"cannot read the filter '{text}'; {how}")
        return cls(*match.groups())

    def check(self, columns: Sequence[str]) -> None:
        """Is there such a column? Only the names of columns, never values, are put into a statement."""
        if self.column not in columns:
            known = ", ".join(name for name in columns if name != "vector")
            raise BadInput(f"passages have no '{self.column}' to filter by; choose from: {known}")


@dataclass(frozen=True)
class Batch:
    """Some passages with their vectors, in the columns of a table."""

    ids: list[int]
    titles: list[str]
    texts: list[str]
    sources: list[str]
    vectors_ND: np.ndarray  # float32


def batches(corpus: Corpus, ids: np.ndarray, index: Index) -> Iterator[Batch]:
    """Passages with what an index has of them, some thousand at a time."""
    for first in range(0, len(ids), BATCH):
        some = ids[first : first + BATCH]
        yield _batch(corpus, some, index.vectors(torch.from_numpy(some)))


def _batch(corpus: Corpus, ids: np.ndarray, vectors_ND: Tensor) -> Batch:
    passages = corpus.passages(ids.tolist())
    return Batch(
        ids.tolist(),
        [passage.title for passage in passages],
        [passage.text for passage in passages],
        [passage.file for passage in passages],
        vectors_ND.float().cpu().numpy(),
    )


Check = Callable[[State], None]
"""Raises where a store no longer holds what was opened."""


def unchecked(state: State) -> None:
    """Whatever the store holds."""


class Store(Protocol):
    """A table of passages in another system, with the columns COLUMNS and whatever others add.

    Others may put another table in its place at any moment: what reads it gives its state to `check` first,
    and what is read after that is of this state.
    """

    def state(self) -> State:
        """What it holds now, also what others changed since; raises ArtefactMissing if there is nothing."""

    def check(self) -> None:
        """Raise what would keep it from being written."""

    def write(self, given: Iterator[Batch], state: State) -> AbstractContextManager["Draft"]:
        """A new table, which takes the place of the former one if the draft is published in the block."""

    def edit(self, written: Batch | None, removed: list[int], state: State) -> None:
        """Change some passages: all of it is visible, or nothing."""

    def search(
        self,
        query_D: np.ndarray,
        k: int,
        *,
        effort: int,
        only: Sequence[Condition],
        check: Check = unchecked,
    ) -> "Found":
        """The best passages for a query, with f(x,z), among those that fulfil the conditions; fewer than k if
        the effort finds no more. An effort of 0 looks at all."""

    def vectors(self, ids: list[int], *, check: Check = unchecked) -> tuple[np.ndarray, np.ndarray]:
        """The ids of those that are there, and their vectors."""

    def ids(self, only: Sequence[Condition], *, check: Check = unchecked) -> np.ndarray:
        """Of the passages that fulfil the conditions, ascending."""

    def locked(self) -> AbstractContextManager[object]:
        """Held while the passages are changed, by one process at a time."""


Found = tuple[np.ndarray, np.ndarray]
"""Ids and scores."""


class Draft(Protocol):
    """A table being written, which no one sees yet."""

    most_effort: int
    """That can be made for a query."""

    def search(self, query_D: np.ndarray, k: int, *, effort: int) -> Found: ...

    def hold(self) -> None:
        """From now on, until the draft is published, no edit is made of what it is to replace."""

    def edit(self, written: Batch | None, removed: list[int]) -> None:
        """Change some passages of the draft."""

    def publish(self, state: State) -> None:
        """Let everyone see it, in the place of the former one."""


@dataclass(frozen=True)
class SharedPlace:
    """Where another system holds an index, `lance:PATH` or `postgres:DSN`, and which of its passages are to
    be found."""

    system: str
    address: str = field(repr=False)
    only: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        """Without a password."""
        bare = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1@", self.address)
        bare = re.sub(r"\bpassword\s*=\s*('[^']*'|[^&#\s]*)[&\s]?", "", bare)
        return f"{self.system}:{bare}"

    @classmethod
    def of(cls, place: str | Path, only: Sequence[str] = ()) -> "SharedPlace | None":
        """None: a folder."""
        system, _, address = str(place).partition(":")
        if system not in SHARED:
            return None
        return cls(system, address, tuple(map(Condition.of, only)))

    def open(self) -> Store:
        if self.system == "lance":
            from realmlm.index.lance import LanceStore

            return LanceStore(self.address)
        from realmlm.index.postgres import PostgresStore

        return PostgresStore(self.address)


def index_place(place: str | Path | SharedPlace, only: Sequence[str] = ()) -> Path | SharedPlace:
    """Where an index is: in another system, where it may be told to find some passages `only`, or in a
    folder."""
    if isinstance(place, SharedPlace):
        return place
    return SharedPlace.of(place, only) or Path(place)


class _Replaced(Mismatch, Unavailable):
    """A store holds something else than what was opened."""


class SharedIndex:
    """An index that a store holds. It finds passages of `corpus` alone: the store may be ahead of it."""

    dtype = torch.float32

    def __init__(
        self,
        store: Store,
        state: State,
        corpus: Corpus,
        only: Sequence[Condition] = (),
        *,
        renew: Callable[[], bool] = lambda: False,
    ) -> None:
        """Where the store turns out to hold something else, `renew` may `take` that; False: it cannot."""
        self.store = store
        self.only = only
        self._renew = renew
        self._trouble = ""  # as it was said
        self.take(state, corpus)

    def take(self, state: State, corpus: Corpus) -> None:
        """Hold this state of the corpus."""
        ids_N = corpus.ids
        if self.only:
            here = self.store.ids(self.only, check=lambda now: _check_same(now, state))
            ids_N = np.intersect1d(ids_N, here)
        self.state = state
        self._corpus = corpus
        self.ids = torch.from_numpy(ids_N)

    def _read(self, read: Callable[[Check], T]) -> T:
        """What is read of the vectors that were opened. Another program may have written the table anew:
        one that only lacks edits gets them."""

        def check(now: State) -> None:
            _check_same(now, self.state)

        try:
            try:
                found = read(check)
            except _Replaced:
                if not self._renew():
                    raise
                found = read(check)
        except (_Replaced, ArtefactMissing) as error:
            if self._trouble != str(error):
                say(f"{self.store}: {error}")
            self._trouble = str(error)
            if isinstance(error, _Replaced):
                raise
            raise _Replaced("the vectors are gone where they were searched; write them again") from error
        self._trouble = ""
        return found

    @property
    def dim(self) -> int:
        return self.state.dim

    def __len__(self) -> int:
        return len(self.ids)

    def contains(self, ids_N: Tensor) -> Tensor:
        return torch.from_numpy(_among(as_ids(ids_N, torch.device("cpu")).numpy(), self.ids.numpy()))

    def vectors(self, ids_N: Tensor) -> Tensor:
        ids_N = as_ids(ids_N, torch.device("cpu"))
        wanted_U, place_N = ids_N.unique(return_inverse=True)
        ids, vectors = self._read(lambda check: self.store.vectors(wanted_U.tolist(), check=check))
        order = np.argsort(ids)
        if not np.array_equal(ids[order], wanted_U.numpy()):
            lost = sorted(set(wanted_U.tolist()) - set(ids.tolist()))
            raise BadInput(f"passage ids {lost[:5]} are not in the index; export the vectors again")
        return torch.from_numpy(vectors[order])[place_N]

    def search(self, queries_QD: Tensor, k: int, *, exclude_QE: Tensor | None = None) -> Hits:
        exclude_QE = (
            torch.empty(len(queries_QD), 0).long() if exclude_QE is None else each_once(exclude_QE.cpu())
        )
        searchable = len(self)
        if exclude_QE.numel():
            searchable -= int(self.contains(exclude_QE.flatten()).view(exclude_QE.shape).sum(1).max())
        if not 1 <= k <= searchable:
            raise NotEnough(
                f"k is {k}, but {searchable} passages can be searched; choose from 1 to {searchable}"
            )
        wanted = min(k + exclude_QE.shape[1], len(self))
        rows = [self._best(query_D, wanted) for query_D in queries_QD.detach().float().cpu().numpy()]
        if not rows:
            return Hits(torch.empty(0, k), torch.empty(0, k).long())
        ids_QK = torch.from_numpy(np.stack([ids for ids, _ in rows]))
        scores_QK = torch.from_numpy(np.stack([scores for _, scores in rows]).astype(np.float32))
        return drop(ranked(scores_QK, ids_QK, wanted), exclude_QE, k)

    def _best(self, query_D: np.ndarray, k: int) -> Found:
        """The k best that are known here: by the usual effort, by looking at all where that finds too few."""
        if not np.isfinite(query_D).all():
            raise Diverged("queries hold NaN or infinity; the query tower has diverged")
        for usual, all_known in ((True, False), (False, False), (False, True)):

            def search(check: Check, usual: bool = usual, all_known: bool = all_known) -> Found:
                effort = self.state.effort if usual else 0
                most = k + (len(self) if all_known else 0)
                return self.store.search(query_D, most, effort=effort, only=self.only, check=check)

            ids, scores = self._read(search)
            known = self.ids.numpy()
            here = _among(ids, known)
            if here.sum() >= k:
                return ids[here][:k], scores[here][:k]
        raise ArtefactDamaged("passages of the corpus are missing in the index; export the vectors again")

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        raise BadInput("an index that others share is changed through its corpus; use `realmlm edit`")

    def remove(self, ids_N: Tensor) -> None:
        raise BadInput("an index that others share is changed through its corpus; use `realmlm edit`")


def _among(ids: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Which of these ids are in the other ones?"""
    places = np.searchsorted(ascending, ids).clip(max=max(0, len(ascending) - 1))
    return ascending[places] == ids if len(ascending) else np.zeros(len(ids), dtype=bool)


@dataclass
class KeptElsewhere:
    """A shared index and the state of the corpus that it is searched for."""

    index: SharedIndex
    corpus: Corpus
    _encode: Encode

    @property
    def found(self) -> np.ndarray | None:
        """The passages that can be found; None: all."""
        return self.index.ids.numpy() if self.index.only else None

    def follow(self, corpus: Corpus) -> bool:
        """Hold this state of the corpus: what the store lacks of it is embedded and written there. False: the
        store holds something else now; it has to be opened again."""
        store = self.index.store
        state = store.state()
        if not same_vectors(state, self.index.state) or _holds_other_edits(state, corpus):
            return False
        if state.corpus_edits < corpus.edits:
            with store.locked():
                state = self._take_up(store.state(), corpus)
        self.index.take(state, corpus)
        self.corpus = corpus
        return True

    def _take_up(self, state: State, corpus: Corpus) -> State:
        if state.corpus_edits >= corpus.edits:  # another process was faster
            return state
        written, removed = corpus.changes_since(state.corpus_edits)
        ids = np.array(written, dtype=np.int64)
        batch = None
        if written:
            dtype = getattr(torch, state.dtype)
            batch = _batch(corpus, ids, embed_passages(corpus, ids, self._encode, dtype=dtype))
        state = replace(state, corpus_edits=corpus.edits, corpus_state=corpus.state)
        self.index.store.edit(batch, removed, state)
        return state


def same_vectors(one: State, other: State) -> bool:
    """Are both of one corpus, by one tower?"""
    return (one.weights, one.corpus, one.dim) == (other.weights, other.corpus, other.dim)


def _check_same(now: State, opened: State) -> None:
    """Does a store hold what was opened, or later edits of it? What those wrote is found once the corpus here
    has them too: a folder may be seen later than the store. Messages name no place."""
    again = "write them again, or open what is there now"
    if not same_vectors(now, opened):
        other = "of another corpus" if now.corpus != opened.corpus else "with other document weights"
        raise _Replaced(f"the vectors searched were replaced by some made {other}; {again}")
    if now.corpus_edits < opened.corpus_edits:
        fewer = f"with {now.corpus_edits} edits of the corpus, not {opened.corpus_edits}"
        raise _Replaced(f"the vectors searched were written anew {fewer}; {again}")
    known = None not in (now.corpus_state, opened.corpus_state)
    if now.corpus_edits == opened.corpus_edits and known and now.corpus_state != opened.corpus_state:
        raise _Replaced(f"the vectors searched were written with other edits of the corpus; {again}")


def _holds_other_edits(state: State, corpus: Corpus) -> bool:
    """Does a store hold edits that the corpus no longer has? Someone may have removed some of the corpus's
    edits and made as many others. Of edits that the corpus here does not have yet, it cannot be told."""
    if state.corpus_edits > corpus.edits or state.corpus_state is None:
        return False
    if state.corpus_edits < corpus.edits:
        corpus = Corpus(corpus.folder, corpus.manifest, state.corpus_edits)
    return state.corpus_state != corpus.state


def open_shared(place: SharedPlace, corpus: Corpus, encode: Encode, *, follow: bool) -> KeptElsewhere:
    """The index of a corpus that another system holds, brought up to the corpus's edits."""
    store = place.open()
    state = store.state()
    again = f"realmlm export vectors --corpus {corpus.folder} --to {place.system} …"
    for made, expected, what in (
        (state.weights, encode.fingerprint, "with other document weights"),
        (state.corpus, corpus.fingerprint, "of another corpus"),
    ):
        if made != expected:
            raise Mismatch(
                f"the vectors in {store} were made {what}; give what they were made of, or: {again}"
            )
    corpus = corpus.newest() if follow else corpus
    if state.corpus_edits > corpus.edits:
        ahead = f"{store} holds {state.corpus_edits} edits of {corpus.folder}, which has {corpus.edits} here"
        raise Mismatch(f"{ahead}; write it again: {again}")
    if _holds_other_edits(state, corpus):
        raise Mismatch(
            f"{store} holds edits that {corpus.folder} no longer has; write the vectors again: {again}"
        )
    index = SharedIndex(store, state, corpus, place.only, renew=lambda: kept.follow(kept.corpus))
    kept = KeptElsewhere(index, corpus, encode)
    kept.follow(corpus)
    if not len(kept.index):
        raise NotEnough(f"no passage in {store} fulfils the --filter; choose another")
    say(f"searching {store}: {len(kept.index):,} passages, recall against exact search {state.recall:.3f}")
    return kept


@dataclass(frozen=True)
class Change:
    """What edits of the corpus do to a table."""

    written: Batch | None
    removed: list[int]
    corpus_edits: int
    corpus_state: str

    @classmethod
    def since(cls, edits: int, corpus: Corpus, index: Index) -> "Change | None":
        """By the edits after the first so many, with what an index has of them; None: there are no more."""
        if corpus.edits <= edits:
            return None
        written, removed = corpus.changes_since(edits)
        ids = np.array(written, dtype=np.int64)
        batch = _batch(corpus, ids, index.vectors(torch.from_numpy(ids))) if written else None
        return cls(batch, removed, corpus.edits, corpus.state)


def write_shared(
    place: SharedPlace,
    given: Iterator[Batch],
    state: State,
    *,
    queries_QD: Tensor,
    truth: Index,
    since: Callable[[int], Change | None] = lambda edits: None,
) -> State:
    """Write passages with their vectors into another system, and measure its search against exact search:
    the effort is doubled until recall reaches the target. What was there is replaced when all is done, and
    what edits of the corpus brought `since` (after so many) is part of it."""
    k = min(_K, len(truth))
    exact_QK = truth.search(queries_QD, k).ids_QK.cpu()
    with place.open().write(given, state) as draft:
        effort = min(_K, draft.most_effort)
        while True:
            recall = _recall(draft, queries_QD, exact_QK, effort)
            if recall >= _TARGET or effort >= draft.most_effort:
                break
            effort = min(2 * effort, draft.most_effort)
        state = replace(state, effort=effort, recall=recall)
        state = _caught_up(draft, state, since)  # what takes long, while others may still edit
        draft.hold()
        state = _caught_up(draft, state, since)
        draft.publish(state)
    return state


def _caught_up(draft: Draft, state: State, since: Callable[[int], Change | None]) -> State:
    """A draft with the edits that were made while it was written."""
    change = since(state.corpus_edits)
    if change is None:
        return state
    draft.edit(change.written, change.removed)
    return replace(state, corpus_edits=change.corpus_edits, corpus_state=change.corpus_state)


def _recall(draft: Draft, queries_QD: Tensor, exact_QK: Tensor, effort: int) -> float:
    """The worse of that at 1 hit and at K."""
    k = exact_QK.shape[1]
    found_QK = torch.full_like(exact_QK, -1)
    for row_K, query_D in zip(found_QK, queries_QD.float().cpu().numpy(), strict=True):
        ids, _ = draft.search(query_D, k, effort=effort)
        row_K[: len(ids)] = torch.tensor(ids)
    return min(share_found(exact_QK[:, :hits], found_QK[:, :hits]) for hits in (1, k))
