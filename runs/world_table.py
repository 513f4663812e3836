"""The table of runs/world_study.sh: every arm over all seeds. `python runs/world_table.py FOLDER`

Means over seeds with 95% intervals (Student's t over seeds); `vs REALM` is the paired difference in recall@1
with its interval.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ARMS = {
    "realm": "REALM",
    "realm-retriever": "REALM retriever, baseline reader",
    "realm-reader": "baseline retriever, REALM reader",
    "warmup": "baseline (warm-up only, as ORQA)",
    "pointing": "REALM, and pointing at the hidden words",
    "in-batch": "REALM, told apart from what others found",
    "pointing-in-batch": "REALM, both",
    "glimpses": "REALM, queries half of the time a glimpse",
    "uniform": "uniform masks",
    "random-span": "random-span masks",
    "stale": "index never refreshed",
    "stale-in-batch": "index never refreshed, told apart from what others found",
    "no-null": "no null document",
    "same-text": "X = Z",
    "own-passage": "X = Z, own passage allowed",
    "ict": "ICT continued for as many steps",
    "frozen": "joint, retriever frozen",
}
T_95 = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
}  # two-sided, by degrees of freedom


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95% interval."""
    count = len(values)
    spread = float(np.std(values, ddof=1)) if count > 1 else float("nan")
    return float(np.mean(values)), T_95.get(count - 1, 1.96) * spread / count**0.5


def shown(values: list[float], digits: int = 1) -> str:
    if not values:
        return "–"
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def main(folder: Path) -> None:
    seeds = sorted(place for place in folder.glob("seed-*") if (place / "reports" / "realm.json").exists())
    reports: dict[str, dict[str, Any]] = {}
    for name in [*ARMS, *(f"questions-{arm}" for arm in ARMS)]:
        files = {seed.name: seed / "reports" / f"{name}.json" for seed in seeds}
        reports[name] = {
            seed: json.loads(file.read_text("utf-8")) for seed, file in files.items() if file.exists()
        }
    print(f"{len(seeds)} seeds: {', '.join(seed.name.removeprefix('seed-') for seed in seeds)}\n")
    print(
        "| | recall@1 | vs REALM | recall@5 | −log p(y\\|x), nats | masked word right | EM after questions "
        "|\n" + "| --- " * 7 + "|"
    )
    first = {
        name: {seed: report["gold_recall"]["1"]["value"] for seed, report in reports[name].items()}
        for name in ARMS
    }
    for name, title in ARMS.items():
        rows = list(reports[name].values())
        both = [seed for seed in first[name] if seed in first["realm"]]
        against = [first[name][seed] - first["realm"][seed] for seed in both]
        cells = [
            shown(list(first[name].values())),
            "" if name == "realm" else shown(against),
            shown([row["gold_recall"]["5"]["value"] for row in rows]),
            shown([row["nats"]["−log p(y|x)"]["value"] for row in rows], digits=2),
            shown([row["exact_match"]["value"] for row in rows]),
            shown([row["exact_match"]["value"] for row in reports[f"questions-{name}"].values()]),
        ]
        print(f"| {title} | " + " | ".join(cells) + " |")
    print("\nPercent unless said otherwise, on held-out entities; ± is half a 95% interval over seeds.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
