"""Index artefacts on disk: built shard by shard, opened memory-mapped, changed by small edits.

A version is an artefact of the kind "index", made with one state of the document tower. An exact one consists
of `shard-00000.safetensors` …, each with `vectors` [n, D] and `ids` [n]; an approximate one has `vectors` and
`ids` in the order of its lists, which `lists` describes. Later changes of the corpus are artefacts of their
own, `edits/000001` …, applied in order when the version is opened.
"""

import json
import os
import shutil
import socket
import uuid
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from realmlm.errors import ArtefactMissing, BadInput, Mismatch, NotEnough
from realmlm.index.exact import ExactIndex, Index, as_ids, check_vectors, part_of
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
    renew_stamps,
    sha256_of,
    write_text,
)
from realmlm.storage.remote import shown

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_VECTORS = "vectors.safetensors"
_IDS = "ids.safetensors"
_LISTS = "lists.safetensors"
_HINT = "make one: realmlm index"

SHARD = 65_536  # passages in a published shard, about; with vectors of 128 × 2 bytes it is 16 MiB


# --- building -----------------------------------------------------------------------------------------------


class ShardedBuild:
    """A version, or an edit of one, being built: finished shards survive a crash. Several processes may write
    different shards.

    The plan is all that decides what the version will contain: `weights` and `corpus` (fingerprints),
    `corpus_edits` (how many edits of the corpus it includes), `step`, `dim`, `dtype` (float32, float16 or
    bfloat16), `kind` (exact or ivf) and `borders` (shard i holds the passages from the borders[i]-th up to,
    not including, the borders[i + 1]-th).
    """

    def __init__(self, partial_folder: Path, plan: dict[str, Any], *, joins: bool = False) -> None:
        """Continue what is in `partial_folder` (named `*.partial`) if it was begun with an equal plan; begin
        again otherwise. `joins`: another process has begun it, and may end it at any moment."""
        assert partial_folder.name.endswith(".partial"), partial_folder  # it may be deleted
        if plan["dtype"] not in _DTYPES:
            names = ", ".join(_DTYPES)
            raise BadInput(f"index vectors cannot be stored as {plan['dtype']}; choose one of {names}")
        if plan["kind"] not in ("exact", "ivf"):
            raise BadInput(f"there is no index kind {plan['kind']}; choose exact or ivf")
        if len(plan["borders"]) < 2:
            raise NotEnough(f"no passage to index for {partial_folder}; add texts to the corpus first")
        self.folder = Path(partial_folder)
        self.plan = plan
        self._sound: set[int] = set()
        if joins:
            return
        text = json.dumps(plan, indent=1, sort_keys=True)
        try:
            begun = (self.folder / "plan.json").read_text("utf-8") == text
        except (OSError, ValueError):
            begun = False
        if not begun:
            self.discard()
            self.folder.mkdir(parents=True)
            write_text(self.folder / "plan.json", text)

    @classmethod
    def begun(cls, partial_folder: Path) -> "ShardedBuild":
        """One that another process began and will publish: to write shards of it."""
        try:
            plan = json.loads((partial_folder / "plan.json").read_text("utf-8"))
        except OSError as error:
            seen = f"{socket.gethostname()} does not see {partial_folder}"
            raise ArtefactMissing(f"{seen}; all machines must see the folders of corpus and index") from error
        return cls(partial_folder, plan)

    @property
    def shards(self) -> int:
        """How many shards there will be."""
        return len(self.plan["borders"]) - 1

    def missing(self) -> list[int]:
        """The shards still to be written: absent, cut off or altered. A finished shard is hashed once."""
        for shard in range(self.shards):
            if shard not in self._sound and self._is_sound(shard):
                self._sound.add(shard)
        return [shard for shard in range(self.shards) if shard not in self._sound]

    def unwritten(self) -> list[int]:
        """The shards that no process has finished, in one look; whether they are sound is not asked."""
        there = set(os.listdir(self.folder))
        return [shard for shard in range(self.shards) if _record(shard) not in there]

    def put(self, shard: int, ids_N: Tensor, vectors_ND: Tensor) -> None:
        """Write a shard; once this returns it survives a crash."""
        expected = self.plan["borders"][shard + 1] - self.plan["borders"][shard]
        if len(ids_N) != expected:
            raise BadInput(f"shard {shard} came with {len(ids_N)} passages; the plan says {expected}")
        vectors_ND = vectors_ND.detach().cpu().to(_DTYPES[self.plan["dtype"]])
        check_vectors(ids_N, vectors_ND, self.plan["dim"])
        file = self.folder / _shard(shard)
        temporary = file.with_name(f".{uuid.uuid4().hex[:8]}.part")  # no name where a link could be waiting
        ids_N = ids_N.cpu().to(torch.int64)
        save_file({"ids": ids_N.contiguous(), "vectors": vectors_ND.contiguous()}, temporary)
        fsync_file(temporary)
        checksum = sha256_of(temporary)
        temporary.replace(file)
        write_text(self.folder / _record(shard), json.dumps({"sha256": checksum}))
        fsync_file(self.folder)
        self._sound.add(shard)

    def vectors(self) -> Tensor:
        """The vectors of all shards, in their order; none may be missing."""
        shards = _map_files(self.folder, self.shards, self.plan["dtype"])
        return torch.cat([tensors["vectors"] for tensors in shards])

    def publish(self, path: Path, *, queries_QD: Tensor | None = None) -> None:
        """Turn the finished build into the version at `path`. The recall of an approximate one is measured
        with the queries.

        A kill at any moment leaves no version or a whole one, and all shards until then.
        """
        if missing := self.missing():
            lacks = f"{len(missing)} of {self.shards} shards, first {missing[0]}"
            raise NotEnough(f"{self.folder} lacks {lacks}; put them before publishing")
        with publish(path, kind="index") as draft:
            exact = _map_shards(self.folder, self.shards, self.plan["dtype"], "cpu")
            ids_N = exact.ids
            if (twice := ids_N[1:][ids_N[1:] == ids_N[:-1]]).numel():
                raise BadInput(f"passage id {int(twice[0])} is in two shards; give each passage once")
            draft.config = {name: self.plan[name] for name in ("dim", "dtype", "kind", "step")}
            draft.config["ivf"] = None
            draft.counts = {"passages": len(ids_N), "corpus_edits": self.plan["corpus_edits"]}
            draft.parents = {
                name: self.plan[name] for name in ("weights", "corpus", "state") if name in self.plan
            }
            if self.plan["kind"] == "ivf":
                draft.config["ivf"] = _write_lists(draft.path, exact, queries_QD)
            else:
                draft.counts["shards"] = self._write_shards(draft.path, exact)
        self.discard()
        renew_stamps(path)  # the shards were links to what was just discarded

    def _write_shards(self, folder: Path, exact: ExactIndex) -> int:
        """Write the shards of a version and say how many they are. Small ones are joined: each costs a search
        some steps, whatever its size."""

        def joined_shard(shard: int) -> int:
            return int(self.plan["borders"][shard] // SHARD)

        count = 0
        for _, shards in groupby(range(self.shards), key=joined_shard):
            first, *more = shards
            if more:
                rows = [exact.blocks[shard] for shard in (first, *more)]
                ids = torch.cat([block.ids_N for block in rows])
                vectors = torch.cat([block.vectors_ND for block in rows])
                save_file({"ids": ids, "vectors": vectors}, folder / _shard(count))
            else:
                _link(self.folder / _shard(first), folder / _shard(count))
            count += 1
        return count

    def discard(self) -> None:
        """Remove the folder with all that was finished in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._sound.clear()

    def _is_sound(self, shard: int) -> bool:
        file = self.folder / _shard(shard)
        try:
            record = json.loads((self.folder / _record(shard)).read_text("utf-8"))
            return bool(record["sha256"] == sha256_of(file))
        except (OSError, ValueError, KeyError, TypeError):
            return False


# --- versions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IndexInfo:
    """What the manifests of a version and of its edits say about it."""

    step: int
    dim: int
    dtype: str
    weights: str
    corpus: str
    passages: int
    corpus_edits: int
    """How many edits of the corpus it includes."""
    recall: float | None
    """Measured recall of an approximate index, the worse of that at 1 hit and at `k`; None: exact."""


def index_info(
    path: Path, *, expect_weights: str | None = None, expect_corpus: str | None = None
) -> IndexInfo:
    """What there is to know about a version without reading its vectors.

    Raises Mismatch if it was made with another document tower than `expect_weights` or of another corpus than
    `expect_corpus` (fingerprints; None: any).
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
                f"the index {shown(path)} was made {what} ({made[:12]}, not {expected[:12]}); "
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
    edits: int | None = None,
    part: tuple[int, int] = (0, 1),
) -> Index:
    """Check a version, map it into memory and apply its edits, the first `edits` of them (all if None).

    `part`: of an exact version without edits, the one of this number among so many of equal size.

    On the CPU nothing is copied. An approximate index stays on the CPU whatever the device.
    """
    path = Path(path)
    info = index_info(path, expect_weights=expect_weights, expect_corpus=expect_corpus)
    manifest = open_artefact(path, kind="index", hint=_HINT)
    index: Index
    if manifest.config["kind"] == "ivf":
        index = _map_lists(path, manifest)
    else:
        index = _map_shards(path, manifest.counts["shards"], info.dtype, device, part)
    for number in range(count_edits(path) if edits is None else edits):
        apply_edit(path, index, number + 1)
    return index


def _map_lists(path: Path, manifest: Manifest) -> IVFIndex:
    settings = dict(manifest.config["ivf"])
    measured = {name: settings.pop(name) for name in ("nprobe", "recall")}
    lists = {name: torch.from_numpy(array) for name, array in map_arrays(path / _LISTS).items()}
    exact = _map_placed(path, manifest.config["dtype"])
    return IVFIndex(exact, lists["centroids"], lists["offsets"], settings=IVFSettings(**settings), **measured)


# --- edits --------------------------------------------------------------------------------------------------


def apply_edit(path: Path, index: Index, number: int) -> int:
    """Apply one edit of a version to `index`, which has those before it; gives how many edits of the corpus
    it then includes."""
    edit = edit_place(path, number)
    manifest = open_artefact(edit, kind="index-edit")
    tensors = _map_tensors(edit / "edit.safetensors", str(index.dtype).removeprefix("torch."))
    index.remove(tensors["removed_ids"])
    index.add(tensors["added_ids"], tensors["vectors"])
    return int(manifest.counts["corpus_edits"])


def edits_contained(path: Path, edits: int | None = None) -> int:
    """How many edits of the corpus a version with its first `edits` edits (all if None) includes; of its own
    edits only the last is read."""
    return int(_newest(path, edits).counts["corpus_edits"])


def state_contained(path: Path, edits: int) -> str | None:
    """What identifies the corpus with the edits that a version with its first `edits` edits includes; None in
    indexes of older releases."""
    return _newest(path, edits).parents.get("state")


def _newest(path: Path, edits: int | None) -> Manifest:
    if edits := count_edits(path) if edits is None else edits:
        return read_manifest(edit_place(path, edits), kind="index-edit")
    return read_manifest(path, kind="index", hint=_HINT)


def save_edit(
    path: Path,
    index: Index,
    *,
    added_ids: Tensor,
    added_vectors: Tensor,
    removed_ids: Tensor,
    corpus_edits: int,
    state: str,
) -> None:
    """Write a change of the corpus as an edit of a version, and change `index`, which is that version opened
    with all its edits, too.

    From now on `added_ids` have these vectors and `removed_ids` are gone. An added passage may replace one
    and a removed one need not have been there: what counts is the state after the edit. `corpus_edits` is how
    many edits of the corpus the version then includes, `state` what identifies the corpus with them.
    """
    contained = edits_contained(path)
    if corpus_edits <= contained:
        already = f"{shown(path)} contains {contained} edits of the corpus already"
        raise BadInput(f"{already}; this one says {corpus_edits}")
    added_ids = as_ids(added_ids, torch.device("cpu"))
    removed_ids = as_ids(removed_ids, torch.device("cpu"))
    added_vectors = added_vectors.detach().cpu().to(index.dtype).reshape(-1, index.dim)
    check_vectors(added_ids, added_vectors, index.dim)  # an edit that is written must be sure to apply
    gone = torch.cat([added_ids, removed_ids]).unique()
    gone = gone[index.contains(gone).cpu()]
    with publish(edit_place(path, count_edits(path) + 1), kind="index-edit") as draft:
        tensors = {"added_ids": added_ids, "removed_ids": gone, "vectors": added_vectors}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, draft.path / "edit.safetensors")
        draft.counts = {"added": len(added_ids), "removed": len(gone), "corpus_edits": corpus_edits}
        draft.parents["state"] = state
    index.remove(gone)
    index.add(added_ids, added_vectors)


def _edits(path: Path) -> list[Path]:
    """The edits of a version, in order."""
    return [edit_place(path, number + 1) for number in range(count_edits(path))]


# --- files --------------------------------------------------------------------------------------------------


def _shard(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def _record(number: int) -> str:
    """The file that tells of a finished shard."""
    return f"shard-{number:05d}.json"


def _map_files(folder: Path, shards: int, dtype: str) -> list[dict[str, Tensor]]:
    return [_map_tensors(folder / _shard(number), dtype) for number in range(shards)]


def _map_shards(
    folder: Path, shards: int, dtype: str, device: torch.device | str, part: tuple[int, int] = (0, 1)
) -> ExactIndex:
    mapped = _map_files(folder, shards, dtype)
    blocks = [(tensors["vectors"], tensors["ids"]) for tensors in mapped]
    return ExactIndex.from_blocks(part_of(blocks, *part), device=device)


def _write_lists(folder: Path, exact: ExactIndex, queries_QD: Tensor | None) -> dict[str, Any]:
    """Write vectors, ids and lists of an approximate index; gives its settings and what was measured."""

    def place(pieces: Pieces) -> ExactIndex:
        # numpy has no bfloat16: its bits are written
        dtype = {torch.float32: np.float32, torch.float16: np.float16}.get(exact.dtype, np.uint16)
        ids = ArrayWriter(folder / _IDS, np.int64)
        vectors = ArrayWriter(folder / _VECTORS, dtype, row=(exact.dim,))
        for ids_N, vectors_ND in pieces:
            ids.append(ids_N.numpy())
            vectors.append(vectors_ND.view(torch.uint8).numpy().view(dtype))
        ids.close()
        vectors.close()
        return _map_placed(folder, str(exact.dtype).removeprefix("torch."))

    index = IVFIndex.build(exact, queries_QD=queries_QD, place=place)
    lists = {"centroids": index.centroids_LD.numpy(), "offsets": index.offsets_L.numpy()}
    save_arrays(folder / _LISTS, lists)
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
