"""A flipped byte, a cut-off file or a lost one, in every file of every kind of artefact: named by the command
that uses it, exit code 2."""

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from realmlm.corpus.store import Corpus
from realmlm.log import read_metrics
from realmlm.storage.artefacts import MANIFEST, open_artefact
from tests.laboratory import (
    MADE_UP,
    USES,
    Command,
    ask,
    copy_of,
    cut,
    damaged,
    emptied,
    flipped,
    forge,
    forgeries,
    make_laboratory,
    resume_finetune,
    resume_pretrain,
    run,
    zeroed,
)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    make_laboratory(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "place", "command"), USES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_damage_is_named_by_file(
    laboratory: Path,
    tmp_path: Path,
    kind: str,
    place: str,
    command: Command,
) -> None:
    folder = copy_of(laboratory, tmp_path)
    (artefact,) = folder.glob(place)
    arguments = command(folder)
    missed = []
    for name in [*open_artefact(artefact, kind=kind).files, MANIFEST]:
        for damage in (flipped, cut, None):
            with damaged(artefact / name, damage):
                code, said = run(arguments)
            named = str(artefact / name) in said or (
                name == MANIFEST and damage is None and f"{artefact}: it has no {MANIFEST}" in said
            )
            if code != 2 or not named or "Traceback" in said or said.count("error:") != 1:
                missed.append((name, damage, code, said))
    assert missed == []
    assert run(arguments)[0] == 0  # and it was the damage: without it the command runs


@pytest.mark.parametrize(("name", "damage"), [("optimizer.safetensors", flipped), (MANIFEST, None)])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    laboratory: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    whole = copy_of(laboratory, tmp_path / "whole")
    assert run(resume_finetune(whole))[0] == 0
    folder = copy_of(laboratory, tmp_path / "damaged")
    newest = folder / "finetune" / "checkpoints" / "step-00000002"
    if damage is None:
        (newest / name).unlink()
    else:
        (newest / name).write_bytes(damage((newest / name).read_bytes()))
    code, said = run(resume_finetune(folder))
    assert code == 0, said
    assert str(newest) in said
    assert "; going on from step 1 instead" in said
    trained = [place / "finetune" / "model" / "model.safetensors" for place in (whole, folder)]
    assert trained[0].read_bytes() == trained[1].read_bytes()


def test_what_an_older_checkpoint_says_is_checked_too(laboratory: Path, tmp_path: Path) -> None:
    folder = copy_of(laboratory, tmp_path)
    manifest = folder / "pretrain" / "checkpoints" / "step-00000001" / MANIFEST
    with damaged(manifest, flipped):
        code, said = run(resume_pretrain(folder))
    assert (code, str(manifest) in said) == (2, True), said


DAMAGES: list[Callable[[bytes], bytes]] = [
    flipped,
    cut,
    emptied,
    lambda whole: whole.replace(b"o", b"0"),
    lambda whole: b"[1]",
    lambda whole: b"{}",
    lambda whole: b"[" * 99_999,
    lambda whole: whole.replace(b"1", b"2"),
    lambda whole: whole.replace(b'"checksum"', b'"checksvm"'),
    *(partial(zeroed, eighth) for eighth in range(8)),
]


@pytest.mark.parametrize("name", ["run.json", "corpora.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_of_a_run_is_named(
    laboratory: Path, damage: Callable[[bytes], bytes], name: str
) -> None:
    record = laboratory / "pretrain" / name
    with damaged(record, lambda whole: damage(whole.rstrip())):
        code, said = run(resume_pretrain(laboratory))
    assert (code, str(record) in said) == (2, True), said


def test_a_digit_of_a_runs_settings_that_changed_is_named(laboratory: Path) -> None:
    """Nothing but the checksum tells."""
    record = laboratory / "pretrain" / "run.json"
    with damaged(record, lambda whole: whole.replace(b'"seed": 0', b'"seed": 1')):
        code, said = run(resume_pretrain(laboratory))
    assert (code, f"{record} is damaged (its checksum does not match)" in said) == (2, True), said


def test_an_index_that_knows_of_a_lost_edit_is_named(laboratory: Path, tmp_path: Path) -> None:
    folder = copy_of(laboratory, tmp_path)
    shutil.rmtree(folder / "corpus" / "edits")
    code, said = run(ask(folder))
    assert (code, "-exact contains 1 edits of" in said, "remove the index first" in said) == (
        2,
        True,
        True,
    ), said


def test_damaged_metrics_do_not_stop_a_run(laboratory: Path, tmp_path: Path) -> None:
    folder = copy_of(laboratory, tmp_path)
    file = folder / "pretrain" / "metrics.jsonl"
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first[:9] + b"\xff\xfe" + first[11:] + second + third[:-5])
    code, said = run(resume_pretrain(folder))
    assert code == 0, said
    assert [row["step"] for row in read_metrics(file)] == [2, 3]


def test_a_gap_among_the_edits_of_a_corpus_is_named(laboratory: Path, tmp_path: Path) -> None:
    folder = copy_of(laboratory, tmp_path)
    Corpus.open(folder / "corpus").edit(remove=[2])
    shutil.rmtree(folder / "corpus" / "edits" / "000001")
    code, said = run(ask(folder))
    assert (code, "edits/000001 is missing, but 000002 exists" in said) == (2, True), said


# --- manifests that someone made up, with checksums that match ------------------------------------------------

FORGED = int(os.environ.get("REALMLM_FORGED", 6))  # places of each manifest that are forged


@pytest.mark.parametrize(
    ("kind", "place", "command"), USES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_forged_manifest_is_an_error_or_none(
    laboratory: Path,
    tmp_path: Path,
    kind: str,
    place: str,
    command: Command,
) -> None:
    """Whatever someone else's manifest says, there is no traceback."""
    folder = copy_of(laboratory, tmp_path)
    (artefact,) = folder.glob(place)
    arguments = command(folder)
    manifest = artefact / MANIFEST
    whole = manifest.read_bytes()
    record = json.loads(whole)
    del record["checksum"]
    rng = random.Random(f"{kind} {place}")
    paths = list(forgeries(record))
    missed: list[tuple[Any, ...]] = []
    for path in rng.sample(paths, min(len(paths), FORGED)):
        for value in rng.sample(MADE_UP, 2):
            forge(manifest, path, value, leave_out=rng.random() < 0.2)
            try:
                code, said = run(arguments)
            except Exception as error:
                missed.append((path, value, repr(error), traceback.format_exc(limit=-2)))
            else:
                if code not in (0, 2) or "Traceback" in said:
                    missed.append((path, value, said))
            if not artefact.exists():  # the run went on to its end
                shutil.rmtree(folder)
                copy_of(laboratory, tmp_path)
            manifest.write_bytes(whole)
    assert missed == [], "\n".join(map(str, missed))
