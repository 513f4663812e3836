"""Several ranks train together, as real processes: what they learn is what one learns."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.log import read_metrics, say
from realmlm.model.cut import is_cut
from realmlm.model.realm import Realm
from realmlm.ranks import Ranks
from realmlm.settings import Adapt, Finetune, Loop
from realmlm.train.adapt import adapt
from tests.ranks import together
from tests.train.together import STEPS, train

STAGES = ("warmup", "pretrain", "towers", "finetune", "finetune-frozen", "finetune-settled")
CUT = ("warmup", "probed", "towers")


def apart(first: Path, second: Path) -> float:
    """By how much the weights of two models differ at most."""
    one, other = (load_file(place / "model" / "model.safetensors") for place in (first, second))
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def losses(run: Path) -> list[float]:
    parts = [part for part in (run / "reader", run / "retriever", run) if (part / "metrics.jsonl").exists()]
    return [row["loss"] for part in parts for row in read_metrics(part / "metrics.jsonl") if "loss" in row]


def numbers(run: Path) -> list[dict[str, float]]:
    """The rows, without what is measured in seconds."""
    parts = [part for part in (run / "reader", run / "retriever", run) if (part / "metrics.jsonl").exists()]
    timed = {"seconds", "queries/s", "stood_still"}
    return [
        {name: value for name, value in row.items() if name not in timed}
        for part in parts
        for row in read_metrics(part / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def root(
    world: Path,
    knowledge: Corpus,
    sentences: Corpus,
    tiny_model_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with all that the stages need."""
    folder = tmp_path_factory.mktemp("together")
    places = {"knowledge": knowledge.folder, "sentences": sentences.folder, "world": world}
    for name, place in (places | {"model": tiny_model_folder}).items():
        (folder / name).symlink_to(place)
    return folder


@pytest.fixture(scope="module")
def trained(root: Path) -> Path:
    """Runs of one process and of two ranks, whole and cut off by one to go on with the other."""
    train(root, {f"one-{name}": {"stage": name} for name in STAGES})
    train(root, {"one-then-two": {"stage": "pretrain", "stop": 9}})
    plan: dict[str, Any] = {f"two-{name}": {"stage": name} for name in STAGES}
    plan |= {"one-then-two": {"stage": "pretrain"}, "two-then-one": {"stage": "pretrain", "stop": 9}}
    together(2, train, root, plan)
    assert not (root / "two-then-one" / "model").exists()
    train(root, {"two-then-one": {"stage": "pretrain"}})
    return root


@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_learn_what_one_process_learns(trained: Path, stage: str) -> None:
    one = trained / f"one-{stage}"
    two = trained / f"two-{stage}"
    assert len(losses(one)) >= STEPS
    # a row has five digits
    assert losses(two) == pytest.approx(losses(one), abs=1.5e-5)
    for row, expected in zip(numbers(two), numbers(one), strict=True):
        assert row == pytest.approx(expected, abs=3e-5)
    assert apart(one, two) < 1e-5
    begun = load_file(trained / "model" / "model.safetensors")
    ended = load_file(two / "model" / "model.safetensors")
    assert stage != "finetune-settled" or ended["query.log_scale"] != 0
    assert max(float((begun[name] - ended[name]).abs().max()) for name in begun) > 1e-4, (
        "something was learned"
    )


@pytest.mark.parametrize("run", ["one-then-two", "two-then-one"])
def test_a_run_goes_on_with_another_number_of_ranks(trained: Path, run: str) -> None:
    assert losses(trained / run) == pytest.approx(losses(trained / "one-pretrain"), abs=1.5e-5)
    assert apart(trained / run, trained / "one-pretrain") < 1e-5


# --- with layers that are cut -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut(root: Path) -> Path:
    """Runs of one process, and the same by two ranks, each of which holds half of every layer."""
    train(root, {f"whole-{name}": {"stage": name} for name in (*CUT, "pretrain")})
    train(root, {"one-then-cut": {"stage": "pretrain", "stop": 9}})
    plan: dict[str, Any] = {f"cut-{name}": {"stage": name, "shard": True} for name in CUT}
    plan |= {"one-then-cut": {"stage": "pretrain", "shard": True, "resume": True}}
    plan |= {"cut-then-one": {"stage": "pretrain", "stop": 9, "shard": True}}
    together(2, train, root, plan)
    assert not (root / "cut-then-one" / "model").exists()
    train(root, {"cut-then-one": {"stage": "pretrain", "resume": True}})
    return root


@pytest.mark.scale
@pytest.mark.parametrize("stage", CUT)
def test_ranks_with_halves_of_layers_learn_what_one_process_learns(cut: Path, stage: str) -> None:
    assert losses(cut / f"cut-{stage}") == pytest.approx(losses(cut / f"whole-{stage}"), abs=1.5e-5)
    assert apart(cut / f"whole-{stage}", cut / f"cut-{stage}") < 1e-5
    measured = [
        [
            row["recall@1"]
            for row in read_metrics(cut / f"{name}-{stage}" / "metrics.jsonl")
            if "recall@1" in row
        ]
        for name in ("whole", "cut")
        if stage == "probed"
    ]
    assert not measured or (measured[0] == measured[1] and len(measured[0]) == 3)


@pytest.mark.scale
@pytest.mark.parametrize("run", ["one-then-cut", "cut-then-one"])
def test_a_run_goes_on_with_layers_cut_or_whole(cut: Path, run: str) -> None:
    assert losses(cut / run) == pytest.approx(losses(cut / "whole-pretrain"), abs=1.5e-5)
    assert apart(cut / run, cut / "whole-pretrain") < 1e-5


def halves(model: Path, out: Path) -> None:
    """What a rank holds of a model, before and after its layers are cut, while they are whole, and then."""
    realm = Realm.from_pretrained(model)
    ranks = Ranks.join()
    held = [sizes(realm)]
    before = {name: tensor.clone() for name, tensor in realm.state_dict().items()}
    realm.cut_layers(ranks)
    held.append(sizes(realm))
    with realm.whole():
        held.append(sizes(realm))
        if ranks.first:  # what one does alone
            assert realm.embed_passages(["The heron is a bird."]).shape == (1, realm.config.projection)
    held.append(sizes(realm))
    realm.join_layers()
    held.append(sizes(realm))
    assert all(bool((before[name] == tensor).all()) for name, tensor in realm.state_dict().items())
    (out / str(ranks.rank)).write_text(json.dumps(held))


def sizes(realm: Realm) -> list[int]:
    """Numbers of this rank in the layers, and in all else."""
    count = [0, 0]
    for name, parameter in realm.named_parameters():
        here = parameter.to_local() if is_cut(parameter) else parameter  # type: ignore[attr-defined]
        count[".layers." not in name] += here.numel()
    return count


@pytest.mark.scale
def test_each_rank_holds_its_part(tiny_model_folder: Path, tmp_path: Path) -> None:
    together(2, halves, tiny_model_folder, tmp_path)
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    (layers, rest), *_ = first
    assert layers > 0
    assert first[0] == first[2] == first[4] == second[0]
    assert first[1] == first[3]
    assert first[1][0] + second[1][0] == layers
    assert first[1][0] < 0.6 * layers
    assert first[1][1] == rest


def test_fine_tuning_has_whole_layers(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--loop.shard is for warmup, pretrain and towers"):
        Finetune(corpus=tmp_path, questions=(tmp_path,), out=tmp_path, loop=Loop(shard=True))


def test_one_rank_speaks_and_each_says_its_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, heard in (("0", "told failed"), ("1", "failed")):
        monkeypatch.setenv("RANK", rank)
        say("told")
        say("failed", whoever=True)
        assert capsys.readouterr().err.split() == heard.split()


def test_adapting_is_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="leave out torchrun"):
        adapt(Adapt(docs=((tmp_path,),), out=tmp_path / "adapted"))


def test_a_batch_must_be_shared_evenly() -> None:
    assert Ranks(rank=1, count=2).share(6) == 3
    with pytest.raises(BadInput, match="a multiple of 4"):
        Ranks(rank=0, count=4).share(6)
