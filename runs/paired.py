"""Two sets of predictions on the same questions, paired: `python runs/paired.py PREDICTIONS OTHER PREFIX…`

PREDICTIONS and OTHER are folders of what `realmlm evaluate --predictions` wrote, or several separated by
commas (the seeds of an arm: every question's mean over them is compared). The files compared are those that
all have whose names begin with one of the prefixes. Prints each measure of the first, of the other, and the
difference with a 95% interval over questions, as `realmlm.compare` finds them.
"""

import sys
from pathlib import Path

from realmlm.errors import RealmError
from realmlm.evaluation.compare import Key, compare_scored, scored


def values(folder: Path, names: list[str]) -> dict[Key, dict[str, float]]:
    return {(name, *key): measures for name in names for key, measures in scored(folder / name).items()}


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
    try:
        mine, theirs = ({str(folder): values(folder, names) for folder in side} for side in (folders, others))
        found = compare_scored(mine, theirs).table()
    except RealmError as error:
        sys.exit(str(error))
    print(found.replace("questions", f"questions of {', '.join(names)}", 1))


if __name__ == "__main__":
    sides = [[Path(folder) for folder in side.split(",")] for side in sys.argv[1:3]]
    main(sides[0], sides[1], tuple(sys.argv[3:]) or ("",))
