"""The log where others write to the same place, and where nobody reads it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
if not hasattr(os, "mkfifo"):
    pytest.skip("pipes have no names here", allow_module_level=True)

from realmlm.serve import log as logs
from realmlm.serve.log import Log

WRITES = """
import sys
from pathlib import Path
from realmlm.serve.log import Log

log = Log(Path("-"), level="info")
for part in range(20):
    for number in range(60):
        log.said(f"{sys.argv[1]} {part} {number} " + "x" * (number * 7 % 300))
    log.flush()
"""


def test_lines_of_several_processes_to_one_pipe_are_whole() -> None:
    ours, theirs = os.pipe()
    writing = [subprocess.Popen([sys.executable, "-c", WRITES, name], stdout=theirs) for name in "abc"]
    os.close(theirs)
    text = b""
    while more := os.read(ours, 3000):  # slowly: a pipe that is full takes a part of what is written
        text += more
        time.sleep(0.001)
    os.close(ours)
    assert [process.wait(30) for process in writing] == [0, 0, 0]
    said = [json.loads(line)["message"].split()[:3] for line in text.splitlines()]
    for name in "abc":
        own = [(int(part), int(number)) for who, part, number in said if who == name]
        assert own == [(part, number) for part in range(20) for number in range(60)]


def test_a_log_that_nobody_reads_takes_no_more_than_it_may_and_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 2000)
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = Log(tmp_path / "log", level="info")
    for number in range(20):
        for _ in range(1000):
            log.said(f"line {number} " + "x" * 100)
        time.sleep(0.02)
    assert len(log._lines) <= 2000
    begun = time.monotonic()
    log.flush_within(0.2)
    assert time.monotonic() - begun < 5

    os.set_blocking(reader, True)
    read: list[dict[str, Any]] = []

    def take() -> None:
        with open(reader, encoding="utf-8") as lines:
            for line in lines:
                read.append(json.loads(line))
                if sum(one.get("dropped", 1) for one in read) == 20_000:
                    return

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(20)
    assert not taking.is_alive()
    dropped = [one for one in read if "dropped" in one]
    assert dropped
    assert all(one["level"] == "warning" and "lines are missing here" in one["message"] for one in dropped)
    assert len(read) - len(dropped) <= 4000
