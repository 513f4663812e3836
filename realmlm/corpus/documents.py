"""A corpus that follows folders of documents: cached, so that only what changed is read and embedded again.

The source of every passage names its file and what that file contained (a part of its checksum). So the
corpus itself tells what is in it; no other record can disagree with it, and whatever a kill leaves, the next
opening goes on from there.
"""

import hashlib
import json
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
from realmlm.sources.files import apart, find_files
from realmlm.sources.readers import read_files
from realmlm.sources.reading import NoText, SourceFile
from realmlm.storage.arrays import map_array
from realmlm.storage.artefacts import MANIFEST, discard, publish, sha256_of, write_text
from realmlm.storage.cache import cache_folder, make_private
from realmlm.storage.locks import locked

DOCUMENT_WORDPIECES = 128  # of a passage that is cut from documents
MOST_EDITS = 64  # edits after which the corpus is made anew, without what was removed
_SHOWN = 10  # files that cannot be read, shown one by one with the reason when they are first met
_NAMED = 3  # and named at each opening
LOOK_S = 2.0  # least seconds between two looks at the files
LOOK_SHARE = 20  # looking takes at most one of so many seconds
_READING = 8  # raised when a release reads files differently, so that cached corpora are made again


def open_documents(
    documents: Sequence[Path],
    wordpieces: Wordpieces,
    *,
    max_wordpieces: int,
    held: ExitStack,
    said: set[str] | None = None,
    cache: Path | None = None,
) -> Corpus:
    """The corpus of folders and files as they are now: the cached one brought up to date, or a new one.

    `said` are the messages of its last opening, which are not repeated; those of this one replace them.

    A lock on it is put into `held`: until that is closed, other processes that want the same corpus wait.
    Make the index before, for afterwards another process may edit the corpus or replace it.
    """
    places = apart(documents)
    settings = [wordpieces.fingerprint, str(max_wordpieces), f"reading {_READING}"]
    identity = "\n".join([*map(str, places), *settings])
    name = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]
    folder = (cache or cache_folder()) / "documents"
    held.enter_context(_explain_unwritable(folder))
    make_private(folder)
    held.enter_context(locked(folder / f".{name}.lock"))
    seen = _Seen(folder / f"{name}.seen.json")
    say_new = _SayNew(set() if said is None else said)
    found, unknown = _find(places, say_new)
    files = {f"{file.name}{CONTENT_MARK}{digest}": file for file, digest in _digests(found, seen, say_new)}
    corpus = _follow(folder / name, files, seen, wordpieces, say_new, max_wordpieces=max_wordpieces)
    unread, empty, in_part = (
        [file.name for source, file in files.items() if source in some]
        for some in (seen.unreadable, seen.empty, seen.in_part)
    )
    before = seen.passed_over
    seen.passed_over = _left_out([], empty, [], unknown, seen)
    if unread or in_part or seen.passed_over not in ("", before):  # what is lost is said each time
        read = len(files) - len(unread) - len(empty)
        size = f"{counted(len(corpus), 'passage')} of {counted(read, 'file')}; "
        say_new(_left_out(unread, empty, in_part, unknown, seen), size)
    seen.save(files)
    return corpus


class _SayNew:
    """Says what was not said when the documents were last opened. A program that follows them opens them at
    every change and would repeat itself."""

    def __init__(self, said: set[str]) -> None:
        self._before = set(said)
        self._now = said
        said.clear()

    def __call__(self, text: str, preface: str = "") -> None:
        """Say a text that is new; the preface before it does not count."""
        if text not in self._before:
            say(preface + text)
        self._now.add(text)


class Watch:
    """Tells whether documents have changed, by names, sizes and times, looking at most every few seconds."""

    def __init__(self, documents: Sequence[Path]) -> None:
        self.places = apart(documents)
        self._stamps = self._look()

    def changed(self) -> bool:
        """Have they changed since the call that last answered yes, or since the beginning?"""
        if time.monotonic() < self._next:
            return False
        before = self._stamps
        self._stamps = self._look()
        return before != self._stamps

    def _look(self) -> dict[Path, tuple[int, int] | None]:
        begun = time.monotonic()
        files, _ = find_files(self.places, on_bad=lambda fault: None)
        stamps = {file.path: _stamp(file.path) for file in files}
        now = time.monotonic()
        self._next = now + max(LOOK_S, LOOK_SHARE * (now - begun))
        return stamps


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and modification time of a file, or None if it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


@contextmanager
def _explain_unwritable(folder: Path) -> Iterator[None]:
    """Turn the error that this folder of the cache, or one around it, cannot be written into advice."""
    try:
        yield
    except OSError as error:
        place = Path(str(error.filename or "")).absolute()
        cache = folder.absolute()
        if error.filename is None or not (place.is_relative_to(cache) or cache.is_relative_to(place)):
            raise
        why = f"the documents cannot be cached in {folder} ({error.strerror}: {place})"
        raise BadInput(f"{why}; set XDG_CACHE_HOME to a folder you can write to") from error


class _Seen:
    """A file of what need not be looked at again: the checksums of files, valid while their size and time
    stay, the sources that could not be read, or only in part, or have no text, with the reason, and what was
    said of files that were passed over."""

    def __init__(self, file: Path) -> None:
        self.file = file
        # those of the unreadable that become readable when a library is installed: tried each time
        self.waiting: set[str] = set()
        try:
            self._before: dict[str, Any] = json.loads(file.read_text("utf-8"))
            self.digests, self.unreadable, self.in_part = (
                dict(self._before[name]) for name in ("digests", "unreadable", "in_part")
            )
            self.empty = dict(self._before.get("empty", {}))
            self.passed_over = str(self._before.get("passed_over", ""))
        except (OSError, ValueError, TypeError, KeyError):
            self._before = {}
            self.digests = {}
            self.unreadable = {}
            self.in_part = {}
            self.empty = {}
            self.passed_over = ""

    def digest(self, file: Path) -> str:
        """A part of the file's checksum; the file is read for it only if its size or time has changed."""
        status = file.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = self.digests.get(str(file))
        if not isinstance(entry, list) or len(entry) != 3 or entry[:2] != stamp:
            entry = self.digests[str(file)] = [*stamp, sha256_of(file)[:16]]
        return str(entry[2])

    def save(self, files: Mapping[str, SourceFile]) -> None:
        """Write what concerns the files there are now."""
        names = {str(file.path) for file in files.values()}
        lasting = files.keys() - self.waiting
        now = {
            "digests": {name: entry for name, entry in self.digests.items() if name in names},
            "unreadable": {source: why for source, why in self.unreadable.items() if source in lasting},
            "in_part": {source: why for source, why in self.in_part.items() if source in files},
            "empty": {source: why for source, why in self.empty.items() if source in files},
            "passed_over": self.passed_over,
        }
        if now != self._before:
            readable = json.dumps(now, ensure_ascii=False, indent=1)
            # half of a surrogate pair becomes \udce9, say, which is its notation in JSON, too
            write_text(self.file, readable.encode(errors="backslashreplace").decode())


def _find(places: Sequence[Path], say_new: _SayNew) -> tuple[list[SourceFile], list[Path]]:
    """The files to read, and those of other kinds."""
    faults: list[RealmError] = []
    files, unknown = find_files(places, on_bad=faults.append)
    if faults and not files:
        raise faults[0]
    for fault in faults[:_SHOWN]:
        say_new(f"left out: {fault}")
    return files, unknown


def _left_out(
    unread: Sequence[str],
    empty: Sequence[str],
    in_part: Sequence[str],
    unknown: list[Path],
    seen: _Seen,
) -> str:
    """One line about the files that no answer can be found in."""
    parts = []
    kinds = ((unread, "could not be read"), (in_part, "read only in part"), (empty, "without text"))
    for names, what in kinds:
        if names:
            more = f" …; all, and why: {seen.file}" if len(names) > _NAMED else ""
            parts.append(f"{len(names):,} {what} ({', '.join(names[:_NAMED])}{more})")
    if unknown:
        parts.append(other_kinds(unknown))
    return "; ".join(parts)


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
    """The corpus at a place, made or edited to contain exactly these files (by their sources)."""
    passages: dict[str, list[int]] = {}  # by source, of the cached corpus
    if place.exists():
        if not (place / MANIFEST).is_file():
            kept = f"{place}, where the cache keeps these documents"
            raise ArtefactDamaged(f"{kept}, has no {MANIFEST}; remove it to have it made again")
        corpus = Corpus.open(place)
        passages = _contained(corpus)
    gone = [source for source in passages if source not in files]
    settled = passages.keys() | seen.unreadable.keys() | seen.empty.keys()
    new = {source: file for source, file in files.items() if source not in settled}
    if passages and not gone and not new:
        return corpus
    left_out = _LeftOut(seen, say_new)
    if passages and corpus.edits < MOST_EDITS and len(gone) < len(passages):
        names = {file.name for file in new.values()}
        former = {source.rpartition(CONTENT_MARK)[0] for source in gone}
        counts = {"new": names - former, "changed": names & former, "removed": former - names}
        say("files: " + ", ".join(f"{len(some):,} {what}" for what, some in counts.items() if some))
        removed = [number for source in gone for number in passages[source]]
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
                no_text = BadInput("the documents contain no text; name others")
                raise left_out.errors[0] if left_out.errors else no_text
            tops = sorted({file.name.split("/")[0] for file in files.values()})
            draft.config |= {"sources": tops, "tokenizer": "of the model"}
            draft.counts["skipped"] = 0
        corpus = Corpus.open(place)
    contained = set(_contained(corpus))
    reasons = seen.in_part | left_out.first
    seen.in_part = {source: why for source, why in reasons.items() if source in contained}
    wordless = set(files) - contained
    seen.unreadable = {source: why for source, why in seen.unreadable.items() if source in wordless}
    no_words = "it contains no words"
    seen.empty = {source: seen.empty.get(source, no_words) for source in wordless - seen.unreadable.keys()}
    return corpus


def _put_aside(place: Path) -> None:
    """Rename a corpus that has an index, until the next one is put aside: vectors of passages that stay are
    taken from there. A corpus without an index is removed."""
    former = place.with_name(f"{place.name}-former")
    # an index that was never finished is hidden; then that of the corpus put aside before is still of use
    if not any((place / "index").glob("[!.]*")):
        discard(place)
        return
    if former.exists():
        discard(former)
    place.rename(former)


class _LeftOut:
    """Collects complaints about documents; the first few are shown."""

    def __init__(self, seen: _Seen, say_new: _SayNew) -> None:
        self._seen = seen
        self._say = say_new
        self.errors: list[RealmError] = []
        self.first: dict[str, str] = {}  # complaint about each source

    def __call__(self, source: str, error: RealmError) -> None:
        self.errors.append(error)
        if isinstance(error, NoText):  # nothing is lost, of a row neither
            self._seen.empty[source] = str(error)
            return
        self._seen.unreadable[source] = str(error)
        self.first.setdefault(source, str(error))
        if isinstance(error, MissingExtra):
            self._seen.waiting.add(source)
        if len(self.errors) <= _SHOWN:
            self._say(f"left out: {error}")

    def conclude(self) -> None:
        if len(self.errors) > _SHOWN:
            self._say(f"left out: {len(self.errors) - _SHOWN} more")


def _articles(files: Mapping[str, SourceFile], left_out: _LeftOut) -> Iterator[Article]:
    """The articles of files, each with the key of its file (name and checksum) as its source."""
    with progress("reading", len(files), unit="files") as bar:
        for source, file in files.items():
            for article in read_files([file], on_bad=partial(left_out, source)):
                yield replace(article, source=source)
            bar.advance()
    left_out.conclude()


def _contained(corpus: Corpus) -> dict[str, list[int]]:
    """The ids of the passages of each source. Passages may be many: those that no edit wrote are read from
    the corpus's arrays (docs/formats.md)."""
    names = ("articles", "sources", "source_offsets")
    articles_P, sources, offsets = (map_array(corpus.folder / f"{name}.safetensors") for name in names)
    data = sources.tobytes()
    passages = defaultdict[str, list[int]](list)
    ids = corpus.ids
    base = ids[ids < len(articles_P)]
    borders = np.searchsorted(articles_P[base], np.arange(len(offsets))).tolist()
    for (start, end), (first, past) in zip(pairwise(offsets.tolist()), pairwise(borders), strict=True):
        if past > first:
            passages[data[start:end].decode()] += base[first:past].tolist()
    for number in ids[len(base) :].tolist():
        passages[corpus.source(number)].append(number)
    return dict(passages)
