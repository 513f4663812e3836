"""Exact resume: a run that was cut off ends with the same bits as one that was not."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.log import read_metrics
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from realmlm.train.run import Run
from tests.calls import create_model, finetune, pretrain, run_pretrain, train_towers, warm_up
from tests.conftest import TINY_MODEL
from tests.train.steps import at_each_step

LOOP = Loop(log_every=2, checkpoint_every=3, deterministic=True, threads=1, seed=3)
OPTIM = JointOptim(steps=11, batch=4, accumulate=2, lr=1e-3, retriever_lr=1e-3)
IN_LINE = Refresh(every_steps=4, process=False)
Stage = Callable[[Path], Path]


class Cut(Exception):
    """Stands for a power cut."""


def cut_at(cuts: set[int], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Cut a run off in each of these steps, once; gives those still to come."""

    def cut_once(step: int) -> None:
        if step in cuts:
            cuts.discard(step)
            raise Cut

    at_each_step(cut_once, monkeypatch)
    return cuts


@pytest.fixture(
    params=[
        "warmup",
        "pretrain",
        "pretrain-same-text",
        "pretrain-own-query",
        "towers",
        "finetune",
        "finetune-refreshed",
    ]
)
def stage(
    request: pytest.FixtureRequest, tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus, world: Path
) -> Stage:
    """A training stage as a function of its folder."""
    z = knowledge.folder
    x = sentences.folder
    common: dict[str, Any] = {"model": tiny_model_folder, "corpus": z, "loop": LOOP}
    joint: dict[str, Any] = {
        "k": 3,
        "masking": "salient",
        "marginal": "joint",
        "freeze_retriever": 1,
        "probe": None,
        "probe_every": 5,
        "refresh": IN_LINE,
    }
    asking: dict[str, Any] = {
        "questions": (world / "questions-train.jsonl",),
        "read": 2,
        "candidates": 20,
        "closed_book": 0.1,
    }
    stages: dict[str, Stage] = {
        "warmup": lambda out: warm_up(
            **common,
            out=out,
            masking="uniform",
            pairing="own",
            remove_sentence=0.9,
            reader=OPTIM,
            retriever=OPTIM,
        ),
        "pretrain": lambda out: pretrain(
            **common, **joint, out=out, text=x, optim=OPTIM, scale_lr=1e-2, retriever_target="perplexity"
        ),
        "pretrain-same-text": lambda out: pretrain(**common, **joint, out=out, text=None, optim=OPTIM),
        "pretrain-own-query": lambda out: pretrain(
            **common, **joint, out=out, text=x, optim=OPTIM, search_with="index"
        ),
        "towers": lambda out: train_towers(
            **common,
            out=out,
            questions=(world / "questions-train.jsonl",),
            candidates=20,
            negatives=2,
            scale_lr=1e-2,
            optim=OPTIM,
        ),
        "finetune": lambda out: finetune(
            **common, **asking, out=out, optim=OPTIM, refresh=Refresh(every_steps=0)
        ),
        "finetune-refreshed": lambda out: finetune(
            **common, **asking, out=out, optim=OPTIM, refresh=IN_LINE, in_batch=0.5, scale_lr=1e-2
        ),
    }
    return stages[request.param]


def joint_run(model: Path, corpus: Corpus, out: Path, **changed: Any) -> Path:
    """A short deterministic pre-training with the settings that most tests share."""
    settings = Pretrain(
        model=model, corpus=corpus.folder, out=out, k=3, optim=OPTIM, refresh=IN_LINE, loop=LOOP
    )
    return run_pretrain(dataclasses.replace(settings, **changed))


def weights(model: Path) -> dict[str, Tensor]:
    return load_file(model / "model.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_cut_off_at_any_step_ends_with_the_same_bits(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(stage(tmp_path / "whole"))
    cuts = cut_at({2, 3, 7, 10}, monkeypatch)
    for _ in range(4):
        with pytest.raises(Cut):
            stage(tmp_path / "cut")
    assert same(weights(stage(tmp_path / "cut")), whole)
    assert not cuts


def test_two_undisturbed_runs_are_equal_and_rows_are_whole(
    tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus, tmp_path: Path
) -> None:
    def run(out: Path) -> Path:
        return joint_run(tiny_model_folder, knowledge, out, text=sentences.folder, marginal="per-token")

    assert same(weights(run(tmp_path / "a")), weights(run(tmp_path / "b")))
    rows = read_metrics(tmp_path / "a" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 11]
    expected = {
        "step",
        "loss",
        "log_p",
        "utility",
        "null_share",
        "top_share",
        "index_age",
        "swaps",
        "stood_still",
        "queries/s",
        "seconds",
    }
    assert expected <= set(rows[0])
    assert [row["index_age"] for row in rows] == [
        1,
        3,
        1,
        3,
        1,
        2,
    ]  # at the last step of each row; swapped before steps 4 and 8


def test_another_config_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    settings = Pretrain(out=tmp_path / "run", corpus=tmp_path, k=8)
    Run.begin(settings.out, stage="pretrain", settings=settings).close()
    with pytest.raises(Mismatch, match="--resume"):
        Run.begin(settings.out, stage="pretrain", settings=dataclasses.replace(settings, k=4))


def test_accumulation_gives_the_same_gradient(
    tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus, tmp_path: Path
) -> None:
    """The same batch in one part or in two: the weights agree up to rounding."""
    before = weights(tiny_model_folder)
    results = []
    for parts in (1, 2):
        optim = dataclasses.replace(OPTIM, steps=1, accumulate=parts, batch=4)
        out = tmp_path / f"parts{parts}"
        model = joint_run(
            tiny_model_folder, knowledge, out, text=sentences.folder, masking="whole-word", optim=optim
        )
        results.append(weights(model))
    moved = {name: (results[0][name] - before[name]).abs().max().item() for name in before}
    for name, tensor in results[0].items():
        assert torch.allclose(tensor, results[1][name], atol=2e-5), name
    assert sum(distance > 1e-4 for distance in moved.values()) > len(moved) / 2, (
        "the step must have moved most weights"
    )


def test_batches_put_together_ahead_are_the_same_batches(
    knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, which draws from the generator that nothing else may touch; cut off and resumed too."""
    model = tmp_path / "model"
    create_model(corpus=knowledge.folder, out=model, **(TINY_MODEL | {"dropout": 0.1}))
    here = weights(joint_run(model, knowledge, tmp_path / "here"))
    ahead = dataclasses.replace(LOOP, workers=2)
    assert same(here, weights(joint_run(model, knowledge, tmp_path / "ahead", loop=ahead)))
    cut_at({5}, monkeypatch)
    with pytest.raises(Cut):
        joint_run(model, knowledge, tmp_path / "cut", loop=ahead)
    assert same(here, weights(joint_run(model, knowledge, tmp_path / "cut", loop=ahead)))


def test_an_error_of_another_process_is_the_same_error(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, first: int, count: int) -> None:
        raise NotEnough("too little of it")

    monkeypatch.setattr("realmlm.train.data.SentenceSource.draw", broken)
    with pytest.raises(NotEnough, match=r"^too little of it$"):
        joint_run(tiny_model_folder, knowledge, tmp_path / "run", loop=dataclasses.replace(LOOP, workers=2))


def test_a_run_lets_go_of_what_it_needs_no_more_only_when_all_have_left_it(tmp_path: Path) -> None:
    with Run.begin(tmp_path / "run", stage="pretrain", settings=None) as run:
        for name in ("model", "index", "snapshots"):
            (run.folder / name).mkdir()
        assert (run.folder / "index").exists(), "its refresher may still write there"
    assert {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()} == {"model"}


def test_several_trainers_that_cannot_meet_are_told_how_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun sets it, which sets more beside it
    with pytest.raises(BadInput, match="start them with torchrun"):
        Run.begin(tmp_path / "run", stage="pretrain", settings=None)
    assert not (tmp_path / "run").exists()
