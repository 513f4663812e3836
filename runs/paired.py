"""Two sets of predictions on the same questions, paired: `python runs/paired.py PREDICTIONS OTHER PREFIX…`

PREDICTIONS and OTHER are folders of what `realmlm evaluate --predictions` wrote, or several separated by
commas (the seeds of an arm: every question's mean over them is compared). The files compared are those that
all have whose names begin with one of the prefixes. Prints exact match (where passages were read) and recall
of the first, of the other, and the difference with a 95% interval over questions.
"""

import json
import sys
from pathlib import Path

import numpy as np

from realmlm.evaluation.intervals import paired_interval


def values(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    rows = [
        json.loads(line) for name in names for line in (folder / name).read_text("utf-8").split("\n") if line
    ]
    first = np.array([row["first_passage_with_answer"] or np.inf for row in rows])
    recalls = {f"recall@{depth}": 100.0 * (first <= depth) for depth in (1, 5, 10, 20)}
    read = all(row["correct"] is not None for row in rows)
    return ({"exact match": np.array([100.0 * row["correct"] for row in rows])} if read else {}) | recalls


def mean(folders: list[Path], names: list[str]) -> dict[str, np.ndarray]:
    seeds = [values(folder, names) for folder in folders]
    return {measure: np.mean([seed[measure] for seed in seeds], axis=0) for measure in seeds[0]}


def main(folders: list[Path], others: list[Path], prefixes: tuple[str, ...]) -> None:
    every = [
        {file.name for file in folder.glob("*.jsonl") if file.name.startswith(prefixes)}
        for folder in folders + others
    ]
    names = sorted(set.intersection(*every))
    if not names:
        sys.exit(
            f"{', '.join(map(str, folders + others))} have no predictions in common whose names begin with "
            f"{', '.join(prefixes)}"
        )
    mine = mean(folders, names)
    theirs = mean(others, names)
    print(f"{len(mine['recall@1']):,} questions of {', '.join(names)}")
    for measure, first in mine.items():
        second = theirs[measure]
        low, high = paired_interval(first, second)
        print(
            f"{measure:12s} {first.mean():6.2f} {second.mean():6.2f}   {first.mean() - second.mean():+.2f} "
            f"[{low:+.2f}, {high:+.2f}]"
        )


if __name__ == "__main__":
    sides = [[Path(folder) for folder in side.split(",")] for side in sys.argv[1:3]]
    main(sides[0], sides[1], tuple(sys.argv[3:]) or ("",))
