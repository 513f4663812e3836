"""A folder of documents as a corpus that follows it: kept by content in a cache, so that only what changed is read and embedded again.

Every passage says in its source which file it comes from and what that file contained (a part of its checksum). So the corpus itself tells
what is in it: nothing else has to be remembered, and a kill at any moment leaves a state that the next opening understands.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from realmlm.artefact import discard, locked, publish, sha256_of, write_text
from realmlm.corpus.build import write_articles
from realmlm.corpus.readers import SourceFile, find_files, read_files
from realmlm.corpus.store import Article, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.log import say
from realmlm.parallel import default_workers

_MARK = " #"  # between a file's name and the checksum of what it contained
_EDITS = 64  # after so many the corpus is made anew, without what was removed
_SAID = 10  # files that cannot be read are named up to this many


def cache_folder() -> Path:
    """Where corpora of folders are kept: `$XDG_CACHE_HOME/realmlm`, else `~/.cache/realmlm`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "realmlm"


def open_documents(folder: Path, wordpieces: Wordpieces, *, max_wordpieces: int, cache: Path | None = None) -> Corpus:
    """The corpus of a folder (or file) as it is now; what the cache has of it is brought up to date, or it is made."""
    if not folder.exists():
        raise BadInput(f"{folder} does not exist; name a folder with documents")
    name = hashlib.sha256(f"{folder.resolve()}\n{wordpieces.fingerprint}\n{max_wordpieces}".encode()).hexdigest()[:16]
    place = (cache or cache_folder()) / "documents" / name
    with locked(place.parent / f".{name}.lock"):
        files = {f"{file.name}{_MARK}{digest}": file for file, digest in _digests(folder, place.parent / f"{name}.stamps.json")}
        if not place.exists():
            return _make(place, folder, list(files.items()), wordpieces, max_wordpieces=max_wordpieces)
        corpus = Corpus.open(place)
        known = _contained(corpus)
        gone, new = [source for source in known if source not in files], [source for source in files if source not in known]
        if not gone and not new:
            return corpus
        if corpus.edits >= _EDITS or len(gone) == len(known):
            discard(place)
            return _make(place, folder, list(files.items()), wordpieces, max_wordpieces=max_wordpieces)
        say(f"{folder}: {len(new)} files are new or changed, {len(gone)} are gone or were changed")
        removed = [number for source in gone for number in known[source]]
        added = list(_articles([(source, files[source]) for source in new]))
        return corpus.edit(add=added, remove=removed)[0] if added or removed else corpus


def file_of(source: str) -> str:
    """The file's name in a passage's source."""
    return source.rpartition(_MARK)[0] or source


def _make(place: Path, folder: Path, files: Sequence[tuple[str, SourceFile]], wordpieces: Wordpieces, *, max_wordpieces: int) -> Corpus:
    say(f"reading {len(files):,} files of {folder}")
    with publish(place, kind="corpus") as draft:
        writer = write_articles(draft, _articles(files), wordpieces, max_wordpieces=max_wordpieces, workers=default_workers())
        if not writer.passages:
            raise BadInput(f"{folder} holds no text that can be read")
        draft.config |= {"sources": [folder.name], "tokenizer": "of the model"}
        draft.counts["skipped"] = 0
    return Corpus.open(place)


def _articles(files: Sequence[tuple[str, SourceFile]]) -> Iterator[Article]:
    """The articles of files, each with its file's name and content as source; what cannot be read is said and left out."""
    faults = 0

    def on_bad(error: BadInput) -> None:
        nonlocal faults
        faults += 1
        if faults <= _SAID:
            say(f"left out: {error}")

    for source, file in files:
        for article in read_files([file], on_bad=on_bad):
            yield replace(article, source=source)
    if faults > _SAID:
        say(f"left out: {faults - _SAID} more")


def _contained(corpus: Corpus) -> dict[str, list[int]]:
    """Source -> the passages of it."""
    known: defaultdict[str, list[int]] = defaultdict(list)
    for number in corpus.ids.tolist():
        known[corpus.source(number)].append(number)
    return dict(known)


def _digests(folder: Path, stamps: Path) -> Iterator[tuple[SourceFile, str]]:
    """Every file that can be read, with a part of its checksum; files of the same size and time as before are not read for it."""

    def on_bad(error: BadInput) -> None:
        raise error

    files, _ = find_files([folder], on_bad=on_bad)
    try:
        before = json.loads(stamps.read_text("utf-8"))
    except (OSError, ValueError):
        before = {}
    now = {}
    for file in files:
        status = file.path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = before.get(str(file.path)) if isinstance(before, dict) else None
        digest = entry[2] if isinstance(entry, list) and entry[:2] == stamp else sha256_of(file.path)[:16]
        now[str(file.path)] = [*stamp, digest]
        yield file, digest
    if now != before:
        write_text(stamps, json.dumps(now))
