"""Index artefacts: resumed builds, publishing that a kill cannot halve, edits that equal a new index."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import ArtefactDamaged, ArtefactExists, ArtefactMissing, BadInput, Mismatch, NotEnough
from realmlm.index import ivf, store
from realmlm.index.ivf import IVFIndex, IVFSettings
from realmlm.index.store import ShardedBuild, edits_contained, index_info, open_index, save_edit
from realmlm.storage import artefacts

PLAN: dict[str, Any] = {
    "weights": "w" * 64,
    "corpus": "c" * 64,
    "corpus_edits": 2,
    "step": 500,
    "dim": 3,
    "dtype": "float16",
    "kind": "exact",
    "borders": [0, 4, 8, 10],
}


@pytest.fixture(autouse=True, scope="module")
def small_shards() -> Iterator[None]:
    """Of the plan's shards the first two are put together when they are published, the third stands alone."""
    with patch.object(store, "SHARD", 8):
        yield


def shard_of(plan: dict[str, Any], shard: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Passage n has the id 10·n and a vector of whole numbers, so that every dtype holds it exactly."""
    numbers = torch.arange(plan["borders"][shard], plan["borders"][shard + 1])
    return 10 * numbers, torch.stack([numbers, numbers % 3, -numbers], 1).float()


def finished(path: Path, plan: dict[str, Any]) -> ShardedBuild:
    build = ShardedBuild(path.with_name(f".{path.name}.partial"), plan)
    for shard in build.missing():
        build.put(shard, *shard_of(plan, shard))
    return build


def published(path: Path, **changes: Any) -> Path:
    finished(path, PLAN | changes).publish(path)
    return path


@pytest.mark.parametrize("kind", ["exact", "ivf"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_round_trip(tmp_path, dtype, kind):
    path = published(tmp_path / "step-00000500", dtype=dtype, kind=kind)
    index = open_index(path, expect_weights="w" * 64, expect_corpus="c" * 64)
    assert index.ids.tolist() == list(range(0, 100, 10))
    assert index.vectors(torch.tensor([70, 0])).tolist() == [[7, 1, -7], [0, 0, 0]]
    assert index.search(torch.tensor([[1.0, 0, 0]]), 3).ids_QK.tolist() == [[90, 80, 70]]
    info = index_info(path)
    assert (info.step, info.passages, info.corpus_edits, info.dtype, info.recall) == (
        500,
        10,
        2,
        dtype,
        None if kind == "exact" else 1.0,
    )
    assert not (tmp_path / ".step-00000500.partial").exists()


def test_a_shard_is_not_written_through_a_link(tmp_path):
    """An index half built may come with someone else's corpus."""
    build = ShardedBuild(tmp_path / ".x.partial", PLAN)
    (tmp_path / "mine.txt").write_text("three years of notes")
    for name in ("shard-00000.part", "shard-00000.safetensors", "shard-00000.json"):
        (build.folder / name).symlink_to(tmp_path / "mine.txt")
    build.put(0, *shard_of(PLAN, 0))
    assert (tmp_path / "mine.txt").read_text() == "three years of notes"


def test_a_crashed_build_goes_on(tmp_path):
    folder = tmp_path / ".x.partial"
    ShardedBuild(folder, PLAN).put(1, *shard_of(PLAN, 1))
    build = ShardedBuild(folder, dict(PLAN))
    assert build.missing() == [0, 2]
    with pytest.raises(NotEnough, match="lacks 2 of 3 shards, first 0"):
        build.publish(tmp_path / "x")
    assert ShardedBuild(folder, PLAN | {"weights": "other"}).missing() == [0, 1, 2]


def test_a_build_in_other_shards_begins_anew(tmp_path):
    folder = tmp_path / ".x.partial"
    ShardedBuild(folder, PLAN).put(0, *shard_of(PLAN, 0))
    other = PLAN | {"borders": [0, 2, 10]}
    assert ShardedBuild(folder, other).missing() == [0, 1]
    assert sorted(file.name for file in folder.iterdir()) == ["plan.json"]


@pytest.mark.parametrize("borders", [[0, 4, 8, 10], [0, 8, 10], [*range(11)], [0, 3, 6, 9, 10], [0, 10]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_shards_are_put_together_when_they_are_published(tmp_path, borders, dtype):
    path = published(tmp_path / "x", borders=borders, dtype=dtype)
    names = sorted(file.name for file in path.glob("shard-*"))
    assert names == [f"shard-{number:05d}.safetensors" for number in range(1 if borders[-2] < 8 else 2)]
    whole = published(tmp_path / "whole", borders=[0, 10], dtype=dtype)
    queries = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    one, other = (open_index(place).search(queries, 10) for place in (path, whole))
    assert torch.equal(one.ids_QK, other.ids_QK)
    assert torch.equal(one.scores_QK, other.scores_QK)


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-5], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""]
)
def test_a_harmed_shard_is_redone(tmp_path, harm):
    build = finished(tmp_path / "x", PLAN)
    file = build.folder / "shard-00001.safetensors"
    file.write_bytes(harm(file.read_bytes()))
    again = ShardedBuild(build.folder, PLAN)
    assert again.missing() == [1]
    again.put(1, *shard_of(PLAN, 1))
    again.publish(tmp_path / "x")
    assert len(open_index(tmp_path / "x")) == 10


def test_a_shard_without_its_record_is_redone(tmp_path):
    build = finished(tmp_path / "x", PLAN)
    (build.folder / "shard-00002.json").unlink()
    (build.folder / "shard-00000.json").write_text("[1")
    assert ShardedBuild(build.folder, PLAN).missing() == [0, 2]


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it, and nothing is tidied up."""


@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_a_kill_while_publishing_leaves_none_or_all(tmp_path, kind):
    """Die at the n-th file operation of publishing, for every n."""
    plan = PLAN | {"kind": kind}
    for moment in range(200):
        path = tmp_path / f"{moment}" / "step-00000500"
        build = finished(path, plan)
        calls = 0

        def dying(real: Any, moment: int = moment) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > moment:
                    raise Killed
                return real(*arguments, **named)

            return call

        names = [(os, "link"), (os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "write_text")]
        patches = [patch.object(owner, name, dying(getattr(owner, name))) for owner, name in names]
        patches.append(patch.object(artefacts.shutil, "rmtree", dying(artefacts.shutil.rmtree)))
        for one in patches:
            one.start()
        try:
            build.publish(path)
            survived = True
        except Killed:
            survived = False
        finally:
            for one in patches:
                one.stop()
        if path.exists():
            assert len(open_index(path)) == 10
        else:
            again = ShardedBuild(build.folder, plan)
            assert again.missing() == []
            again.publish(path)
            assert len(open_index(path)) == 10
        if survived:
            break
    assert 5 < moment < 199


def test_publishing_needs_an_empty_place_and_distinct_ids(tmp_path):
    path = published(tmp_path / "x")
    with pytest.raises(ArtefactExists):
        finished(path, PLAN).publish(path)
    build = finished(tmp_path / "y", PLAN)
    build.put(1, shard_of(PLAN, 0)[0], shard_of(PLAN, 1)[1])
    with pytest.raises(BadInput, match="passage id 0 is in two shards"):
        build.publish(tmp_path / "y")


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        (torch.arange(3), torch.ones(3, 3), "came with 3 passages; the plan says 4"),
        (torch.arange(4), torch.ones(4, 2), "vectors of 3 numbers"),
        (torch.arange(4), torch.full((4, 3), 1e6), "infinity"),
        (torch.tensor([0, 1, 1, 2]), torch.ones(4, 3), "passage ids 1 come twice"),
    ],
)
def test_bad_shards_are_refused(tmp_path, ids, vectors, message):
    build = ShardedBuild(tmp_path / ".x.partial", PLAN)
    with pytest.raises(BadInput, match=message):
        build.put(0, ids, vectors)
    assert build.missing() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dtype": "int8"}, BadInput, "int8"),
        ({"kind": "hnsw"}, BadInput, "hnsw"),
        ({"borders": [0]}, NotEnough, "no passage"),
    ],
)
def test_bad_plans_are_refused(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        ShardedBuild(tmp_path / ".x.partial", PLAN | changes)


def test_mismatch_and_damage_say_what_to_do(tmp_path):
    path = published(tmp_path / "x")
    with pytest.raises(Mismatch, match=r"other document weights .* make it again: realmlm index"):
        open_index(path, expect_weights="v" * 64)
    with pytest.raises(Mismatch, match="another corpus"):
        open_index(path, expect_corpus="d" * 64)
    file = path / "shard-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x77")
    with pytest.raises(ArtefactDamaged, match=r"shard-00001\.safetensors"):
        open_index(path)
    with pytest.raises(ArtefactMissing, match="make one: realmlm index"):
        open_index(tmp_path / "nowhere")


@settings(max_examples=15, deadline=None)
@given(
    edits=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 20), st.integers(-9, 9), max_size=4),
            st.sets(st.integers(0, 20), max_size=4),
        ),
        max_size=4,
    ),
    kind=st.sampled_from(["exact", "ivf"]),
)
def test_edits_equal_the_state_they_describe(tmp_path_factory, edits, kind):
    path = published(tmp_path_factory.mktemp("edits") / "x", kind=kind)
    live = open_index(path)
    state = dict(zip(live.ids.tolist(), live.vectors(live.ids).tolist(), strict=True))
    for number, (added, removed) in enumerate(edits, 3):
        removed = removed - set(added)
        vectors = torch.tensor([[value, 0.0, 1.0] for value in added.values()])
        changed = {
            "added_ids": torch.tensor(list(added)),
            "added_vectors": vectors,
            "removed_ids": torch.tensor(list(removed)),
        }
        save_edit(path, live, **changed, corpus_edits=number, state="s")
        state = {i: vector for i, vector in state.items() if i not in removed} | {
            i: [value, 0.0, 1.0] for i, value in added.items()
        }
        index = open_index(path)
        assert index.ids.tolist() == sorted(state)
        assert (
            index.vectors(index.ids).tolist()
            == live.vectors(live.ids).tolist()
            == [state[i] for i in sorted(state)]
        )
        assert live.ids.tolist() == sorted(state)
        assert isinstance(index, IVFIndex) == (kind == "ivf")
        if kind == "exact":
            best = sorted((-(v[0] + v[2]), i) for i, v in state.items())[:5]
            for one in (index, live):
                assert one.search(torch.tensor([[1.0, 0, 1]]), 5).ids_QK[0].tolist() == [i for _, i in best]
        assert index_info(path).corpus_edits == number
        assert index_info(path).passages == len(state)


def test_bad_edits_are_refused_and_leave_nothing(tmp_path):
    path = published(tmp_path / "x")
    index = open_index(path)
    none = torch.tensor([])
    with pytest.raises(BadInput, match="contains 2 edits of the corpus already"):
        save_edit(
            path,
            index,
            added_ids=none,
            added_vectors=none,
            removed_ids=torch.tensor([10]),
            corpus_edits=2,
            state="s",
        )
    with pytest.raises(BadInput, match="NaN"):
        save_edit(
            path,
            index,
            added_ids=torch.tensor([1]),
            added_vectors=torch.full((1, 3), torch.nan),
            removed_ids=none,
            corpus_edits=3,
            state="s",
        )
    assert len(open_index(path)) == len(index) == 10
    assert index_info(path).corpus_edits == edits_contained(path) == 2
    for number in (3, 4):
        save_edit(
            path,
            index,
            added_ids=none,
            added_vectors=none,
            removed_ids=torch.tensor([10 * number]),
            corpus_edits=number,
            state="s",
        )
    (path / "edits" / "000001").rename(path / "edits" / "aside")
    with pytest.raises(ArtefactDamaged, match="000001 is missing"):
        open_index(path)


def test_an_approximate_index_is_not_trained_again(tmp_path):
    # the usual ones may be others when it is opened
    with patch.object(ivf, "IVFSettings", lambda: IVFSettings(target=1.0, k=3)):
        path = published(tmp_path / "x", kind="ivf")
    with patch.object(IVFIndex, "build", side_effect=AssertionError):
        index = open_index(path)
    assert isinstance(index, IVFIndex)
    assert index.recall == index_info(path).recall == 1.0
    assert index.settings.k == 3
    assert index.search(torch.tensor([[1.0, 0, 0]]), 1).ids_QK.tolist() == [[90]]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_opening_reads_neither_vectors_nor_ids(tmp_path, kind):
    path = published(tmp_path / "x", kind=kind)
    index = open_index(path)
    assert len(index) == 10
    files = ("shard-", "vectors", "ids")
    assert sum(resident_kb(path, name) for name in files) == 0
    index.search(torch.ones(1, 3), 1)
    assert sum(resident_kb(path, name) for name in files) > 0


def resident_kb(folder: Path, name: str) -> int:
    """How much of the mapped files in `folder` that begin with `name` this process has touched."""
    found = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = f"{folder}/{name}" in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found
