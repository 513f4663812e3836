"""Several ranks train together, as real processes: what they learn is what one learns."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.log import read_metrics, say
from realmlm.ranks import Ranks
from realmlm.settings import Adapt
from realmlm.train.adapt import adapt
from tests.ranks import together
from tests.train.together import STEPS, train

STAGES = ("warmup", "pretrain", "towers", "finetune", "finetune-frozen", "finetune-settled")


def apart(first: Path, second: Path) -> float:
    """By how much the weights of two models differ at most."""
    one, other = (load_file(place / "model" / "model.safetensors") for place in (first, second))
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def losses(run: Path) -> list[float]:
    parts = [part for part in (run / "reader", run / "retriever", run) if (part / "metrics.jsonl").exists()]
    return [row["loss"] for part in parts for row in read_metrics(part / "metrics.jsonl") if "loss" in row]


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
