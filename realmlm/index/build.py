"""Embeds passages and makes an index of them, shard by shard, so that an interrupted build can continue."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.cluster import Cluster, joined
from realmlm.corpus.store import Corpus
from realmlm.index.store import SHARD, ShardedBuild
from realmlm.log import progress
from realmlm.parallel import in_background
from realmlm.storage.artefacts import Manifest
from realmlm.storage.remote import url_of

_CPU_SHARD = 512  # passages between two writes on a CPU, which take seconds; a GPU does SHARD of them in that
_CPU_SHARDS = 256  # and at most so many files: all of them are open when they are published
_AT_ONCE = 4_096  # wordpieces in one call of `encode`: more do not fit into a CPU's cache
_AT_ONCE_GPU = 262_144


class Encode(Protocol):
    """A document tower: embeds passages."""

    dim: int
    fingerprint: str
    """Identifies its weights."""
    device: torch.device

    def __call__(self, corpus: Corpus, ids_N: np.ndarray) -> Tensor:
        """The vectors of these passages [N, dim], on `device`."""


class Known(Protocol):
    """Vectors that need not be computed, because the same weights have already embedded the same words."""

    def __call__(self, ids_N: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Which of these passages have a vector [N], and the vectors of those that have."""


def _nothing(_: int) -> None: ...


def embed_passages(
    corpus: Corpus,
    ids: np.ndarray,
    encode: Encode,
    *,
    dtype: torch.dtype,
    on_done: Callable[[int], None] = _nothing,
    known: Known | None = None,
) -> Tensor:
    """The vectors of these passages, in their order, on the CPU; those that are `known` are not computed.

    Passages of similar length are encoded together, so that little is spent on padding. On a GPU no vector is
    waited for before the last one: the next batch is prepared while it works. For a progress bar, `on_done`
    is called with the number of passages done since its last call.
    """
    vectors = torch.empty(len(ids), encode.dim, dtype=dtype)
    rows = np.arange(len(ids))
    if known is not None:
        known_N, known_vectors = known(ids)
        vectors[torch.from_numpy(known_N)] = known_vectors.to(dtype)
        on_done(len(known_vectors))
        ids = ids[~known_N]
        rows = rows[~known_N]
    lengths = corpus.lengths_of(ids) + 3
    order = np.argsort(-lengths, kind="stable")
    parts = [torch.empty(0, encode.dim, dtype=dtype, device=encode.device)]
    first = 0
    at_once = _AT_ONCE_GPU if encode.device.type == "cuda" else _AT_ONCE
    while first < len(order):
        count = max(1, at_once // int(lengths[order[first]]))
        chosen = ids[order[first : first + count]]
        parts.append(encode(corpus, chosen).to(dtype))
        first += len(chosen)
        on_done(len(chosen))
    places = torch.from_numpy(rows[order])
    if encode.device.type != "cuda" or known is not None:
        vectors[places] = torch.cat(parts).cpu()
        return vectors
    in_order = torch.empty(vectors.shape, dtype=dtype, device=encode.device)
    in_order[places.to(encode.device)] = torch.cat(parts)
    return vectors.pin_memory().copy_(in_order)


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """How the passages of an index are embedded."""

    dtype: torch.dtype = torch.float16
    shard: int | None = None
    """Passages between two writes; None: what takes the device seconds."""
    quiet: bool = False
    """Show no progress."""
    known: Known | None = None
    """Vectors that are not computed again."""
    elsewhere: Callable[[str], Encode] | None = None
    """Embed on a Ray cluster: each of its workers makes the document tower with this, for a device. Not where
    vectors are `known`, which lie here."""


def build_index(
    path: Path,
    corpus: Corpus,
    encode: Encode,
    how: Embedding,
    *,
    step: int = 0,
    kind: str,
    queries_QD: Tensor | None = None,
) -> None:
    """Embed the corpus and publish the index at `path`. Shards that an earlier, killed build with the same
    weights finished are used. The recall of an approximate index is measured with `queries_QD`."""
    plan = {"corpus_edits": corpus.edits, "kind": kind, "step": step}
    embed_in_parts(path, corpus, corpus.ids, encode, how, plan=plan).publish(path, queries_QD=queries_QD)


def embed_in_parts(
    path: Path, corpus: Corpus, ids: np.ndarray, encode: Encode, how: Embedding, *, plan: dict[str, Any]
) -> ShardedBuild:
    """Embed these passages into the shards of a build beside `path`, which is yet to be published. Shards
    that an earlier, killed build with an equal plan finished are used: the plan must tell which passages
    these are.
    """
    with joined() if how.elsewhere and how.known is None else nullcontext() as cluster:
        device = cluster.device if cluster else encode.device.type
        plan = whole_plan(plan, corpus, len(ids), encode, how, device=device)
        build = ShardedBuild(path.parent / f".{path.name}.partial", plan)
        missing = build.missing()
        borders = plan["borders"]
        with nullcontext() if how.quiet else progress("embedding", len(ids), unit="passages") as bar:
            advance = bar.advance if bar else _nothing
            advance(len(ids) - sum(borders[number + 1] - borders[number] for number in missing))
            if cluster is None:
                embed_shards(missing, build, corpus, ids, encode, known=how.known, on_done=advance)
            elif missing:
                parts = [(number, ids[borders[number] : borders[number + 1]]) for number in missing]
                _embed_elsewhere(cluster, build, corpus, parts, how, advance)
    return build


def whole_plan(
    plan: dict[str, Any],
    corpus: Corpus,
    passages: int,
    encode: Encode,
    how: Embedding,
    *,
    device: str | None = None,
) -> dict[str, Any]:
    """The plan of a build (`ShardedBuild`) of so many passages, given what only the caller knows of it.
    `device` is where they are embedded, if not where `encode` is."""
    shard = how.shard or _usual_shard(passages, device or encode.device.type)
    plan = plan | {"weights": encode.fingerprint, "corpus": corpus.fingerprint, "state": corpus.state}
    plan |= {"borders": [*range(0, passages, shard), passages]}
    return plan | {"dim": encode.dim, "dtype": str(how.dtype).removeprefix("torch.")}


class Shards(Protocol):
    """Where shards are put: a build, or one that tells others of it."""

    plan: dict[str, Any]

    def put(self, shard: int, ids_N: Tensor, vectors_ND: Tensor) -> None:
        """Write a shard."""


def embed_shards(
    numbers: Iterable[int],
    shards: Shards,
    corpus: Corpus,
    ids: np.ndarray,
    encode: Encode,
    *,
    known: Known | None = None,
    on_done: Callable[[int], None] = _nothing,
) -> None:
    """Embed shards of a build of these passages. Each number is asked for when the shard before it has been
    embedded, and not necessarily written."""
    borders = shards.plan["borders"]
    dtype = getattr(torch, shards.plan["dtype"])
    with _Writer(shards) as writer:
        for number in numbers:
            part = ids[borders[number] : borders[number + 1]]
            vectors = embed_passages(corpus, part, encode, dtype=dtype, on_done=on_done, known=known)
            writer.put(number, torch.from_numpy(part), vectors)


_Part = tuple[int, np.ndarray]
"""A shard's number and its passages."""


def _embed_elsewhere(
    cluster: Cluster,
    build: ShardedBuild,
    corpus: Corpus,
    parts: list[_Part],
    how: Embedding,
    advance: Callable[[int], None],
) -> None:
    """One piece of work is one shard, embedded in the batches and by as many threads as here: how a sum is
    divided among threads may decide its last bit. Workers write it into the build's folder, which all see;
    that of an index on an object store lies in this machine's cache, so there the vectors come back."""
    threads = torch.get_num_threads()
    opened = (corpus.folder, corpus.manifest, corpus.edits)
    shared = None if url_of(build.folder) else build.folder
    setting = (shared, opened, how.elsewhere, cluster.device, how.dtype, threads)
    with closing(cluster.map(_embedder, setting, parts, **cluster.for_a_model(threads))) as done:
        for (number, ids), vectors in zip(parts, done, strict=True):
            if vectors is not None:
                build.put(number, torch.from_numpy(ids), torch.from_numpy(vectors))
            advance(len(ids))


def _embedder(
    folder: Path | None,
    opened: tuple[Path, Manifest, int],
    load: Callable[[str], Encode],
    device: str,
    dtype: torch.dtype,
    threads: int,
) -> Callable[[_Part], np.ndarray | None]:
    """In a worker of a cluster: embeds a shard and writes it to the build in this folder; without one, gives
    its vectors."""
    torch.set_num_threads(threads)
    build = None if folder is None else ShardedBuild.begun(folder)
    corpus = Corpus(*opened)
    encode = load(device)

    def embed(part: _Part) -> np.ndarray | None:
        number, ids = part
        vectors_ND = embed_passages(corpus, ids, encode, dtype=dtype)
        if build is None:
            return vectors_ND.numpy()
        build.put(number, torch.from_numpy(ids), vectors_ND)
        return None

    return embed


class _Writer:
    """Writes a shard in a thread while the next one is embedded; all are written when it is left."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._last: Future[None] | None = None

    def __enter__(self) -> "_Writer":
        return self

    def put(self, number: int, ids: Tensor, vectors: Tensor) -> None:
        self._wait()
        self._last = in_background(partial(self._shards.put, number, ids, vectors))

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def __exit__(self, *_: object) -> None:
        self._wait()


def _usual_shard(passages: int, device: str) -> int:
    return SHARD if device == "cuda" else min(SHARD, max(_CPU_SHARD, -(-passages // _CPU_SHARDS)))
