"""Damage to any file of any artefact, and manifests that someone made up: named by the command that uses it."""

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from realmlm.storage.artefacts import MANIFEST
from tests.laboratory import MADE_UP, USES, copy_of, forge, forgeries, make_laboratory, run

RECORDS = ("pretrain/run.json", "pretrain/corpora.json", "finetune/run.json", "finetune/corpora.json")


def prepared(folder: Path) -> Path:
    """A laboratory, made there."""
    folder.mkdir(parents=True)
    make_laboratory(folder)
    return folder


def flip(whole: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(whole))
    return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole))]


def zero(whole: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.choices(range(len(whole) + 1), k=2))
    return whole[:start] + bytes(end - start) + whole[end:]


def swap(whole: bytes, rng: random.Random) -> bytes:
    middle = rng.randrange(len(whole))
    return whole[middle:] + whole[:middle]


def lengthen(whole: bytes, rng: random.Random) -> bytes:
    return whole + rng.randbytes(rng.randint(1, 100))


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [flip, flip, cut, zero, swap, lengthen]


class Damage:
    """Calls are cases. They share a copy of the laboratory, which is made again when a run went on to its
    end."""

    def __init__(self, laboratory: Path, folder: Path) -> None:
        self._laboratory = laboratory
        self._folder = folder
        self._copy: Path | None = None

    def __call__(self, rng: random.Random) -> tuple[str, str | None]:
        if self._copy is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._copy = copy_of(self._laboratory, self._folder)
        kind, place, command = rng.choice(USES)
        if command.__name__ == "edit_then_ask":  # would edit again each time
            kind, place, command = USES[0]
        arguments = command(self._copy)
        (artefact,) = self._copy.glob(place)
        record = json.loads((artefact / MANIFEST).read_bytes())
        file = artefact / rng.choice([MANIFEST, *record["files"]])
        if "resume" in command.__name__ and rng.random() < 0.3:
            run_name = command.__name__.removeprefix("resume_")
            file = self._copy / rng.choice([name for name in RECORDS if name.startswith(run_name)])
        ways = [self._changed, self._changed, self._changed, self._gone, self._linked, self._forged]
        way = rng.choice(ways) if file.name == MANIFEST else rng.choice(ways[:-1])
        whole = file.read_bytes()
        what, noticed = way(file, rng)
        try:
            code, said = run(arguments)
        except Exception:
            code, said = 1, traceback.format_exc(limit=-3)
        finally:
            file.unlink(missing_ok=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(whole)
        if code == 0 and command.__name__ not in ("ask", "evaluate", "approximate"):
            self._copy = None
        wrong = f"{command.__name__} with {file.name} {what}: exit {code}, {said[-800:]}"
        return kind, None if code == 2 or (code == 0 and not noticed) else wrong

    def _changed(self, file: Path, rng: random.Random) -> tuple[str, bool]:
        whole = file.read_bytes()
        change = rng.choice(CHANGES)
        data = change(whole, rng)
        file.write_bytes(data)
        return change.__name__, not _same(whole, data)

    def _gone(self, file: Path, rng: random.Random) -> tuple[str, bool]:
        file.unlink()
        return (
            "gone",
            file.name != "corpora.json",
        )  # without it a run takes what it finds as what it began with

    def _linked(self, file: Path, rng: random.Random) -> tuple[str, bool]:
        elsewhere = self._folder / "elsewhere"
        shutil.copyfile(file, elsewhere)
        file.unlink()
        os.symlink(elsewhere, file)
        # a manifest or a record may be a link: what it says is checked, and nothing is written through it
        return "linked", file.name not in (MANIFEST, "run.json", "corpora.json")

    def _forged(self, file: Path, rng: random.Random) -> tuple[str, bool]:
        record = json.loads(file.read_bytes())
        del record["checksum"]
        forge(file, rng.choice(list(forgeries(record))), rng.choice(MADE_UP), leave_out=rng.random() < 0.2)
        return "forged", False


def _same(before: bytes, after: bytes) -> bool:
    """Do they say the same? White space between the values of JSON says nothing."""
    try:
        return before == after or bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False
