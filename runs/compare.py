"""Reports of a recipe beside those of runs/expected.toml. `python runs/compare.py world_study FOLDER/seed-0`

Exit status 1 if a measure lies farther from what was expected than another run may, or if nothing was
measured.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).parent / "expected.toml"


def measured(report: dict[str, Any], measure: str) -> tuple[float, float]:
    """Value and half the interval of `exact_match`, `recall_5`, `gold_recall_1` …, `surprise` (−log p(y|x) in
    nats)"""
    name, _, depth = measure.rpartition("_")
    score = (
        report["nats"]["−log p(y|x)"]
        if measure == "surprise"
        else report[name][depth]
        if depth.isdigit()
        else report[measure]
    )
    return score["value"], (score["high"] - score["low"]) / 2


def compare(recipe: str, folder: Path) -> bool:
    """Print the table; whether something was measured and all of it agrees."""
    print(f"{'':32s} {'measure':>15s} {'expected':>16s} {'here':>16s}")
    count = 0
    agrees = True
    for name, measures in tomllib.loads(EXPECTED.read_text("utf-8"))[recipe].items():
        places = [folder / "reports" / f"{name}.json", folder / f"{name}.json"]
        file = next((place for place in places if place.exists()), None)
        for measure, (value, half) in measures.items():
            digits = 2 if measure == "surprise" else 1
            expected = f"{value:.{digits}f} ± {half:.{digits}f}"
            if file is None:
                print(f"{name:32s} {measure:>15s} {expected:>16s} {'not measured':>16s}")
                continue
            here, width = measured(json.loads(file.read_text("utf-8")), measure)
            far = abs(here - value) > half
            count += 1
            agrees = agrees and not far
            found = f"{here:.{digits}f} ± {width:.{digits}f}"
            print(
                f"{name:32s} {measure:>15s} {expected:>16s} "
                f"{found:>16s}{'   other than expected' if far else ''}"
            )
    if not count:
        print(
            f"nothing was measured: no report of {recipe} in {folder}; name the folder that the recipe wrote"
        )
    return agrees and count > 0


if __name__ == "__main__":
    sys.exit(0 if compare(sys.argv[1], Path(sys.argv[2])) else 1)
