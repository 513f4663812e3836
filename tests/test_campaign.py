"""A short round of the fault campaign, and that it notices what fails."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.inputs import Inputs
from tests.test_docs import ROOT, load_tool


def test_a_short_round() -> None:
    pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
    pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
    counts = ["--kills", "1", "--damage", "15", "--inputs", "300", "--seconds", "1", "--clients", "8"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "campaign.py"), *counts, "--seed", "12"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[1:4] for line in done.stdout.splitlines() if line.startswith("| **")]
    assert [[cell.strip(" *") for cell in row] for row in rows] == [
        ["kills", "1", "0"],
        ["damage", "15", "0"],
        ["inputs", "300", "0"],
        ["clients", "1", "0"],
    ]


def test_what_fails_is_counted_and_can_be_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    tool = load_tool("campaign")

    def case(rng: random.Random) -> tuple[str, str | None]:
        return "a die", "it was a six" if rng.randint(1, 6) == 6 else None

    tally = tool.campaign({"dice": (60, case)}, seed=1)["dice"]
    assert tally.outcomes == {"a die": 60}
    assert 3 < len(tally.failures) < 20
    assert f"| a die | 60 | {len(tally.failures)} | |" in tool.table({"dice": tally})
    number = tally.failures[0].partition(" ")[0]
    (again,) = tool.campaign({"dice": (60, case)}, seed=1, only=number)["dice"].failures
    assert again == tally.failures[0]


def test_a_reader_that_raises_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object, **__: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.faults.inputs.read_articles", stumble)
    monkeypatch.setattr("tests.faults.inputs.read_questions", stumble)
    inputs = Inputs(tmp_path, tmp_path / "inputs")
    monkeypatch.setattr(inputs, "_request", inputs._questions)
    assert all("ZeroDivisionError" in str(inputs(random.Random(seed))[1]) for seed in range(20))
