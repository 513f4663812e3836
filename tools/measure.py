"""Run a command and print how long it took and how much memory all its processes took together: `python
tools/measure.py realmlm corpus …`.

Linux only (it reads /proc). Pages that processes share, those of mapped files among them, count once for each
process.
"""

import subprocess
import sys
import time
from pathlib import Path


def family(process: int) -> list[int]:
    """A process and all that came from it."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # it has just ended
            continue
        found += [descendant for child in children for descendant in family(int(child))]
    return found


def resident(process: int) -> int:
    """Kilobytes of a process in memory; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def main(command: list[str]) -> int:
    begun = time.monotonic()
    peak = 0
    running = subprocess.Popen(command)
    while running.poll() is None:
        peak = max(peak, sum(resident(process) for process in family(running.pid)))
        time.sleep(0.2)
    print(
        f"{time.monotonic() - begun:.0f} s, at most {peak / 2**20:.2f} GiB in all processes together",
        file=sys.stderr,
    )
    return running.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
