"""From passages to an index: embed with an `encode` callable, shard by shard, so that a build that was cut
off goes on."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.index.store import SHARD, ShardedBuild
from realmlm.log import progress

# passages between two writes on a CPU, where they take seconds; a GPU takes as long for SHARD of them
_CPU_SHARD = 512
_CPU_SHARDS = 256  # and at most so many files: all of them are open when they are published
# wordpieces of one call of encode: of more, a CPU's cache holds too little; a GPU is given more
_AT_ONCE = 4_096
_AT_ONCE_GPU = 262_144


class Encode(Protocol):
    """Titles and bodies of passages, in wordpieces, to vectors [N, dim] on its device. `fingerprint` names
    the weights behind it."""

    dim: int
    fingerprint: str
    device: torch.device

    def __call__(self, titles: list[np.ndarray], bodies: list[np.ndarray]) -> Tensor: ...


class Known(Protocol):
    """Of these passages, which have a vector by the same weights already [N], and the vectors of those."""

    def __call__(self, ids_N: np.ndarray) -> tuple[np.ndarray, Tensor]: ...


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
    """Vectors of the given passages, in their order, on the CPU. Passages of like length are encoded
    together: little is spent on padding.

    Those that are `known` are not encoded. `on_done` hears how many more there are. On a GPU nothing waits
    for a vector before the last: the next batch is put together while it works.
    """
    vectors = torch.empty(len(ids), encode.dim, dtype=dtype)
    rows = np.arange(len(ids))
    if known is not None:
        has_N, had = known(ids)
        vectors[torch.from_numpy(has_N)] = had.to(dtype)
        on_done(len(had))
        ids = ids[~has_N]
        rows = rows[~has_N]
    lengths = np.array(
        [len(corpus.tokens(number)) + len(corpus.title_tokens(number)) + 3 for number in ids], dtype=np.int64
    )
    order = np.argsort(-lengths, kind="stable")
    parts = [torch.empty(0, encode.dim, dtype=dtype, device=encode.device)]
    first = 0
    at_once = _AT_ONCE_GPU if encode.device.type == "cuda" else _AT_ONCE
    while first < len(order):
        chosen = ids[order[first : first + max(1, at_once // int(lengths[order[first]]))]].tolist()
        parts.append(
            encode(
                [corpus.title_tokens(number) for number in chosen],
                [corpus.tokens(number) for number in chosen],
            ).to(dtype)
        )
        first += len(chosen)
        on_done(len(chosen))
    vectors[torch.from_numpy(rows[order])] = torch.cat(parts).cpu()
    return vectors


def build_index(
    path: Path,
    corpus: Corpus,
    encode: Encode,
    *,
    step: int = 0,
    kind: str = "exact",
    dtype: torch.dtype = torch.float16,
    shard: int | None = None,
    quiet: bool = False,
    queries_QD: Tensor | None = None,
    known: Known | None = None,
) -> None:
    """Embed the corpus and publish the index at `path`. Shards that an earlier, killed build of the same
    weights finished are kept.

    A shard is what is embedded between two writes, by default what the device embeds in seconds. An
    approximate index is measured with `queries_QD`. Vectors that are `known` are not computed again.
    """
    plan = {"corpus_edits": corpus.edits, "kind": kind, "step": step}
    build = embed_in_parts(
        path, corpus, corpus.ids, encode, plan=plan, dtype=dtype, shard=shard, quiet=quiet, known=known
    )
    build.publish(path, queries_QD=queries_QD)


def embed_in_parts(
    path: Path,
    corpus: Corpus,
    ids: np.ndarray,
    encode: Encode,
    *,
    plan: dict[str, Any],
    dtype: torch.dtype,
    shard: int | None = None,
    quiet: bool = False,
    known: Known | None = None,
) -> ShardedBuild:
    """A build beside `path` with all shards of these passages. Those that an earlier, killed build of an
    equal plan finished are kept.

    The plan says which passages they are.
    """
    shard = shard or _usual_shard(len(ids), encode.device)
    borders = [*range(0, len(ids), shard), len(ids)]
    made = {
        "weights": encode.fingerprint,
        "corpus": corpus.fingerprint,
        "dim": encode.dim,
        "dtype": str(dtype).removeprefix("torch."),
    }
    build = ShardedBuild(path.parent / f".{path.name}.partial", plan | made | {"borders": borders})
    missing = build.missing()
    with nullcontext() if quiet else progress("embedding", len(ids), unit="passages") as bar:
        advance = bar.advance if bar else _nothing
        advance(len(ids) - sum(borders[number + 1] - borders[number] for number in missing))
        for number in missing:
            part = ids[borders[number] : borders[number + 1]]
            vectors = embed_passages(corpus, part, encode, dtype=dtype, on_done=advance, known=known)
            build.put(number, torch.from_numpy(part), vectors)
    return build


def _usual_shard(passages: int, device: torch.device) -> int:
    return SHARD if device.type == "cuda" else min(SHARD, max(_CPU_SHARD, -(-passages // _CPU_SHARDS)))
