"""The runs, verdicts and evaluations that a report shows, read from their files; a bad one is named."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from realmlm.defaults import ADAPTING
from realmlm.errors import ArtefactDamaged, ArtefactMissing, BadInput
from realmlm.names import short_names
from realmlm.storage.files import json_lines, read_text

MOST_POINTS = 300  # of a curve: as many as a chart has columns
Interval = tuple[float, float, float]  # a mean, and the lower and the upper end of its 95% interval
# (step, value), the value None where it is not finite; or (step, mean, lowest, highest)
Points = list[tuple[float | None, ...]]


def names_of(paths: Sequence[Path]) -> list[str]:
    """A short name for each file or folder that tells it from the others. None may be given twice."""
    places = [Path(os.path.abspath(path)) for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise BadInput(f"{paths[number]} is named twice; leave one out, or name another")
    return [name.removesuffix(".jsonl").removesuffix(".json") for name in short_names(places)]


def short_path(path: str) -> str:
    """A path as it is shown: of a whole one, the end."""
    return "/".join(Path(path).parts[-2:]) if path.startswith("/") else path


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # neither NaN nor infinite


# --- runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownRun:
    """A training run, or a part of a warm-up, as the report shows it: its curves under its name."""

    name: str
    settings: dict[str, Any]
    """The command and its settings, nested ones with their prefix."""
    curves: dict[str, Points]


def read_run(folder: Path, name: str) -> Iterator[ShownRun]:
    """The run in a folder, or its parts; in that of an `adapt`, the training in it."""
    if not (folder / "run.json").is_file() and (folder / ADAPTING / "run.json").is_file():
        folder /= ADAPTING
    if not (folder / "run.json").is_file():
        raise ArtefactMissing(
            f"no run in {folder}: it has no run.json; name the --out of a warmup, pretrain, towers, finetune "
            "or adapt"
        )
    # a warm-up has parts
    files = sorted(folder.glob("metrics.jsonl")) or sorted(folder.glob("*/metrics.jsonl"))
    curves = {file: points for file in files if (points := _read_curves(file))}
    if not curves:
        raise ArtefactMissing(f"{folder} has no metrics yet; wait for its first row, or leave it out")
    for file, points in curves.items():
        try:
            record = json.loads((file.parent / "run.json").read_text("utf-8"))
            stage = str(record["stage"])
            settings = {"command": stage} | dict(_flat(_of_the_whole(file.parent, stage) or record["config"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtefactDamaged(
                f"{file.parent / 'run.json'} is damaged ({type(error).__name__}); leave the run out"
            ) from error
        yield ShownRun(name if file.parent == folder else f"{name}/{file.parent.name}", settings, points)


def _of_the_whole(folder: Path, stage: str) -> dict[str, Any]:
    """The settings of a part of a warm-up, from the run.json of the whole, its optimiser's as `optim`; empty
    where the folder is no such part."""
    whole, _, part = stage.partition("-")
    try:
        record = json.loads((folder.resolve().parent / "run.json").read_text("utf-8"))
        config = dict(record["config"]) if part and record["stage"] == whole else {}
    except (OSError, ValueError, KeyError, TypeError):  # the part was copied without the whole
        return {}
    others = {name: value for name, value in config.items() if name not in ("reader", "retriever")}
    return {**others, "optim": config[part]} if part in config else {}


@dataclass(frozen=True)
class ShownVerdict:
    """What an `adapt` decided (verdict.json): the measures on held-out examples before and after, and the
    gain."""

    name: str
    held_out: int
    measures: dict[str, tuple[Interval, Interval]]
    gained: str
    gain: Interval
    kept: bool


def read_verdict(folder: Path, name: str) -> ShownVerdict | None:
    """The verdict in the folder of an `adapt`; None in that of another run."""
    file = folder / "verdict.json"
    if not file.is_file():
        return None
    try:
        record = json.loads(read_text(file))
        measures = {
            title: (_interval(sides["before"]), _interval(sides["after"]))
            for title, sides in record["measures"].items()
        }
        gain = _interval({"value": record["gain"], **record})
        held_out = int(record["held_out"])
        return ShownVerdict(name, held_out, measures, str(record["gained"]), gain, bool(record["kept"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtefactDamaged(
            f"{file} is damaged ({type(error).__name__}); remove it, or leave the run out"
        ) from error


def _interval(score: dict[str, Any]) -> Interval:
    return float(score["value"]), float(score["low"]), float(score["high"])


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings under the names of their flags: {"optim": {"lr": 1}} is optim.lr."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}".replace("_", "-"), value


def _read_curves(file: Path) -> dict[str, Points]:
    """The curves of a metrics file; a last line that is not whole, being written or cut off, is left out."""
    curves: dict[str, Points] = {}
    whole = read_text(file).rpartition("\n")[0]
    for number, row in json_lines(whole):
        step: Any = row.get("step") if isinstance(row, dict) else None
        if not _is_number(step):
            cure = "remove the line, or leave the run out"
            raise ArtefactDamaged(f"{file}:{number}: not a row of metrics; {cure}")
        for name, value in row.items():
            if name != "step" and type(value) in (int, float):
                curves.setdefault(name, []).append((step, value if _is_number(value) else None))
    return {name: bundle(points) for name, points in curves.items()}


def bundle(points: Points, *, most: int = MOST_POINTS) -> Points:
    """A curve of at most `most` points; of a longer one every few become one: last step, mean, range."""
    if len(points) <= most:
        return points
    width = math.ceil(len(points) / most)
    bundled = []
    for first in range(0, len(points), width):
        stretch = points[first : first + width]
        values = [point[1] for point in stretch if point[1] is not None]
        whole = len(values) == len(stretch)
        value = (float(f"{fmean(values):.6g}"), min(values), max(values)) if whole else (None,)
        bundled.append((stretch[-1][0], *value))
    return bundled


# --- evaluations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Column:
    """A measure as a column of the table, in order of place and number; a group has one heading."""

    place: int
    group: str
    number: int
    name: str


@dataclass(frozen=True)
class Evaluation:
    """A report of `realmlm evaluate`: mean and 95% interval of each measure."""

    name: str
    about: tuple[str, ...]
    scores: dict[Column, Interval]


def read_evaluation(file: Path, name: str) -> Evaluation:
    """What `evaluate --report` wrote."""
    text = read_text(file)
    try:
        record = json.loads(text)
        found: dict[Column, dict[str, float]] = {}
        for number, (key, title) in enumerate({"exact_match": "exact match", "f1": "F1"}.items()):
            if record[key] is not None:
                found[Column(0, "answers, %", number, title)] = record[key]
        for number, (title, score) in enumerate(record["nats"].items()):
            found[Column(1, "nats", number, title)] = score
        strings = f"recall of the answer string ({record['recall_definition']}), %"
        groups = {"recall": strings, "gold_recall": "recall of the gold passage, %"}
        for place, (key, group) in enumerate(groups.items(), 2):
            for k, score in record[key].items():
                found[Column(place, group, int(k), f"@{k}")] = score
        for number, (title, score) in enumerate(record.get("ranking", {}).items()):
            found[Column(4, "judged documents, %", number, title)] = score
        scores = {column: _interval(score) for column, score in found.items()}
        about = [f"{int(record['questions']):,} questions"]
        about += [f"{record['retriever']}, {int(record['read'])} read"]
        named = [part for part in ("model", "corpus") if record.get(part)]
        about += [f"{part} {short_path(str(record[part]))}" for part in named]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{file} is not a report; make one: realmlm evaluate … --report {file}") from error
    return Evaluation(name, tuple(about), scores)
