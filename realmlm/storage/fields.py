"""What a manifest must say, by the kind of its artefact: whoever wrote it, nothing else is read from it.

The checksum of a manifest tells damage, not intent: someone else's manifest may say anything and match.
"""

import re
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 2**48  # of anything that is counted


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _positive(value: Any) -> bool:
    return _count(value) and value > 0


def _step(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _record(value: Any) -> bool:
    return isinstance(value, dict)


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value)) and len(set(value)) == len(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _ivf(value: Any) -> bool:
    if value is None:
        return True
    checks = {"lists": lambda lists: lists is None or _positive(lists), "target": _number, "k": _positive}
    checks |= {"seed": _step, "nprobe": _positive, "recall": _number}
    return isinstance(value, dict) and value.keys() == checks.keys() and _all(value, checks)


def _objective(state: Any) -> bool:
    """Of one that follows an index, the numbers that it goes on with; of any other, what it likes."""
    numbers: dict[str, Check] = dict.fromkeys(("index", "pending", "swaps", "beside"), _step)
    return _record(state) and (numbers.keys().isdisjoint(state) or _all(state, numbers))


def _sums(value: Any) -> bool:
    return _record(value) and all(type(number) in (int, float) for number in value.values())


def _row(row: Any) -> bool:
    """What a row of metrics has accumulated, each number of how many; in older releases of how many steps."""
    if not _record(row) or not row:
        return _record(row)
    if "counts" not in row:
        return _all(row, {"sums": _sums, "count": _count, "latest": _record})
    whole = _all(row, {"sums": _sums, "counts": _sums, "latest": _record})
    return whole and row["counts"].keys() == row["sums"].keys()


def _all(record: dict[str, Any], checks: dict[str, Check]) -> bool:
    return all(name in record and check(record[name]) for name, check in checks.items())


_OF_EVERY: dict[str, Check] = {
    "kind": _text,
    "format": _count,
    "config": _record,
    "counts": _record,
    "parents": lambda parents: _record(parents) and all(map(_text, parents.values())),
    "files": lambda files: _record(files) and all(map(_file, files.values())),
}
_FIELDS: dict[str, dict[str, Check]] = {
    "corpus": {"config max_wordpieces": _positive},
    "corpus-edit": {"config ids": _ids, "config removed": _ids},
    "spans": {"config corpus_edits": _count, "parents corpus": _text},
    "index": {
        "config step": _step,
        "config dim": _positive,
        "config dtype": lambda dtype: dtype in ("float32", "float16", "bfloat16"),
        "config kind": _text,
        "config ivf": _ivf,
        "counts passages": _positive,
        "counts corpus_edits": _count,
        "parents weights": _text,
        "parents corpus": _text,
    },
    "index-edit": {"counts added": _count, "counts removed": _count, "counts corpus_edits": _count},
    "checkpoint": {"config step": _count, "config objective": _objective},
    "tagger": {"config labels": _texts, "config encoder": _record},
}


def _file(entry: Any) -> bool:
    return _record(entry) and _count(entry.get("bytes")) and bool(_SHA256.fullmatch(str(entry.get("sha256"))))


def wrong_field(record: dict[str, Any]) -> str | None:
    """The first field of a manifest that is missing or says what it cannot say; None: all is well."""
    for name, check in _OF_EVERY.items():
        if name not in record or not check(record[name]):
            return f"'{name}'"
    for path, check in _FIELDS.get(record["kind"], {}).items():
        part, name = path.split()
        if name not in record[part] or not check(record[part][name]):
            return f"'{name}' of '{part}'"
    if record["kind"] == "checkpoint" and not _row(record["config"].get("row", {})):
        return "'row' of 'config'"
    if record["kind"] == "index":
        if record["config"]["kind"] == "ivf":
            return None if record["config"]["ivf"] else "'ivf' of 'config'"
        return None if _positive(record["counts"].get("shards")) else "'shards' of 'counts'"
    return None


def wrong_ids(written: list[int], removed: list[int], *, passages: int, past: int) -> str | None:
    """What an edit with so many passages says of their ids that cannot be, where `past` is the next id; None:
    all is well. Arrays are as long as the largest id: whoever wrote the edit does not choose it."""
    if len(written) != passages:
        return f"has {passages} passages and {len(written)} ids"
    if unknown := [number for number in removed if number >= past]:
        return f"removes passage {unknown[0]}, which never was"
    for number in written:
        if number > past:
            return f"adds passage {number}, where {past} is next"
        past = max(past, number + 1)
    return None
