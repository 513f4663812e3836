"""JSON lines, as the scripts beside this one write them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows, and say how many there are."""
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(rows):,}")
