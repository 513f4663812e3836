"""Artefacts: folders that exist whole or not at all.

A folder of files and a `manifest.json` with the format version, the config that made it, counts, parents and
a checksum of each file. It is written under a temporary name, fsynced and renamed; it is checked when opened.
The format is specified in docs/formats.md; arrays are safetensors files (realmlm.storage.arrays).
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from realmlm.errors import ArtefactDamaged, ArtefactExists, ArtefactMissing

FORMAT = 1
MANIFEST = "manifest.json"
_STAMPS = ".verified.json"
# bytes of an artefact; files of a larger one are hashed again only when size or modification time changed
_ALWAYS_HASHED = 256 * 2**20
_JUST_MADE = 5  # seconds within which a folder may not be held yet


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an artefact says of itself."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Identity of the content: of the kind and of every file's checksum."""
        return _digest(
            {
                "kind": self.kind,
                "files": {name: entry["sha256"] for name, entry in sorted(self.files.items())},
            }
        )


@dataclass
class Draft:
    """An artefact being written: put files under `path`, fill in `counts`, `config` and `parents` until the
    block ends."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


@contextmanager
def publish(path: Path, *, kind: str, replace: bool = False) -> Iterator[Draft]:
    """Write an artefact: on a clean exit of the block it stands at `path`; on any error nothing does, and
    what stood there stays.

    Replacing takes two renames: a kill just between them leaves nothing at `path`, never half of something.
    """
    path = Path(path)
    if not replace:
        refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_drafts(path)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir()
    held = _hold(temporary)
    draft = Draft(path=temporary)
    try:
        yield draft
        _seal(draft, kind=kind)
        if replace and path.exists():
            aside = _aside(path)
            temporary.rename(path)
            shutil.rmtree(aside)
        else:
            _rename_to_new(temporary, path)
        _fsync_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _name_full_disk(error, path)
        raise
    finally:
        if held is not None:
            os.close(held)


def os_error(error: BaseException) -> OSError | None:
    """What the system refused (a full disk, say), if that is what went wrong."""
    if isinstance(error, OSError):
        return error
    # as libraries in Rust say it: safetensors, tokenizers
    said = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(said[1]), os.strerror(int(said[1]))) if said else None


def _name_full_disk(error: BaseException, path: Path) -> None:
    """A full disk is said without a place: raise it anew with the one that was being written."""
    refused = os_error(error)
    if refused is not None and refused.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(refused.errno, refused.strerror, str(path)) from error


def _hold(folder: Path) -> int | None:
    """Lock a folder as long as its descriptor is open; None: another process has it, or it cannot be locked
    here."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep_drafts(path: Path) -> None:
    """Remove what killed writers of the same artefact left; what another process is writing now is held by
    it."""
    for leftover in path.parent.glob(f".{escape(path.name)}.????????.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _JUST_MADE and (held := _hold(leftover)) is not None:
                shutil.rmtree(leftover, ignore_errors=True)
                os.close(held)


def refuse_existing(path: Path) -> None:
    """What is to be made must not be there yet."""
    if path.exists():
        raise ArtefactExists(f"{path} already exists; choose another place or remove it first")


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)
    except OSError:  # a folder with something in it is not renamed over: another process was quicker
        refuse_existing(path)
        raise


def discard(path: Path) -> None:
    """Remove an artefact: killed in the middle of it, it is whole or no longer there."""
    shutil.rmtree(_aside(path))


def _aside(path: Path) -> Path:
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.old"
    path.rename(aside)
    return aside


def sweep(folder: Path) -> None:
    """Remove what killed writers left under temporary names in `folder` (their owner must hold the folder's
    lock)."""
    for pattern in (".*.tmp", ".*.old"):
        for leftover in Path(folder).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def count_edits(path: Path) -> int:
    """How many edits of an artefact there are: `edits/000001`, `edits/000002` …, each an artefact, none
    missing."""
    folder = Path(path) / "edits"
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return 0
    for number, name in enumerate(names, 1):
        if int(name) != number:
            raise ArtefactDamaged(
                f"{edit_place(path, number)} is missing, but {name} exists; {_again(Path(path))}"
            )
    return len(names)


def edit_place(path: Path, number: int) -> Path:
    """Where an artefact's edit of this number stands; the first is 1."""
    return Path(path) / "edits" / f"{number:06d}"


def open_artefact(path: Path, *, kind: str, hint: str = "") -> Manifest:
    """Read and check an artefact of a kind. `hint` is the command that would make one."""
    manifest = read_manifest(path, kind=kind, hint=hint)
    _verify_files(Path(path), manifest)
    return manifest


def read_manifest(path: Path, *, kind: str, hint: str = "") -> Manifest:
    """What an artefact of a kind says of itself; its files are not looked at."""
    advice = f"; {hint}" if hint else ""
    file = Path(path) / MANIFEST
    if not file.is_file():
        raise ArtefactMissing(
            f"no {kind} in {path}{f': it has no {MANIFEST}' if file.parent.is_dir() else ''}{advice}"
        )
    manifest = _read_manifest(file)
    if manifest.kind != kind:
        raise ArtefactMissing(
            f"{path} is of kind '{manifest.kind}', but '{kind}' is needed; name another folder"
        )
    return manifest


def _read_manifest(file: Path) -> Manifest:
    try:
        record = json.loads(file.read_text("utf-8"))
        checksum = record.pop("checksum")
        if record.get("format", 0) > FORMAT:
            raise ArtefactDamaged(
                f"{file} has format {record['format']}, newer than this version reads ({FORMAT}); upgrade "
                "realmlm"
            )
        intact = checksum == _digest(record)
        manifest = Manifest(**record)
        if outside := [
            name for name in manifest.files if Path(name).is_absolute() or ".." in Path(name).parts
        ]:
            raise ArtefactDamaged(f"{file} names a file outside its folder, '{outside[0]}': do not trust it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactDamaged(f"{file} is damaged ({type(error).__name__}); {_again(file.parent)}") from error
    if not intact:
        raise ArtefactDamaged(f"{file} is damaged (its checksum does not match); {_again(file.parent)}")
    return manifest


def _again(path: Path) -> str:
    return f"remove {path} and make it again"


def _verify_files(path: Path, manifest: Manifest) -> None:
    stamps = _read_stamps(path)
    small = sum(entry["bytes"] for entry in manifest.files.values()) <= _ALWAYS_HASHED
    fresh = {}
    for name, entry in manifest.files.items():
        file = path / name
        if file.is_symlink():
            raise ArtefactDamaged(
                f"{file} is a link, and artefacts hold none: do not trust it, or copy what it leads to in "
                "its place"
            )
        try:
            status = file.stat()
        except OSError as error:
            raise ArtefactDamaged(f"{file} is missing; {_again(path)}") from error
        if status.st_size != entry["bytes"]:
            raise ArtefactDamaged(
                f"{file} is damaged: {status.st_size} bytes instead of {entry['bytes']}; {_again(path)}"
            )
        stamp = [status.st_size, status.st_mtime_ns]
        if (small or stamps.get(name) != stamp) and sha256_of(file) != entry["sha256"]:
            raise ArtefactDamaged(f"{file} is damaged: its checksum does not match; {_again(path)}")
        fresh[name] = stamp
    if fresh != stamps and not small:
        _write_stamps(path, fresh)


def _seal(draft: Draft, *, kind: str) -> None:
    files = {}
    stamps = {}
    # what the umask leaves; safetensors gives its files to their owner alone
    mode = draft.path.stat().st_mode & 0o666
    for file in sorted(draft.path.rglob("*")):
        if file.is_file():
            name = file.relative_to(draft.path).as_posix()
            if file.stat().st_mode & 0o666 != mode:
                file.chmod(mode)
            fsync_file(file)
            status = file.stat()
            files[name] = {"bytes": status.st_size, "sha256": sha256_of(file)}
            stamps[name] = [status.st_size, status.st_mtime_ns]
    manifest = Manifest(
        kind=kind, config=draft.config, counts=draft.counts, parents=draft.parents, files=files
    )
    record = json.loads(json.dumps(asdict(manifest)))
    record["checksum"] = _digest(record)
    # the last byte closes it: a cut is seen
    write_text(draft.path / MANIFEST, json.dumps(record, indent=1, ensure_ascii=False))
    _write_stamps(draft.path, stamps)
    _fsync_folder(draft.path)


def write_text(file: Path, text: str) -> None:
    """Write a small file atomically: it holds the old text or the new one."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        temporary.write_text(text, "utf-8")
        fsync_file(temporary)
        temporary.replace(file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name_full_disk(error, file)
        raise


def fsync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_fsync_folder = fsync_file


def _read_stamps(path: Path) -> dict[str, list[int]]:
    try:
        stamps = json.loads((path / _STAMPS).read_text("utf-8"))
        return stamps if isinstance(stamps, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_stamps(path: Path, stamps: dict[str, list[int]]) -> None:
    with suppress(OSError):  # a read-only artefact is hashed at each opening
        # atomically: a link in its place is replaced, not followed
        write_text(path / _STAMPS, json.dumps(stamps))


def sha256_of(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
