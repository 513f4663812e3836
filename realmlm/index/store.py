"""Index artefacts on disk: built shard by shard, published by rename, opened memory-mapped, changed by small
edits.

A version is an artefact of the kind "index". An exact one is `shard-00000.safetensors` … each with `vectors`
[n, D] and `ids` [n]; in an approximate one `vectors` and `ids` stand in the order of its lists, which `lists`
describes. Changes of the corpus are artefacts of their own, `edits/000001` …, replayed in order when it is
opened.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.index.exact import ExactIndex, Index, as_ids, check_vectors
from realmlm.index.ivf import IVFIndex, IVFSettings, Pieces
from realmlm.storage.arrays import ArrayWriter, map_array, map_arrays, save_arrays
from realmlm.storage.artefacts import (
    Manifest,
    count_edits,
    edit_place,
    fsync_file,
    open_artefact,
    publish,
    read_manifest,
    sha256_of,
    write_text,
)

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_VECTORS = "vectors.safetensors"
_IDS = "ids.safetensors"
_LISTS = "lists.safetensors"
_HINT = "make one: realmlm index"

SHARD = 65_536  # passages of a published shard, about; at 128 × 2 bytes it is 16 MiB


# --- building -----------------------------------------------------------------------------------------------


class ShardedBuild:
    """A version, or an edit of one, in the making: finished shards survive a crash. Several processes may put
    different shards.

    The plan is all that decides what the version will hold: `weights` and `corpus` (fingerprints),
    `corpus_edits` (how many are contained), `step`, `dim`, `dtype` (float32, float16 or bfloat16), `kind`
    (exact or ivf) and `borders` (shard i holds the passages from the borders[i]-th up to, not including, the
    borders[i + 1]-th).
    """

    def __init__(self, partial_folder: Path, plan: dict[str, Any]) -> None:
        """Go on with what stands in `partial_folder` (named `*.partial`) if it was begun with an equal plan;
        else begin anew."""
        assert partial_folder.name.endswith(".partial"), partial_folder  # it may be deleted
        if plan["dtype"] not in _DTYPES:
            raise BadInput(
                f"index vectors cannot be stored as {plan['dtype']}; choose one of {', '.join(_DTYPES)}"
            )
        if plan["kind"] not in ("exact", "ivf"):
            raise BadInput(f"there is no index kind {plan['kind']}; choose exact or ivf")
        if len(plan["borders"]) < 2:
            raise NotEnough(f"no passage to index for {partial_folder}; add texts to the corpus first")
        self.folder = Path(partial_folder)
        self.plan = plan
        self._sound: set[int] = set()
        text = json.dumps(plan, indent=1, sort_keys=True)
        try:
            begun = (self.folder / "plan.json").read_text("utf-8") == text
        except (OSError, ValueError):
            begun = False
        if not begun:
            self.discard()
            self.folder.mkdir(parents=True)
            write_text(self.folder / "plan.json", text)

    @property
    def shards(self) -> int:
        return len(self.plan["borders"]) - 1

    def missing(self) -> list[int]:
        """Shards that are still to be put: absent, cut off or altered. Each finished shard is hashed once."""
        for shard in range(self.shards):
            if shard not in self._sound and self._is_sound(shard):
                self._sound.add(shard)
        return [shard for shard in range(self.shards) if shard not in self._sound]

    def put(self, shard: int, ids_N: Tensor, vectors_ND: Tensor) -> None:
        """Write a shard; once this returns it survives a crash."""
        expected = self.plan["borders"][shard + 1] - self.plan["borders"][shard]
        if len(ids_N) != expected:
            raise BadInput(f"shard {shard} came with {len(ids_N)} passages; the plan says {expected}")
        vectors_ND = vectors_ND.detach().cpu().to(_DTYPES[self.plan["dtype"]])
        check_vectors(ids_N, vectors_ND, self.plan["dim"])
        file = self.folder / _shard(shard)
        # no name that a link could have been put at
        temporary = file.with_name(f".{uuid.uuid4().hex[:8]}.part")
        save_file(
            {"ids": ids_N.cpu().to(torch.int64).contiguous(), "vectors": vectors_ND.contiguous()}, temporary
        )
        fsync_file(temporary)
        checksum = sha256_of(temporary)
        temporary.replace(file)
        write_text(file.with_suffix(".json"), json.dumps({"sha256": checksum}))
        fsync_file(self.folder)
        self._sound.add(shard)

    def vectors(self) -> Tensor:
        """Of all shards, in their order; none may be missing."""
        return torch.cat(
            [
                _map_tensors(self.folder / _shard(shard), self.plan["dtype"])["vectors"]
                for shard in range(self.shards)
            ]
        )

    def publish(self, path: Path, *, queries_QD: Tensor | None = None) -> None:
        """Turn the finished build into the version at `path`; an approximate one is measured with the
        queries.

        A kill at any moment leaves no version or a whole one, and no lost shard.
        """
        if missing := self.missing():
            raise NotEnough(
                f"{self.folder} lacks {len(missing)} of {self.shards} shards, first {missing[0]}; put them "
                "before publishing"
            )
        with publish(path, kind="index") as draft:
            exact = _map_shards(self.folder, self.shards, self.plan["dtype"], "cpu")
            ids_N = exact.ids
            if (twice := ids_N[1:][ids_N[1:] == ids_N[:-1]]).numel():
                raise BadInput(f"passage id {int(twice[0])} is in two shards; give each passage once")
            draft.config = {name: self.plan[name] for name in ("dim", "dtype", "kind", "step")} | {
                "ivf": None
            }
            draft.counts = {"passages": len(ids_N), "corpus_edits": self.plan["corpus_edits"]}
            draft.parents = {name: self.plan[name] for name in ("weights", "corpus")}
            if self.plan["kind"] == "ivf":
                draft.config["ivf"] = _write_lists(draft.path, exact, queries_QD)
            else:
                draft.counts["shards"] = self._write_shards(draft.path, exact)
        self.discard()

    def _write_shards(self, folder: Path, exact: ExactIndex) -> int:
        """The shards of a version, small ones put together (each costs a search some steps, whatever its
        size); gives how many they are."""
        together = [
            list(shards)
            for _, shards in groupby(
                range(self.shards), key=lambda shard: self.plan["borders"][shard] // SHARD
            )
        ]
        for number, shards in enumerate(together):
            if len(shards) == 1:
                _link(self.folder / _shard(shards[0]), folder / _shard(number))
            else:
                rows = [exact.blocks[shard] for shard in shards]
                arrays = {
                    "ids": torch.cat([one.ids_N for one in rows]),
                    "vectors": torch.cat([one.vectors_ND for one in rows]),
                }
                save_file(arrays, folder / _shard(number))
        return len(together)

    def discard(self) -> None:
        """Remove the folder and all that was finished in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._sound.clear()

    def _is_sound(self, shard: int) -> bool:
        file = self.folder / _shard(shard)
        try:
            return bool(json.loads(file.with_suffix(".json").read_text("utf-8"))["sha256"] == sha256_of(file))
        except (OSError, ValueError, KeyError, TypeError):
            return False


# --- versions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IndexInfo:
    """What a version says of itself, its edits included."""

    step: int
    dim: int
    dtype: str
    weights: str
    corpus: str
    passages: int
    corpus_edits: int
    """Edits of the corpus that are contained."""
    recall: float | None
    """Measured recall of an approximate index, the worse of that at 1 and at `k` hits; None: exact."""


def index_info(
    path: Path, *, expect_weights: str | None = None, expect_corpus: str | None = None
) -> IndexInfo:
    """Step, parents and counts of a version. Manifests are read, vectors are not.

    Raises Mismatch if it was made with another document tower than `expect_weights` or of another corpus than
    `expect_corpus` (None: whichever).
    """
    manifest = read_manifest(path, kind="index", hint=_HINT)
    edits = [read_manifest(edit, kind="index-edit").counts for edit in _edits(path)]
    for parent, expected, what in (
        ("weights", expect_weights, "with other document weights"),
        ("corpus", expect_corpus, "of another corpus"),
    ):
        made = manifest.parents[parent]
        if expected is not None and made != expected:
            raise Mismatch(
                f"the index {path} was made {what} ({made[:12]}, not {expected[:12]}); "
                "give what it was made of, or make it again: realmlm index"
            )
    return IndexInfo(
        step=manifest.config["step"],
        dim=manifest.config["dim"],
        dtype=manifest.config["dtype"],
        weights=manifest.parents["weights"],
        corpus=manifest.parents["corpus"],
        passages=manifest.counts["passages"] + sum(edit["added"] - edit["removed"] for edit in edits),
        corpus_edits=edits[-1]["corpus_edits"] if edits else manifest.counts["corpus_edits"],
        recall=manifest.config["ivf"]["recall"] if manifest.config["ivf"] else None,
    )


def open_index(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    expect_weights: str | None = None,
    expect_corpus: str | None = None,
) -> Index:
    """Check a version, map it into memory and replay its edits.

    On the CPU nothing is copied. An approximate index stays on the CPU whatever the device.
    """
    path = Path(path)
    info = index_info(path, expect_weights=expect_weights, expect_corpus=expect_corpus)
    manifest = open_artefact(path, kind="index", hint=_HINT)
    exact = _map_version(path, manifest, device)
    index: Index = _with_lists(exact, path, manifest) if manifest.config["kind"] == "ivf" else exact
    for edit in _edits(path):
        _replay(index, edit, info.dtype)
    return index


def _with_lists(exact: ExactIndex, path: Path, manifest: Manifest) -> IVFIndex:
    settings = dict(manifest.config["ivf"])
    nprobe = settings.pop("nprobe")
    recall = settings.pop("recall")
    lists = {name: torch.from_numpy(array) for name, array in map_arrays(path / _LISTS).items()}
    return IVFIndex(
        exact,
        lists["centroids"],
        lists["offsets"],
        settings=IVFSettings(**settings),
        nprobe=nprobe,
        recall=recall,
    )


# --- edits --------------------------------------------------------------------------------------------------


def edits_contained(path: Path) -> int:
    """How many edits of the corpus a version contains; of its own edits the last alone is read."""
    edits = count_edits(path)
    last = (
        read_manifest(edit_place(path, edits), kind="index-edit")
        if edits
        else read_manifest(path, kind="index", hint=_HINT)
    )
    return int(last.counts["corpus_edits"])


def save_edit(
    path: Path,
    index: Index,
    *,
    added_ids: Tensor,
    added_vectors: Tensor,
    removed_ids: Tensor,
    corpus_edits: int,
) -> None:
    """Write a change of the corpus beside a version, and make it in `index`, which is that version opened
    with all its edits.

    `added_ids` have these vectors from now on, `removed_ids` are gone. An added passage may replace one, a
    removed one need not have been there: what counts is the state after the edit. `corpus_edits` says how
    many edits of the corpus are contained then.
    """
    contained = edits_contained(path)
    if corpus_edits <= contained:
        raise BadInput(
            f"{path} contains {contained} edits of the corpus already; this one says {corpus_edits}"
        )
    added_ids = as_ids(added_ids, torch.device("cpu"))
    removed_ids = as_ids(removed_ids, torch.device("cpu"))
    added_vectors = added_vectors.detach().cpu().to(index.dtype).reshape(-1, index.dim)
    check_vectors(added_ids, added_vectors, index.dim)  # what is written must be replayed without complaint
    gone = torch.cat([added_ids, removed_ids]).unique()
    gone = gone[index.contains(gone).cpu()]
    with publish(edit_place(path, count_edits(path) + 1), kind="index-edit") as draft:
        arrays = {"added_ids": added_ids, "removed_ids": gone, "vectors": added_vectors}
        save_file(
            {name: array.contiguous() for name, array in arrays.items()}, draft.path / "edit.safetensors"
        )
        draft.counts = {"added": len(added_ids), "removed": len(gone), "corpus_edits": corpus_edits}
    index.remove(gone)
    index.add(added_ids, added_vectors)


def _edits(path: Path) -> list[Path]:
    """The edits of a version, in order."""
    return [edit_place(path, number + 1) for number in range(count_edits(path))]


def _replay(index: Index, edit: Path, dtype: str) -> None:
    open_artefact(edit, kind="index-edit")
    arrays = _map_tensors(edit / "edit.safetensors", dtype)
    index.remove(arrays["removed_ids"])
    index.add(arrays["added_ids"], arrays["vectors"])


# --- files --------------------------------------------------------------------------------------------------


def _shard(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def _map_version(path: Path, manifest: Manifest, device: torch.device | str) -> ExactIndex:
    """The stored vectors of a version; those of an approximate one stay on the CPU, in one block."""
    dtype = manifest.config["dtype"]
    return (
        _map_placed(path, dtype)
        if manifest.config["kind"] == "ivf"
        else _map_shards(path, manifest.counts["shards"], dtype, device)
    )


def _map_shards(folder: Path, shards: int, dtype: str, device: torch.device | str) -> ExactIndex:
    mapped = [_map_tensors(folder / _shard(number), dtype) for number in range(shards)]
    return ExactIndex.from_blocks([(arrays["vectors"], arrays["ids"]) for arrays in mapped], device=device)


def _write_lists(folder: Path, exact: ExactIndex, queries_QD: Tensor | None) -> dict[str, Any]:
    """Write vectors, ids and lists of an approximate index; gives its settings and what was measured."""

    def place(pieces: Pieces) -> ExactIndex:
        bits = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}[
            exact.dtype
        ]  # numpy has no bfloat16
        ids = ArrayWriter(folder / _IDS, np.int64)
        vectors = ArrayWriter(folder / _VECTORS, bits, row=(exact.dim,))
        for ids_N, vectors_ND in pieces:
            ids.append(ids_N.numpy())
            vectors.append(vectors_ND.view(torch.uint8).numpy().view(bits))
        ids.close()
        vectors.close()
        return _map_placed(folder, str(exact.dtype).removeprefix("torch."))

    index = IVFIndex.build(exact, queries_QD=queries_QD, place=place)
    save_arrays(
        folder / _LISTS, {"centroids": index.centroids_LD.numpy(), "offsets": index.offsets_L.numpy()}
    )
    return {**asdict(index.settings), "nprobe": index.nprobe, "recall": index.recall}


def _map_placed(folder: Path, dtype: str) -> ExactIndex:
    vectors = torch.from_numpy(map_array(folder / _VECTORS))
    ids = torch.from_numpy(map_array(folder / _IDS))
    return ExactIndex.from_blocks([(vectors.view(_DTYPES[dtype]), ids)])


def _map_tensors(file: Path, dtype: str) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in map_arrays(file).items()}
    return tensors | {"vectors": tensors["vectors"].view(_DTYPES[dtype])}


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
