"""Kills, damages, hostile inputs and bad clients, as many as are asked for, and one table of what came of it.

    python tools/campaign.py --kills 200 --damage 5000 --inputs 100000 --seconds 3600 --seed 7

Each case is made by the seed and its number alone, so that a failure can be made again: `--only
KIND:NUMBER`. Clients go on beside the rest. The exit code is the number of kinds with failures.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults import clients, damage, inputs, kills  # noqa: E402

SHOWN = 5  # failures of a kind that are shown


@dataclass
class Tally:
    """What came of the cases of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


Case = Callable[[random.Random], tuple[str, str | None]]
"""A case made by a generator: what it was, and what went wrong, if anything did."""


def campaign(cases: dict[str, tuple[int, Case]], *, seed: int, only: str | None = None) -> dict[str, Tally]:
    """Make so many cases of each kind."""
    tallies = {kind: Tally() for kind in cases}
    for kind, number, case in _chosen(cases, only):
        begun = time.monotonic()
        what, wrong = case(random.Random(f"{seed} {kind} {number}"))
        tally = tallies[kind]
        tally.seconds += time.monotonic() - begun
        tally.outcomes[what] += 1
        if wrong is not None:
            tally.failures.append(f"{kind}:{number} ({what}): {wrong}")
            print(f"FAILED {tally.failures[-1]}", file=sys.stderr, flush=True)
    return tallies


def _chosen(cases: dict[str, tuple[int, Case]], only: str | None) -> Iterator[tuple[str, int, Case]]:
    for kind, (count, case) in cases.items():
        numbers = [int(only.partition(":")[2])] if only else range(count)
        if only is None or only.startswith(f"{kind}:"):
            yield from ((kind, number, case) for number in numbers)


def table(tallies: dict[str, Tally]) -> str:
    lines = ["| | cases | failures | seconds |", "| --- | --- | --- | --- |"]
    for kind, tally in tallies.items():
        cases = tally.outcomes.total()
        lines.append(f"| **{kind}** | {cases:,} | {len(tally.failures)} | {tally.seconds:.0f} |")
        for what, count in sorted(tally.outcomes.items()):
            lines.append(f"| {what} | {count:,} | {sum(f'({what})' in text for text in tally.failures)} | |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    for kind in ("kills", "damage", "inputs", "seconds"):
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N")
    parser.add_argument("--clients", type=int, default=64, metavar="N", help="at once, for --seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="KIND:NUMBER")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="campaign"))
    try:
        laboratory = damage.prepared(folder / "laboratory")
        crowd = clients.Clients(laboratory, chosen.seconds, chosen.clients)
        cases: dict[str, tuple[int, Case]] = {
            "kills": (chosen.kills, kills.Kills(laboratory, folder / "kills")),
            "damage": (chosen.damage, damage.Damage(laboratory, folder / "damage")),
            "inputs": (chosen.inputs, inputs.Inputs(laboratory, folder / "inputs")),
        }
        with ThreadPoolExecutor(1) as beside:
            crowds: dict[str, tuple[int, Case]] = {"clients": (1 if chosen.seconds else 0, crowd)}
            served = beside.submit(campaign, crowds, seed=chosen.seed, only=chosen.only)
            tallies = campaign(cases, seed=chosen.seed, only=chosen.only) | served.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(tallies))
    for tally in tallies.values():
        for failure in tally.failures[:SHOWN]:
            print(failure)
    return sum(bool(tally.failures) for tally in tallies.values())


if __name__ == "__main__":
    sys.exit(main())
