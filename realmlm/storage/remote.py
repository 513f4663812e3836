"""Places on object stores, s3://bucket/corpus for instance, through fsspec.

Everything here works with folders of this machine: files are mapped into memory, and artefacts appear by a
rename. So a URL stands for a folder of the cache with the same name, its mirror:

    s3://bucket/corpus        ~/.cache/realmlm/objects/s3:/bucket/corpus

and whoever is given that folder knows by its name that it is one (`url_of`). An artefact is sent when it is
published in its mirror, and fetched into it when it is opened (`realmlm.storage.mirrors`). Documents and
questions are read where they are.
"""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realmlm.errors import BadInput, MissingExtra, RealmError, require
from realmlm.storage.cache import cache_folder, make_private

MANIFEST = "manifest.json"
"""The file that makes a folder an artefact (`realmlm.storage.artefacts`)."""
_OBJECTS = "objects"
_MIRROR = re.compile(rf"/realmlm/{_OBJECTS}/([a-z][a-z0-9+.-]+):/(.+)$")
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)$")  # a Path has only one slash left of two


def url_in(place: str | Path) -> str | None:
    """The URL that a user has named, None: a place on this machine."""
    found = _URL.match(str(place))
    if found and found[1] in ("file", "local"):  # fsspec knows them: a corpus would be copied into the cache
        raise BadInput(f"{place} is a place on this machine; name it by its path: /{found[2]}")
    return f"{found[1]}://{found[2].rstrip('/')}" if found else None


def mirror_of(url: str) -> Path:
    """The folder or file of the cache that stands for a URL."""
    root = cache_folder() / _OBJECTS
    make_private(root)
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    if {"", ".", ".."}.intersection(parts):
        raise BadInput(f"{url} has an empty part, or one of dots; name it without")
    return root.joinpath(f"{scheme}:", *parts)


def url_of(place: Path) -> str | None:
    """The URL that a folder or file of a cache stands for, also in that of another machine; None: it is just
    a place on this one."""
    found = _MIRROR.search(place.as_posix())
    return f"{found[1]}://{found[2]}" if found else None


def shown(place: str | Path) -> str:
    """A place as its user named it."""
    return url_of(Path(place)) or str(place)


# --- reading ------------------------------------------------------------------------------------------------


def open_file(place: Path) -> Any:
    """A file's bytes, unbuffered, wherever it is."""
    if (url := url_of(place)) is None:
        return open(place, "rb", buffering=0)
    with reaching(url) as (files, root):
        return files.open(root, "rb")


def size_of(place: Path) -> int:
    """The bytes of a file, wherever it is."""
    if (url := url_of(place)) is None:
        return place.stat().st_size
    with reaching(url) as (files, root):
        return int(files.size(root) or 0)


def mode_of(place: Path) -> int:
    """Whether a place is a file or a folder, as `stat` says it. FileNotFoundError: it is neither."""
    if (url := url_of(place)) is None:
        return place.stat().st_mode
    with reaching(url) as (files, root):
        return stat.S_IFDIR if files.info(root)["type"] == "directory" else stat.S_IFREG


def is_there(place: Path) -> bool:
    """Does a file or folder exist? On an object store a folder does when it is an artefact: what was sent of
    one before its manifest does not count."""
    if (url := url_of(place)) is None:
        return place.exists()
    with reaching(url) as (files, root):
        files.invalidate_cache()  # others write there, too
        return bool(files.isfile(root) or files.exists(f"{root}/{MANIFEST}"))


def walk(top: Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[str | Path, list[str], list[str]]]:
    """What `os.walk` gives, wherever the folder is: folders to enter may be taken out of the list."""
    if (url := url_of(top)) is None:
        yield from os.walk(top, onerror=onerror)
        return
    try:
        with reaching(url) as (files, root):
            listed = files.ls(root, detail=True)
    except OSError as error:
        onerror(error)
        return
    names: dict[str, list[str]] = {"directory": [], "file": []}
    for entry in listed:
        name = entry["name"].rstrip("/").rpartition("/")[2]
        if name and entry["name"].strip("/") != root.strip("/"):  # some stores list a folder in itself
            names[entry["type"]].append(name)
    yield top, names["directory"], names["file"]
    for name in names["directory"]:
        yield from walk(top / name, onerror)


@contextmanager
def at_hand(place: Path) -> Iterator[Path]:
    """A file of this machine with the same content, for libraries that must have one."""
    if url_of(place) is None:
        yield place
        return
    with tempfile.TemporaryDirectory() as folder, open_file(place) as stream:
        copy = Path(folder) / place.name
        with open(copy, "wb") as file:
            shutil.copyfileobj(stream, file, 2**20)
        yield copy


# --- writing ------------------------------------------------------------------------------------------------


def send_file(file: Path, url: str) -> None:
    """Put a file there; an object store shows it whole or not at all."""
    with reaching(url) as (files, root):
        files.put_file(str(file), root)


def send_artefact(folder: Path, url: str) -> None:
    """Put all files of an artefact there, its manifest last; one that is there already goes first. Who opens
    it finds all of it, or nothing."""
    with reaching(f"{url}/{MANIFEST}") as (files, name):
        if files.exists(name):
            files.rm_file(name)
    sent = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    for file in sorted(sent, key=lambda file: file == folder / MANIFEST):
        send_file(file, f"{url}/{file.relative_to(folder).as_posix()}")


# --- fsspec -------------------------------------------------------------------------------------------------


@contextmanager
def reaching(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the name that it has there. What goes wrong is an OSError that names it,
    whatever the store's library raises."""
    fsspec = require("fsspec", extra="s3", why=url)
    try:
        files, name = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(f"{url}: {error}; for s3://, pip install 'realmlm[s3]'") from error
    except ValueError as error:
        raise BadInput(f"{url} cannot be reached ({error}); name a folder, or such as s3://…") from error
    try:
        yield files, name
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    except RealmError:
        raise
    except Exception as error:  # botocore's and aiohttp's errors are no OSErrors
        raise OSError(errno.EIO, f"cannot be reached ({type(error).__name__}: {error})", url) from error
