"""Artefacts: everything realmlm writes is a folder that exists whole or not at all.

Beside its files an artefact has a `manifest.json` with the format version, the config that made it, counts,
the fingerprints of what it was made from (its parents) and a checksum of each file. It is written under a
temporary name, fsynced and renamed, and it is checked when it is opened (docs/formats.md).
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from realmlm.errors import ArtefactDamaged, ArtefactExists, ArtefactMissing
from realmlm.storage.fields import wrong_field
from realmlm.storage.remote import MANIFEST, is_there, open_file, send_artefact, shown, url_of

FORMAT = 1
_STAMPS = ".verified.json"
# what folders that realmlm writes are known by: these files, with these keys
_RECORDS = {
    MANIFEST: frozenset(("kind", "files", "checksum")),
    "run.json": frozenset(("stage", "config")),
    "verdict.json": frozenset(("held_out", "measures")),
}
# Bytes of an artefact up to which every opening hashes its files. Those of a larger one are hashed again only
# when their stamp has changed.
ALWAYS_HASHED = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an artefact's `manifest.json` says about it."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Identifies the content: a digest of the kind and of every file's checksum."""
        checksums = {name: entry["sha256"] for name, entry in self.files.items()}
        return _digest({"kind": self.kind, "files": checksums})

    def after(self, state: str) -> str:
        """Identifies a content that was in this state, after this edit of it."""
        return _digest({"before": state, "files": self.fingerprint, "config": self.config})


@dataclass
class Draft:
    """An artefact being written: put files under `path` and fill in the rest before the block ends."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


@contextmanager
def publish(path: Path, *, kind: str, replace: bool = False) -> Iterator[Draft]:
    """Write an artefact: when the block ends it stands at `path`; if the block raises, nothing has changed.
    Where `path` stands for a URL, it is sent there.

    Replacing an artefact takes two renames: a kill between them leaves nothing at `path`, never half of one.
    """
    path = Path(path)
    if not replace:
        refuse_existing(path)
    make_folder(path.parent)
    url = url_of(path)
    with new_folder_for(path) as temporary:
        draft = Draft(path=temporary)
        yield draft
        _seal(draft, kind=kind)
        if url:
            send_artefact(temporary, url)
        if (replace or url) and path.exists():  # of a URL it may be one that is no longer there
            aside = _move_aside(path)
            temporary.rename(path)
            _remove(aside)
        else:
            _rename_to_new(temporary, path)
        fsync_file(path.parent)


@contextmanager
def new_folder_for(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` in which to write what will stand there; the block renames it. It is
    removed if the block raises."""
    temporary, lock = _new_temporary(path, ".tmp")
    try:
        yield temporary
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _name_full_disk(error, path)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def os_error(error: BaseException) -> OSError | None:
    """The system's error behind an exception (a full disk, say), or None if there is none."""
    if isinstance(error, OSError):
        return error
    # how libraries written in Rust (safetensors, tokenizers) report it
    code = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else None


def _name_full_disk(error: BaseException, path: Path) -> None:
    """If the disk is full, raise that again with the place being written, which the system does not name."""
    cause = os_error(error)
    if cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(cause.errno, cause.strerror, str(path)) from error


def _new_temporary(path: Path, suffix: str) -> tuple[Path, int | None]:
    """An empty folder (.tmp) or file (.part) beside `path` in which to write what will stand there, and the
    lock that tells others that its writer lives. What dead writers left is removed."""
    sweep_abandoned(path.parent, escape(path.name))
    while True:
        temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}{suffix}"
        if suffix == ".tmp":
            temporary.mkdir()
        else:
            temporary.touch(exist_ok=False)
        try:
            return temporary, _lock(temporary)
        except (BlockingIOError, FileNotFoundError):  # another process has just swept it
            continue


def _lock(temporary: Path) -> int | None:
    """Lock a file or folder until the descriptor returned is closed; None: this file system has no locks.
    An error says that another process has locked or removed it."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if temporary.stat().st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(temporary)
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sweep_abandoned(folder: Path, name: str = "*") -> None:
    """Remove what killed writers and removers left in `folder`, of what has this name. What a living one is
    writing, it has locked."""
    for leftover in filter(is_temporary, folder.glob(f".{name}.????????.*")):
        with suppress(OSError):
            if (lock := _lock(leftover)) is not None:
                if leftover.suffix == ".part":
                    leftover.unlink()
                else:
                    shutil.rmtree(leftover, ignore_errors=True)
                os.close(lock)


def refuse_existing(path: Path) -> None:
    """Raise if something already stands where a command is about to write."""
    if is_there(path):
        # of anything else, someone's documents perhaps, no one is told to remove it
        cure = "choose another place" + " or remove it first" * is_made(path)
        raise ArtefactExists(f"{shown(path)} already exists; {cure}")


def _way_to_a_corpus(place: Path) -> str:
    """Advice where there is none: what stands there is documents perhaps, and nothing is written there."""
    if url_of(place) is None and place.exists():
        made = f"realmlm corpus {place} --out CORPUS"
        return f"documents are searched with --docs {place}, or made into a corpus: {made}"
    return f"make one: realmlm corpus notes/ --out {shown(place)}"


def is_made(folder: Path, names: Collection[str] = tuple(_RECORDS)) -> bool:
    """Is a folder one that realmlm wrote: an artefact, a run, or what adapting leaves? `names` are those of
    its files, where they are known."""
    return any(_records(folder / name, keys) for name, keys in _RECORDS.items() if name in names)


def _records(file: Path, keys: frozenset[str]) -> bool:
    """Does a file of JSON have these keys?"""
    try:
        with open_file(file) as stream:
            record = json.loads(stream.read())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() >= keys


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)
    except OSError:  # a folder that is not empty cannot be replaced: another process was quicker
        refuse_existing(path)
        raise


def discard(path: Path) -> None:
    """Remove an artefact; a kill while it does leaves all of it at `path`, or nothing."""
    sweep_abandoned(path.parent, escape(path.name))
    _remove(_move_aside(path))


def _remove(aside: Path) -> None:
    with suppress(FileNotFoundError):  # another process sweeps it
        shutil.rmtree(aside)


def _move_aside(path: Path) -> Path:
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.old"
    path.rename(aside)
    return aside


def sweep(folder: Path) -> None:
    """Remove what killed writers left in `folder` under temporary names. The caller must hold the lock that
    keeps other writers out of it."""
    for leftover in filter(is_temporary, Path(folder).glob(".*")):
        if leftover.suffix == ".part":
            leftover.unlink(missing_ok=True)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def is_temporary(path: Path) -> bool:
    """Is it something half written, or half removed?"""
    return path.name.startswith(".") and path.suffix in (".tmp", ".old", ".part")


def count_edits(path: Path) -> int:
    """How many edits an artefact has: `edits/000001`, `edits/000002` …, each itself an artefact."""
    folder = Path(path) / "edits"
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return 0
    for number, name in enumerate(names, 1):
        if int(name) != number:
            missing = shown(edit_place(path, number))
            raise ArtefactDamaged(f"{missing} is missing, but {name} exists; {_again(Path(path))}")
    return len(names)


def edit_place(path: Path, number: int) -> Path:
    """The folder of an artefact's edit of this number, counted from 1."""
    return Path(path) / "edits" / f"{number:06d}"


def open_artefact(path: Path, *, kind: str, hint: str = "") -> Manifest:
    """Check an artefact of this kind, its files included, and give its manifest. `hint` is advice for a user
    who has none: the command that makes one."""
    manifest = read_manifest(path, kind=kind, hint=_way_to_a_corpus(path) if kind == "corpus" else hint)
    _verify_files(Path(path), manifest)
    return manifest


def read_manifest(path: Path, *, kind: str, hint: str = "") -> Manifest:
    """The manifest of an artefact of this kind; its files are not checked."""
    file = Path(path) / MANIFEST
    if not file.is_file():
        why = f": it has no {MANIFEST}" if file.parent.is_dir() else ""
        raise ArtefactMissing(f"no {kind} in {shown(path)}{why}{f'; {hint}' if hint else ''}")
    manifest = parse_manifest(file, Path(path))
    if manifest.kind == kind:
        return manifest
    raise ArtefactMissing(
        f"{shown(path)} is of kind '{manifest.kind}', but '{kind}' is needed; name another folder"
    )


def parse_manifest(file: Path, place: Path | str) -> Manifest:
    """What a manifest says, if it is sound; `place` is that of its artefact, for a complaint."""
    name = f"{shown(place)}/{MANIFEST}"
    try:
        record = json.loads(file.read_text("utf-8"))
        checksum = record.pop("checksum")
        if record.get("format", 0) > FORMAT:
            newer = f"has format {record['format']}, newer than this version reads ({FORMAT})"
            raise ArtefactDamaged(f"{name} {newer}; upgrade realmlm")
        intact = checksum == _digest(record)
        wrong = wrong_field(record) if intact else None
        manifest = Manifest(**record)
        for inside in manifest.files:
            if Path(inside).is_absolute() or ".." in Path(inside).parts or "\0" in inside:
                raise ArtefactDamaged(f"{name} names a file outside its folder, '{inside}': do not trust it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactDamaged(f"{name} is damaged ({type(error).__name__}); {_again(place)}") from error
    if not intact:
        raise ArtefactDamaged(f"{name} is damaged (its checksum does not match); {_again(place)}")
    if wrong is not None:
        cannot = f"{name} is not one that realmlm writes ({wrong} is missing or impossible)"
        raise ArtefactDamaged(f"{cannot}: do not trust it, or {_again(place)}")
    return manifest


def _again(path: Path | str) -> str:
    if url := url_of(Path(path)):
        return f"remove {path}, which is a copy: {url} is fetched again"
    return f"remove {path} and make it again"


def _verify_files(path: Path, manifest: Manifest) -> None:
    """Compare each file's size and checksum with the manifest's.

    A large artefact has in `.verified.json` a stamp of each file when it was last found sound, and a file
    that still has the same is not hashed again.
    """
    stamps = _read_stamps(path)
    small = sum(entry["bytes"] for entry in manifest.files.values()) <= ALWAYS_HASHED
    verified = {}
    for name, entry in manifest.files.items():
        file = path / name
        if file.is_symlink():
            cure = "do not trust it, or copy what it leads to in its place"
            raise ArtefactDamaged(f"{file} is a link, and artefacts hold none: {cure}")
        try:
            status = file.stat()
        except OSError as error:
            raise ArtefactDamaged(f"{file} is missing; {_again(path)}") from error
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise ArtefactDamaged(f"{file} is no plain file; {_again(path)}")
        size = status.st_size
        if size != entry["bytes"]:
            raise ArtefactDamaged(
                f"{file} is damaged: {size} bytes instead of {entry['bytes']}; {_again(path)}"
            )
        stamp = _stamp(status)
        if (small or stamps.get(name) != stamp) and sha256_of(file) != entry["sha256"]:
            raise ArtefactDamaged(f"{file} is damaged: its checksum does not match; {_again(path)}")
        verified[name] = stamp
    if verified != stamps and not small:
        _write_stamps(path, verified)


def _seal(draft: Draft, *, kind: str) -> None:
    """Make the files of a draft durable and write its manifest."""
    files = {}
    stamps = {}
    # the mode that the umask gives; safetensors lets no one but the owner read its files
    mode = draft.path.stat().st_mode & 0o666
    for file in sorted(draft.path.rglob("*")):
        if file.is_file():
            name = file.relative_to(draft.path).as_posix()
            if file.stat().st_mode & 0o666 != mode:
                file.chmod(mode)
            fsync_file(file)
            status = file.stat()
            files[name] = {"bytes": status.st_size, "sha256": sha256_of(file)}
            stamps[name] = _stamp(status)
    manifest = Manifest(
        kind=kind, config=draft.config, counts=draft.counts, parents=draft.parents, files=files
    )
    record = json.loads(json.dumps(asdict(manifest)))
    record["checksum"] = _digest(record)
    # no line break at the end: without its last byte, a brace, it is no JSON, so every cut is noticed
    write_text(draft.path / MANIFEST, json.dumps(record, indent=1, ensure_ascii=False))
    _write_stamps(draft.path, stamps)
    fsync_file(draft.path)


def write_text(file: Path, text: str) -> None:
    """Write a small file atomically: after a crash it holds the old text or the new one."""
    temporary, lock = _new_temporary(Path(file), ".part")
    try:
        temporary.write_text(text, "utf-8")
        fsync_file(temporary)
        temporary.replace(file)
        with suppress(PermissionError):  # a folder that may be written and not be read
            fsync_file(Path(file).parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name_full_disk(error, file)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def write_record(file: Path, record: dict[str, Any]) -> None:
    """Write a small file of JSON with a checksum of what it says."""
    plain = json.loads(json.dumps(record))
    write_text(file, json.dumps(plain | {"checksum": _digest(plain)}, indent=1, ensure_ascii=False))


def read_record(file: Path) -> dict[str, Any]:
    """What `write_record` wrote; a ValueError says what is wrong. Older releases wrote no checksum."""
    if not file.is_file():
        raise ValueError("it is no file")
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {type(error).__name__}") from error
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    if record.pop("checksum", _digest(record)) != _digest(record):
        raise ValueError("its checksum does not match")
    return record


def make_folder(folder: Path) -> None:
    """Make a folder with those above it; once this returns, all of them survive a crash."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        fsync_file(place.parent)


def fsync_file(path: Path) -> None:
    """Wait until a file, or a folder's list of its files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stamp(status: os.stat_result) -> list[int]:
    """What tells a file that was hashed from any other, and from a copy of itself: no program can set the
    inode and the time of the last change of state."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def renew_stamps(path: Path) -> None:
    """Note the stamps of an artefact's files again after other links to them were removed, which changed the
    time of their state and nothing else."""
    stamps = _read_stamps(path)
    now = {name: _stamp((path / name).stat()) for name in stamps}
    same = {name: now[name] for name in stamps if _without_ctime(now[name]) == _without_ctime(stamps[name])}
    _write_stamps(path, same)


def _without_ctime(stamp: list[int]) -> list[int]:
    return [*stamp[:2], *stamp[3:]]


def _read_stamps(path: Path) -> dict[str, list[int]]:
    file = path / _STAMPS
    try:
        stamps = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        return stamps if isinstance(stamps, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_stamps(path: Path, stamps: dict[str, list[int]]) -> None:
    with suppress(OSError):  # an artefact that cannot be written to is hashed at each opening
        write_text(path / _STAMPS, json.dumps(stamps))  # replaces a link, does not follow it


def sha256_of(file: Path) -> str:
    """The SHA-256 checksum of a file's bytes, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
