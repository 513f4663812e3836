"""Artefacts of object stores, fetched into the folders that stand for them (`realmlm.storage.remote`)."""

from pathlib import Path

from realmlm.errors import ArtefactDamaged
from realmlm.log import say
from realmlm.storage.artefacts import (
    Manifest,
    count_edits,
    discard,
    new_folder_for,
    parse_manifest,
    read_manifest,
    sha256_of,
    write_text,
)
from realmlm.storage.locks import locked
from realmlm.storage.remote import MANIFEST, mirror_of, reaching, send_file, url_in, url_of


def here(place: str | Path) -> Path:
    """The folder of this machine in which an artefact is to be opened: the one named or, of a URL, its
    mirror, brought up to what is there now; if that is nothing, there is none."""
    url = url_in(place) or url_of(Path(place))
    if url is None:
        return Path(place)
    folder = mirror_of(url)
    with locked(folder.with_name(f".{folder.name}.fetching")):
        _fetch(url, folder)
    return folder


def same_here(place: Path, manifest: Manifest, edits: int) -> Path:
    """`here`, of an artefact that another process has opened: it is fetched where it is not the same yet."""
    url = url_of(place)
    if url is None:
        return place
    folder = mirror_of(url)
    fetched = (folder / MANIFEST).exists() and count_edits(folder) >= edits
    return folder if fetched and read_manifest(folder, kind=manifest.kind) == manifest else here(place)


def _fetch(url: str, folder: Path) -> None:
    with reaching(url) as (files, root):
        files.invalidate_cache()
        try:
            text = files.cat_file(f"{root}/{MANIFEST}")
        except FileNotFoundError:
            text = None
        edits = files.ls(f"{root}/edits", detail=False) if text and files.exists(f"{root}/edits") else []
    if text is None:
        if folder.exists():
            discard(folder)
        return
    if not (folder / MANIFEST).exists() or (folder / MANIFEST).read_bytes() != text:
        _download(url, folder, text)
    there = [name for edit in edits if (name := edit.rstrip("/").rpartition("/")[2]).isdecimal()]
    _withdraw(folder / "edits", set(there))
    for name in sorted(there):
        _fetch(f"{url}/edits/{name}", folder / "edits" / name)


def _withdraw(edits: Path, there: set[str]) -> None:
    """Remove what the store no longer lists, the last first: those before it stay whole meanwhile."""
    mirrored = [place for place in edits.glob("*") if place.name.isdecimal() and place.name not in there]
    for place in sorted(mirrored, reverse=True):
        discard(place)


def _download(url: str, folder: Path, text: bytes) -> None:
    """Fetch all files that a manifest names, check them, and put them in the place of what was there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder_for(folder) as temporary:
        (temporary / MANIFEST).write_bytes(text)
        manifest = parse_manifest(temporary / MANIFEST, url)
        size = sum(entry["bytes"] for entry in manifest.files.values())
        say(f"fetching {url}, {size / 2**20:,.1f} MiB")
        for name, entry in manifest.files.items():
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with reaching(f"{url}/{name}") as (files, root):
                    files.get_file(root, str(file))
                wrong = sha256_of(file) != entry["sha256"] and "damaged: its checksum does not match"
            except FileNotFoundError:
                wrong = "missing"
            if wrong:
                cure = "if the artefact is not being replaced at this moment, make it again"
                raise ArtefactDamaged(f"{url}/{name} is {wrong}; {cure}")
        if folder.exists():
            discard(folder)
        temporary.rename(folder)


def write_result(file: Path, text: str) -> None:
    """Write a small file at a place that a user named, on this machine or on an object store."""
    write_text(file, text)
    if url := url_of(file):
        send_file(file, url)
