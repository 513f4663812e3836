"""Commands of a file, one after the other in one process. A line that was run is not run again: beside each
thing made, `.NAME.line` holds the line that made it."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from realmlm.errors import ArtefactExists, BadInput, Mismatch
from realmlm.log import say
from realmlm.storage.artefacts import write_text
from realmlm.storage.files import read_text


def run_batch(file: Path, log: Path | None, run: Callable[[str, list[str]], None]) -> None:
    """Run every line of the file (-: standard input) by `run(command, arguments)`, until one fails."""
    from realmlm.device import release_memory

    for words in _lines(file):
        line = shlex.join(words)
        say(f"realmlm {line}")
        begun = time.monotonic()
        try:
            run(words[0], words[1:])
        except ArtefactExists as error:
            places = _places(words)
            if places and not any(place.exists() for place in places):  # something else is in the way
                raise
            say(f"already done{_check_same(words)}: {error}")
            continue
        except SystemExit as end:
            if end.code:
                raise
            continue  # help was asked for, and shown
        for place in _places(words):
            if place.exists():
                write_text(_record(place), line + "\n")
        release_memory()
        seconds = round(time.monotonic() - begun, 1)
        say(f"{words[0]}: {seconds} s")
        if log is not None:
            with open(log, "a", encoding="utf-8") as stream:
                stream.write(json.dumps({"command": line, "seconds": seconds}) + "\n")


def _lines(file: Path) -> list[list[str]]:
    """The words of every line that has some."""
    lines = []
    text = sys.stdin.read() if str(file) == "-" else read_text(file)
    for number, line in enumerate(text.splitlines(), 1):
        try:
            lines.append(shlex.split(line, comments=True))
        except ValueError as error:  # an unclosed quote
            raise BadInput(f"{file}, line {number}: {error}; correct it: nothing was run") from error
    return [words for words in lines if words]


def _places(words: list[str]) -> list[Path]:
    """What a line makes."""
    return named_by(words, ("--out", "--report", "--predictions") if words[0] == "evaluate" else ("--out",))


def named_by(words: list[str], flags: tuple[str, ...]) -> list[Path]:
    """What the flags of a line name, as `--flag PATH` or `--flag=PATH`."""
    parts = (part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word]))
    return [Path(value) for flag, value in pairwise(parts) if flag in flags]


def _record(place: Path) -> Path:
    place = place.absolute()
    return place.with_name(f".{place.name}.line")


def _check_same(words: list[str]) -> str:
    """Refuse what another line made, or what is not all there; says so where the line is not recorded."""
    places = _places(words)
    there = [place for place in places if place.exists()]
    records = {place: read_text(_record(place)).strip() for place in there if _record(place).exists()}
    for place, line in records.items():
        if line != shlex.join(words):
            other = f"{place} was made by another line (realmlm {line})"
            raise Mismatch(f"{other}; remove it to make it again, or choose another place")
    if lost := [place for place in places if place not in there]:
        beside = ", ".join(map(str, there))
        raise Mismatch(f"{lost[0]} is missing beside {beside}; remove that too, to make everything again")
    return "" if len(records) == len(places) else ", by an unknown line"
