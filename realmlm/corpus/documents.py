"""A folder of documents as a corpus that follows it: kept by content in a cache, so that only what changed is
read and embedded again.

Every passage says in its source which file it comes from and what that file contained (a part of its
checksum). So the corpus itself tells what is in it: nothing else has to be remembered, and a kill at any
moment leaves a state that the next opening understands.
"""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.corpus.build import other_kinds, write_articles
from realmlm.corpus.store import CONTENT_MARK, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, BadInput, MissingExtra, RealmError
from realmlm.log import counted, progress, say
from realmlm.parallel import default_workers
from realmlm.sources.article import Article
from realmlm.sources.readers import SourceFile, apart, find_files, read_files
from realmlm.storage.arrays import map_array
from realmlm.storage.artefacts import MANIFEST, discard, publish, sha256_of, write_text
from realmlm.storage.locks import locked

DOCUMENT_WORDPIECES = 128  # of a passage that is cut from documents
_EDITS = 64  # after so many the corpus is made anew, without what was removed
_SAID = 10  # files that cannot be read are named with the reason up to this many, when they are met
_NAMED = 3  # and up to this many each time
LOOK_S = 2.0  # seconds between two looks at the files, at least
_LOOK_SHARE = 20  # and looking takes at most one of so many seconds
_READING = 4  # raised when files are read otherwise than before: what was made of them is made again
_said: dict[Path, set[str]] = {}  # in this process, when the corpus at a place was last opened


def cache_folder() -> Path:
    """Where corpora of folders are kept: `$XDG_CACHE_HOME/realmlm`, else `~/.cache/realmlm`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "realmlm"


def open_documents(
    documents: Sequence[Path],
    wordpieces: Wordpieces,
    *,
    max_wordpieces: int,
    held: ExitStack,
    cache: Path | None = None,
) -> Corpus:
    """The corpus of folders and files as they are now; what the cache has of them is brought up to date, or
    it is made.

    Until `held` is closed others who want the same wait. Make its index before: later the corpus may be
    edited, or made anew in its place.
    """
    places = apart(documents)
    identity = "\n".join(
        [*map(str, places), wordpieces.fingerprint, str(max_wordpieces), f"reading {_READING}"]
    )
    name = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]
    folder = (cache or cache_folder()) / "documents"
    held.enter_context(_kept_in(folder))
    held.enter_context(locked(folder / f".{name}.lock"))
    seen = _Seen(folder / f"{name}.seen.json")
    say_new = _SayNew(folder / name)
    found, unknown = _find(places, say_new)
    files = {f"{file.name}{CONTENT_MARK}{digest}": file for file, digest in _digests(found, seen, say_new)}
    corpus = _follow(folder / name, files, seen, wordpieces, say_new, max_wordpieces=max_wordpieces)
    seen.keep(files)
    unread = [file.name for source, file in files.items() if source in seen.unreadable]
    in_part = [file.name for source, file in files.items() if source in seen.in_part]
    if unread or in_part or unknown:
        say_new(
            _left_out(unread, in_part, unknown, seen),
            f"{counted(len(corpus), 'passage')} of {counted(len(files) - len(unread), 'file')}; ",
        )
    return corpus


class _SayNew:
    """Says what was not said when the corpus at this place was opened before: who follows documents opens
    them at every change."""

    def __init__(self, place: Path) -> None:
        self._before = _said.get(place, set())
        self._now = set[str]()
        _said[place] = self._now

    def __call__(self, text: str, preface: str = "") -> None:
        """Say it, after a preface that makes no difference."""
        if text not in self._before:
            say(preface + text)
        self._now.add(text)


class Watch:
    """Folders and files of documents, and whether they change: names, sizes and times, looked at every few
    seconds at most."""

    def __init__(self, documents: Sequence[Path]) -> None:
        self.places = apart(documents)
        self._known = self._look()

    def changed(self) -> bool:
        """Have they changed since this last said so, or since the beginning?"""
        if time.monotonic() < self._next:
            return False
        before = self._known
        self._known = self._look()
        return before != self._known

    def _look(self) -> dict[Path, tuple[int, int] | None]:
        begun = time.monotonic()
        files, _ = find_files(self.places, on_bad=lambda fault: None)
        stamps = {file.path: _stamp(file.path) for file in files}
        now = time.monotonic()
        self._next = now + max(LOOK_S, _LOOK_SHARE * (now - begun))
        return stamps


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and time of a file that is there."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Say what to do where this folder of the cache, or one that it lies in, cannot be written."""
    try:
        yield
    except OSError as error:
        place = Path(str(error.filename or "")).absolute()
        if error.filename is None or not (
            place.is_relative_to(folder.absolute()) or folder.absolute().is_relative_to(place)
        ):
            raise
        why = f"the documents cannot be cached in {folder} ({error.strerror}: {place})"
        raise BadInput(f"{why}; set XDG_CACHE_HOME to a folder you can write to") from error


class _Seen:
    """What need not be looked at again: checksums of files by size and time, and sources that could not be
    read, or not all of them, with the reason."""

    def __init__(self, file: Path) -> None:
        self.file = file
        # of those that could not be read: they can be once a library is installed
        self.waiting: set[str] = set()
        try:
            self._before: dict[str, Any] = json.loads(file.read_text("utf-8"))
            self.digests, self.unreadable, self.in_part = (
                dict(self._before[name]) for name in ("digests", "unreadable", "in_part")
            )
        except (OSError, ValueError, TypeError, KeyError):
            self._before = {}
            self.digests = {}
            self.unreadable = {}
            self.in_part = {}

    def digest(self, file: Path) -> str:
        """A part of the file's checksum; it is not read for it while its size and time stay."""
        status = file.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = self.digests.get(str(file))
        if not isinstance(entry, list) or len(entry) != 3 or entry[:2] != stamp:
            entry = self.digests[str(file)] = [*stamp, sha256_of(file)[:16]]
        return str(entry[2])

    def keep(self, files: Mapping[str, SourceFile]) -> None:
        """Write it down for the files there are now."""
        names = {str(file.path) for file in files.values()}
        digests = {name: entry for name, entry in self.digests.items() if name in names}
        known = {
            source: why
            for source, why in self.unreadable.items()
            if source in files and source not in self.waiting
        }
        in_part = {source: why for source, why in self.in_part.items() if source in files}
        now = {"digests": digests, "unreadable": known, "in_part": in_part}
        if now != self._before:
            readable = json.dumps(now, ensure_ascii=False, indent=1)
            # \udce9 is what JSON, too, calls half a character
            write_text(self.file, readable.encode(errors="backslashreplace").decode())


def _find(places: Sequence[Path], say_new: _SayNew) -> tuple[list[SourceFile], list[Path]]:
    """The files to read, and those of other kinds."""
    faults: list[RealmError] = []
    files, unknown = find_files(places, on_bad=faults.append)
    if faults and not files:
        raise faults[0]
    for fault in faults[:_SAID]:
        say_new(f"left out: {fault}")
    return files, unknown


def _left_out(unread: Sequence[str], in_part: Sequence[str], unknown: list[Path], seen: _Seen) -> str:
    """One line: who asks later should know, too, what is not there to be found."""
    said = []
    for names, what in ((unread, "could not be read"), (in_part, "read only in part")):
        if names:
            more = f" …; all, and why: {seen.file}" if len(names) > _NAMED else ""
            said.append(f"{len(names):,} {what} ({', '.join(names[:_NAMED])}{more})")
    return "; ".join([*said, *([other_kinds(unknown)] if unknown else [])])


def _digests(files: Sequence[SourceFile], seen: _Seen, say_new: _SayNew) -> Iterator[tuple[SourceFile, str]]:
    for file in files:
        try:
            digest = seen.digest(file.path)
        except OSError as error:  # it may not be read, or has just gone
            say_new(f"left out: {file.path}: {error.strerror}")
            continue
        yield file, digest


def _follow(
    place: Path,
    files: Mapping[str, SourceFile],
    seen: _Seen,
    wordpieces: Wordpieces,
    say_new: _SayNew,
    *,
    max_wordpieces: int,
) -> Corpus:
    """The corpus at a place, made to contain these files, by source."""
    known: dict[str, list[int]] = {}
    if place.exists():
        if not (place / MANIFEST).is_file():
            raise ArtefactDamaged(
                f"{place}, where the cache keeps these documents, has no {MANIFEST}; remove it to have it "
                "made again"
            )
        corpus = Corpus.open(place)
        known = _contained(corpus)
    gone = [source for source in known if source not in files]
    new = {
        source: file
        for source, file in files.items()
        if source not in known and source not in seen.unreadable
    }
    if known and not gone and not new:
        return corpus
    left_out = _LeftOut(seen, say_new)
    if known and corpus.edits < _EDITS and len(gone) < len(known):
        names = {file.name for file in new.values()}
        former = {source.rpartition(CONTENT_MARK)[0] for source in gone}
        counts = {"new": names - former, "changed": names & former, "removed": former - names}
        say("files: " + ", ".join(f"{len(some):,} {what}" for what, some in counts.items() if some))
        removed = [number for source in gone for number in known[source]]
        added = list(_articles(new, left_out)) if new else []
        corpus = corpus.edit(add=added, remove=removed)[0] if added or removed else corpus
    else:
        if place.exists():
            _put_aside(place)
        with publish(place, kind="corpus") as draft:
            articles = _articles(files, left_out)
            writer = write_articles(
                draft, articles, wordpieces, max_wordpieces=max_wordpieces, workers=default_workers()
            )
            if not writer.passages:
                raise (
                    left_out.errors[0]
                    if left_out.errors
                    else BadInput("the documents contain no text; name others")
                )
            draft.config |= {
                "sources": sorted({file.name.split("/")[0] for file in files.values()}),
                "tokenizer": "of the model",
            }
            draft.counts["skipped"] = 0
        corpus = Corpus.open(place)
    contained = set(_contained(corpus))
    seen.in_part = {
        source: why for source, why in (seen.in_part | left_out.first).items() if source in contained
    }
    wordless = dict.fromkeys(set(files) - contained, "it contains no words")
    seen.unreadable = {source: seen.unreadable.get(source, why) for source, why in wordless.items()}
    return corpus


def _put_aside(place: Path) -> None:
    """Keep the corpus, if it has an index, until the next is put aside: the vectors of what stays are taken
    from there."""
    former = place.with_name(f"{place.name}-former")
    # none, or its making was cut off: the former's are still of use
    if not any((place / "index").glob("[!.]*")):
        discard(place)
        return
    if former.exists():
        discard(former)
    place.rename(former)


class _LeftOut:
    """What could not be read; the first few are said."""

    def __init__(self, seen: _Seen, say_new: _SayNew) -> None:
        self._seen = seen
        self._say = say_new
        self.errors: list[RealmError] = []
        self.first: dict[str, str] = {}  # of each source

    def __call__(self, source: str, error: RealmError) -> None:
        self.errors.append(error)
        self._seen.unreadable[source] = str(error)
        self.first.setdefault(source, str(error))
        if isinstance(error, MissingExtra):
            self._seen.waiting.add(source)
        if len(self.errors) <= _SAID:
            self._say(f"left out: {error}")

    def conclude(self) -> None:
        if len(self.errors) > _SAID:
            self._say(f"left out: {len(self.errors) - _SAID} more")


def _articles(files: Mapping[str, SourceFile], left_out: _LeftOut) -> Iterator[Article]:
    """The articles of files, each with its file's name and content as source."""
    with progress("reading", len(files), unit="files") as bar:
        for source, file in files.items():
            for article in read_files([file], on_bad=partial(left_out, source)):
                yield replace(article, source=source)
            bar.advance()
    left_out.conclude()


def _contained(corpus: Corpus) -> dict[str, list[int]]:
    """Source -> the passages of it. Those of the base are read from its arrays (docs/formats.md), for they
    may be many."""
    names = ("articles", "sources", "source_offsets")
    articles_P, sources, offsets = (map_array(corpus.folder / f"{name}.safetensors") for name in names)
    data = sources.tobytes()
    known = defaultdict[str, list[int]](list)
    ids = corpus.ids
    base = ids[ids < len(articles_P)]
    borders = np.searchsorted(articles_P[base], np.arange(len(offsets))).tolist()
    for (start, end), (first, past) in zip(pairwise(offsets.tolist()), pairwise(borders), strict=True):
        if past > first:
            known[data[start:end].decode()] += base[first:past].tolist()
    for number in ids[len(base) :].tolist():
        known[corpus.source(number)].append(number)
    return dict(known)
