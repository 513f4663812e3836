"""Claims: each piece of work has one living process at most, and the work of dead ones is taken over."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

from realmlm.storage.claims import Claims

CONTEXT = multiprocessing.get_context("fork")


def take_all(folder: Path, number: int, began: Any) -> None:
    began.wait()
    with Claims(folder) as claims:
        taken = []
        while (piece := claims.take(range(50))) is not None:
            taken.append(piece)
        (folder / f"taken-{number}").write_text(json.dumps(taken))
        began.wait()  # none gives back before all have looked


def test_each_piece_is_taken_once(tmp_path: Path) -> None:
    began = CONTEXT.Barrier(4)
    takers = [CONTEXT.Process(target=take_all, args=(tmp_path, number, began)) for number in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(30)
    taken = [json.loads((tmp_path / f"taken-{number}").read_text()) for number in range(4)]
    assert sorted(chain(*taken)) == list(range(50))


def test_what_is_given_back_can_be_taken_again(tmp_path: Path) -> None:
    with Claims(tmp_path) as first, Claims(tmp_path) as second:
        assert (first.take([7, 8]), second.take([7, 8])) == (7, 8)
        assert second.take([7]) is None
        first.release(7)
        assert second.take([7]) == 7
    with Claims(tmp_path) as third:
        assert [third.take([7, 8]) for _ in range(3)] == [7, 8, None], "all were given back in the end"


HOLD = "import sys, time, pathlib; from realmlm.storage.claims import Claims\n"
HOLD += (
    "with Claims(pathlib.Path(sys.argv[1])) as claims: claims.take([0]); print(1, flush=True); time.sleep(60)"
)


def test_a_dead_process_of_this_machine_is_noticed_at_once(tmp_path: Path) -> None:
    """Though its parent has not yet asked what became of it."""
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with Claims(tmp_path) as claims:
            assert claims.take([0]) is None
            os.kill(holder.pid, signal.SIGKILL)
            deadline = time.monotonic() + 5
            while claims.take([0]) is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def of_another_machine(folder: Path) -> Path:
    claim = folder / "claim-00000-000"
    claim.write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "life": "1"}))
    return claim


def test_another_machine_is_dead_when_it_gives_no_sign_of_life(tmp_path: Path) -> None:
    of_another_machine(tmp_path)
    with Claims(tmp_path, patience_s=0.2) as claims:
        assert claims.take([0]) is None, "its clock may be wrong: only what changes here counts"
        time.sleep(0.3)
        assert claims.take([0]) == 0


def test_another_machine_that_gives_signs_of_life_keeps_its_claim(tmp_path: Path) -> None:
    claim = of_another_machine(tmp_path)
    with Claims(tmp_path, patience_s=0.2) as claims:
        for minutes in range(5):
            os.utime(claim, (60 * minutes, 60 * minutes))
            assert claims.take([0]) is None
            time.sleep(0.1)


def test_a_claim_whose_process_was_held_up_does_not_end_its_successors(tmp_path: Path) -> None:
    with Claims(tmp_path) as late:
        late.take([0])
        claim = tmp_path / "claim-00000-000"
        claim.write_text(json.dumps({"host": "elsewhere", "pid": 1, "life": "1"}))
        with Claims(tmp_path, patience_s=-1) as successor:
            assert successor.take([0]) == 0
            late.release(0)
            with Claims(tmp_path) as third:
                assert third.take([0]) is None
