"""torchrun's ranks are killed, stopped and refused: a run ends at once and says why, or goes on by itself."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.log import read_metrics
from tests.ranks import torchrun
from tests.train.test_resume import same

pytestmark = [pytest.mark.scale, pytest.mark.timeout(1200)]

STEPS = 300
KILLS = 20


@pytest.fixture
def command(tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus) -> Callable[..., dict[str, Any]]:
    """A deterministic pre-training by two ranks, whose refresher is a process of its own."""

    def made(out: Path, *more: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        places = (
            f"--model {tiny_model_folder} --corpus {knowledge.folder} --text {sentences.folder} --out {out}"
        )
        how = f"--k 3 --optim.steps {STEPS} --optim.batch 4 --optim.lr 1e-3 --optim.retriever-lr 1e-3"
        loop = "--loop.log-every 1 --loop.checkpoint-every 3 --loop.threads 1 --loop.deterministic --loop.device cpu"
        refresh = "--refresh.every-steps 40 --refresh.swap-after 20 --refresh.shard 64"
        words = f"{places} {how} {loop} {refresh}".split()
        return torchrun(2, "realmlm", "pretrain", *words, *more, options=options)

    return made


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started, as far as they are there."""
    try:
        return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    except FileNotFoundError:
        return []


def rows(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(read_metrics(file)) if file.exists() else 0


def wait_for(ready: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    while not ready() and process.poll() is None:
        time.sleep(0.02)


def test_twenty_kills_lose_nothing(command: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    subprocess.run(**command(tmp_path / "whole"), check=True)
    chance = random.Random(0)
    killed = tmp_path / "killed"
    options = ("--max-restarts", str(KILLS), "--monitor-interval", "0.1")
    with subprocess.Popen(**command(killed, options=options) | {"stderr": None}) as process:
        for number in range(KILLS):
            if number % 4 == 0:  # while they start
                wait_for(lambda: len(ranks_of(process.pid)) == 2, process)
                time.sleep(5 * chance.random())
            else:
                done = rows(killed)
                wait_for(lambda done=done: rows(killed) not in (0, done), process)  # type: ignore[misc]
                time.sleep(chance.random())
            doomed = chance.choice(ranks_of(process.pid))
            os.kill(doomed, signal.SIGKILL)
            wait_for(lambda doomed=doomed: doomed not in ranks_of(process.pid), process)  # type: ignore[misc]
        assert process.wait() == 0
    assert same(
        load_file(killed / "model" / "model.safetensors"),
        load_file(tmp_path / "whole" / "model" / "model.safetensors"),
    )
    losses = [
        [(row["step"], row["loss"]) for row in read_metrics(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "killed")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS


def test_a_rank_that_dies_ends_the_run_and_it_goes_on_when_it_is_called_again(
    command: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(**command(run)) as process:
        wait_for(lambda: rows(run) > 5, process)
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        begun = time.monotonic()
        _, said = process.communicate()
    assert process.returncode != 0
    assert time.monotonic() - begun < 10
    assert "Signal 9 (SIGKILL)" in said
    with subprocess.Popen(**command(run)) as process:
        wait_for(lambda: rows(run) > 20, process)
        process.send_signal(signal.SIGTERM)  # as a scheduler does
        _, said = process.communicate()
    assert said.count("resumed at step") == 1
    assert "stopping after this step" in said
    stopped = int(max(path.name for path in (run / "checkpoints").iterdir())[5:])
    assert stopped == max(row["step"] for row in read_metrics(run / "metrics.jsonl"))


def test_what_is_wrong_is_said_and_all_ranks_end(
    command: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    done = subprocess.run(**command(tmp_path / "run", "--optim.batch", "3"), check=False)
    assert done.returncode != 0
    assert "3 examples cannot be shared evenly by 2 ranks" in done.stderr
    assert not (tmp_path / "run").exists()
    done = subprocess.run(**command(tmp_path / "run", "--corpus", str(tmp_path / "none")), check=False)
    assert done.returncode != 0
    assert f"error: no corpus in {tmp_path / 'none'}" in done.stderr
