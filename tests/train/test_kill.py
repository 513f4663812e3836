"""Trainer and refresher are killed (SIGKILL) at several moments each, in the middle of checkpoints and
publications among them.

The run goes on and ends with the same weights as an undisturbed deterministic run.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.index.refresh import serve_refreshes
from realmlm.log import read_metrics
from realmlm.model.snapshot import load_snapshot
from realmlm.parallel import sheltered
from realmlm.settings import JointOptim, Loop, Refresh
from realmlm.train.run import Run
from tests.forked import CONTEXT
from tests.train import killers
from tests.train.killers import Death
from tests.train.test_resume import same

STEPS = 44


@pytest.fixture(scope="module")
def arguments(tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus) -> dict[str, Any]:
    """A deterministic run with its refresher as a process of its own."""
    return {
        "model": tiny_model_folder,
        "corpus": knowledge.folder,
        "text": sentences.folder,
        "k": 3,
        "masking": "salient",
        "marginal": "joint",
        "freeze_retriever": 0,
        "search_with": "index",  # checkpoints then have two more towers, while an index is pending
        "probe": None,
        "probe_every": 100,
        "optim": JointOptim(steps=STEPS, batch=4, lr=1e-3, retriever_lr=1e-3),
        "refresh": Refresh(every_steps=4, swap_after=3, shard=64),
        "loop": Loop(log_every=1, checkpoint_every=5, deterministic=True, threads=1, device="cpu"),
    }


@pytest.fixture(scope="module")
def undisturbed(
    arguments: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[str]]:
    """Weights of a run that nobody killed, and the file operations of its trainer."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert live(killers.train, {**arguments, "out": folder / "run"}, None, folder / "log") == 0
    return load_file(folder / "run" / "model" / "model.safetensors"), (
        folder / "log"
    ).read_text().splitlines()


def live(life: Any, *arguments: Any) -> int | None:
    """Run a life in a process of its own to its end; gives the exit code."""
    process = CONTEXT.Process(target=life, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    return int(process.exitcode)


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.scale)])
def test_the_trainer_is_killed(
    kills: int, arguments: dict[str, Any], undisturbed: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    weights, operations = undisturbed
    rng = random.Random(0)
    deaths = [
        Death("/checkpoints/.step", rng.randint(2, 6)),  # its files written, not yet renamed
        Death("/snapshots/.step", rng.randint(2, 5)),
        Death("/checkpoints/.step", rng.randint(7, 12)),
        Death("/index/step", 1),
        *(Death("", rng.randint(1, len(operations) // 3)) for _ in range(5)),
    ][: kills - 1]
    rng.shuffle(deaths)
    deaths.append(Death("/model", rng.randint(1, 4)))  # only the last life gets that far
    run = {**arguments, "out": tmp_path / "run"}
    codes = [live(killers.train, run, death, tmp_path / "log") for death in deaths]
    assert codes == [-9] * kills, "each of them must have died"
    assert live(killers.train, run, None, tmp_path / "log") == 0
    assert same(load_file(tmp_path / "run" / "model" / "model.safetensors"), weights)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "no row lost, none twice"
    assert not list((tmp_path / "run").rglob(".*.tmp")), "nothing half-written is left"


def test_the_refresher_is_killed_ten_times(
    arguments: dict[str, Any], undisturbed: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    rng = random.Random(1)
    deaths = [
        *(["/index/.step", rng.randint(1, 12)] for _ in range(4)),  # shards of the build
        *([".tmp/", number] for number in (1, 3, 6)),  # in the middle of publishing
        ["/snapshots/step", rng.randint(1, 3)],
        *(["", rng.randint(1, 30)] for _ in range(2)),
    ]
    rng.shuffle(deaths)
    plan = tmp_path / "plan"
    plan.write_text(json.dumps(deaths))
    assert live(killers.train_with_doomed_refreshers, {**arguments, "out": tmp_path / "run"}, plan) == 0
    assert json.loads(plan.read_text()) == [], "each of the ten must have been started"
    assert same(load_file(tmp_path / "run" / "model" / "model.safetensors"), undisturbed[0])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["restarts"] == 10


def test_nothing_of_a_killed_trainer_holds_its_run(arguments: dict[str, Any], tmp_path: Path) -> None:
    """Processes that put batches together were forked with the lock open."""
    loop = Loop(log_every=1, checkpoint_every=5, threads=1, device="cpu", workers=2)
    run = {**arguments, "loop": loop, "out": tmp_path / "run"}
    assert live(killers.train, run, Death("/checkpoints/.step", 3), tmp_path / "log") == -9
    time.sleep(1)  # less than it takes to start a command
    Run(tmp_path / "run").close()


def test_a_refresher_leaves_ctrl_c_to_the_trainer(knowledge: Corpus, tmp_path: Path) -> None:
    arguments = (tmp_path, knowledge.folder, 0, load_snapshot, "cpu", torch.float16, 64)
    # as it is started in training
    process = multiprocessing.get_context("spawn").Process(target=serve_refreshes, args=arguments)
    with sheltered():
        process.start()
    try:
        os.kill(process.pid or 0, signal.SIGINT)  # while it starts
        while not (tmp_path / ".refresher.lock").exists():
            assert process.is_alive()
            time.sleep(0.01)
        os.kill(process.pid or 0, signal.SIGINT)
        process.join(1)
        assert process.exitcode is None
    finally:
        process.kill()
        process.join()


def test_training_goes_on_while_an_index_is_built(
    arguments: dict[str, Any], undisturbed: object, tmp_path: Path
) -> None:
    """Without fixed swaps: steps are made while the refresher works, and the index's age falls when it is
    swapped in."""
    free = {
        **arguments,
        "refresh": Refresh(every_steps=4, shard=64),
        "loop": Loop(log_every=1, threads=1, device="cpu"),
    }
    free["optim"] = JointOptim(steps=400, batch=4, lr=1e-3, retriever_lr=1e-3)
    assert live(killers.train, {**free, "out": tmp_path / "run"}, None, tmp_path / "log") == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    beside = [row["steps_beside"] for row in rows]
    assert beside[-1] > 10, "training stood still while the index was built"
    falls = [
        new["index_age"] - old["index_age"] for old, new in pairwise(rows) if new["swaps"] > old["swaps"]
    ]
    assert falls, "no index was swapped in"
    assert all(fall < 1 for fall in falls), "the index's age must fall when a new one comes in"
    assert all(row["seconds"].get("refresh", 0) < 1.0 for row in rows[1:]), (
        "the trainer waited for the refresher"
    )
