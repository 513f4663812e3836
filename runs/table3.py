"""Table 3 in miniature from an alignment: what is hidden, and how likely it is without retrieval, with the
best passage, and in all.

realmlm align --model MODEL --corpus CORPUS --out align.jsonl --limit 2000
python runs/table3.py align.jsonl [COUNT]
"""

import json
import math
import sys
from pathlib import Path
from typing import Any


def row(item: dict[str, Any]) -> str:
    best = max(
        (passage for passage in item["passages"] if passage["id"] is not None),
        key=lambda passage: passage["posterior"],
    )
    numbers = (item["log_p_without"], best["log_p"], item["log_p"])
    return (
        f"| {item['hidden']} | {best['title']} | "
        + " | ".join(f"{math.exp(number):.2g}" for number in numbers)
        + " |"
    )


def main(file: Path, count: int = 20) -> None:
    items = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    print(
        "| hidden | best passage of | p(y\\|x) without retrieval | p(y\\|x,z) with it | p(y\\|x) |\n| --- | "
        "--- | --- | --- | --- |"
    )
    for item in items[:: max(1, len(items) // count)][:count]:
        print(row(item))
    gained = [item["log_p"] - item["log_p_without"] for item in items]
    doubled, halved = (sum(sign * nats > math.log(2) for nats in gained) for sign in (1, -1))
    print(f"\n{len(items):,} sentences; retrieval brings {sum(gained) / len(gained):.2f} nats on average,")
    print(f"more than doubles the probability of {doubled:,} and more than halves that of {halved:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
