"""The corpus on disk: passages with their titles, wordpieces and sentence borders, memory-mapped.

A corpus is an artefact of flat arrays (docs/formats.md), and the id of a passage is its position in them. An
edit is a small numbered artefact in `edits/`: the same arrays for the passages that it adds or replaces, with
their ids, and the ids of those that it removes. Opening a corpus applies the edits in order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, BadInput, ChangedMeanwhile, Mismatch
from realmlm.sources.article import Article
from realmlm.storage.arrays import ArrayWriter, map_array, map_arrays, save_arrays
from realmlm.storage.artefacts import Manifest, count_edits, edit_place, open_artefact, publish, read_manifest
from realmlm.storage.fields import wrong_ids
from realmlm.storage.locks import locked
from realmlm.storage.mirrors import here, same_here
from realmlm.storage.remote import shown, url_of

# P passages, A articles, T wordpieces

_EDIT = "edit.safetensors"
_SMALL = 2**20  # bytes
CONTENT_MARK = " #"  # stands in a source between the file's name and the checksum of what it contained
MAX_TITLE = 32  # wordpieces of a title that are stored
MAX_CHARACTERS = 2**16 - 1  # of a passage: character offsets of wordpieces are stored in 16 bits


@dataclass(frozen=True)
class Passage:
    """A piece of an article: what is retrieved and read."""

    id: int
    title: str
    text: str
    source: str = ""

    @property
    def file(self) -> str:
        """The file it comes from: the source without a checksum that may follow the name."""
        return _file(self.source)


@lru_cache(maxsize=1024)
def _file(source: str) -> str:
    return re.sub(rf"{CONTENT_MARK}[0-9a-f]{{16}}\Z", "", source)


@dataclass(frozen=True)
class Block:
    """Some articles cut into passages, as flat arrays: what a worker returns and a writer appends.

    It has lengths, not offsets, so that blocks can be joined by appending. There is a title and a source for
    each article; `articles` says which article a passage belongs to, counted from 0 within the block.
    """

    texts: np.ndarray  # uint8, UTF-8 of all passages
    text_lengths: np.ndarray  # [P] bytes
    titles: np.ndarray  # uint8
    title_lengths: np.ndarray  # [A] bytes
    sources: np.ndarray  # uint8
    source_lengths: np.ndarray  # [A] bytes
    title_tokens: np.ndarray
    title_token_lengths: np.ndarray  # [A]
    articles: np.ndarray  # [P]
    tokens: np.ndarray  # [T]
    token_lengths: np.ndarray  # [P]
    token_chars: np.ndarray  # [T, 2] first and past-the-last character, within the passage's text
    sentence_starts: np.ndarray  # first wordpiece of each sentence, within its passage
    sentence_lengths: np.ndarray  # [P] how many sentences a passage has


_FLAT = {  # the arrays, each with the name of the offsets that say which part of it belongs to what
    "texts": "text",
    "titles": "title",
    "sources": "source",
    "title_tokens": "title_token",
    "tokens": "token",
    "token_chars": "token",
    "sentence_starts": "sentence",
}
_COUNTED = tuple(dict.fromkeys(_FLAT.values()))
_OF_ARTICLES = ("titles", "sources", "title_tokens")
_FILES = (*_FLAT, *(f"{name}_offsets" for name in _COUNTED), "articles")  # an edit has them in one file


class SegmentWriter:
    """Appends blocks to the arrays of a corpus being written, with one block in memory at a time."""

    def __init__(self, folder: Path, *, token_dtype: type[np.unsignedinteger]) -> None:
        def writer(name: str, dtype: type, row: tuple[int, ...] = ()) -> ArrayWriter:
            return ArrayWriter(folder / f"{name}.safetensors", dtype, row=row)

        self._flat = {name: writer(name, np.uint8) for name in ("texts", "titles", "sources")}
        self._flat |= {name: writer(name, token_dtype) for name in ("title_tokens", "tokens")}
        self._flat["token_chars"] = writer("token_chars", np.uint16, (2,))
        self._flat["sentence_starts"] = writer("sentence_starts", np.uint16)
        self._offsets = {name: writer(f"{name}_offsets", np.int64) for name in _COUNTED}
        self._articles = writer("articles", np.int64)
        self._ends = dict.fromkeys(_COUNTED, 0)
        for offsets in self._offsets.values():
            offsets.append([0])

    @property
    def passages(self) -> int:
        return self._articles.rows

    @property
    def articles(self) -> int:
        return self._offsets["title"].rows - 1

    @property
    def wordpieces(self) -> int:
        return self._flat["tokens"].rows

    def append(self, block: Block) -> None:
        """Write the passages of a block after those written before."""
        self._articles.append(block.articles.astype(np.int64) + self.articles)
        for name, writer in self._flat.items():
            writer.append(getattr(block, name))
        for name, writer in self._offsets.items():
            offsets = self._ends[name] + np.cumsum(getattr(block, f"{name}_lengths"), dtype=np.int64)
            writer.append(offsets)
            self._ends[name] = int(offsets[-1]) if len(offsets) else self._ends[name]

    def close(self) -> None:
        for writer in (*self._flat.values(), *self._offsets.values(), self._articles):
            writer.close()


def _edit_arrays(blocks: Sequence[Block]) -> dict[str, np.ndarray]:
    """The arrays that a SegmentWriter would write for these blocks."""
    arrays = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in _FLAT}
    for name in _COUNTED:
        lengths = [length for block in blocks for length in getattr(block, f"{name}_lengths")]
        arrays[f"{name}_offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
    firsts = np.cumsum([0, *(len(block.title_lengths) for block in blocks)])[:-1]
    articles = [block.articles + first for block, first in zip(blocks, firsts, strict=True)]
    return arrays | {"articles": np.concatenate(articles)}


def _map_files(folder: Path) -> dict[str, np.ndarray]:
    return {name: map_array(folder / f"{name}.safetensors") for name in _FILES}


class Segment:
    """The arrays of a corpus without its edits, or those of one edit; passages are rows of it."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._flat = {name: arrays[name] for name in _FLAT}
        self._offsets = {name: arrays[f"{name}_offsets"] for name in _COUNTED}
        self.articles = arrays["articles"]

    @classmethod
    def of_corpus(cls, folder: Path) -> "Segment":
        return cls(_map_files(folder))

    @classmethod
    def of_edit(cls, folder: Path) -> "Segment":
        """Small arrays are read, not mapped: a map takes a file descriptor, and edits may be thousands."""
        one_file = (folder / _EDIT).exists()  # edits of older releases have a file for each array
        arrays = map_arrays(folder / _EDIT) if one_file else _map_files(folder)
        return cls({name: array if array.nbytes > _SMALL else array.copy() for name, array in arrays.items()})

    def __len__(self) -> int:
        return len(self.articles)

    def part(self, flat: str, row: int) -> np.ndarray:
        """What belongs to a passage, or to its article, of one of the arrays of `_FLAT`."""
        place = self.articles[row] if flat in _OF_ARTICLES else row
        offsets = self._offsets[_FLAT[flat]]
        return self._flat[flat][offsets[place] : offsets[place + 1]]

    def string(self, flat: str, row: int) -> str:
        return bytes(self.part(flat, row)).decode("utf-8")

    def flat(self, name: str) -> np.ndarray:
        """One of the arrays of `_FLAT`, whole."""
        return self._flat[name]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Wordpieces of title and body of each of these passages."""
        counts = np.zeros(len(rows), dtype=np.int64)
        for name, places in (("token", rows), ("title_token", self.articles[rows])):
            counts += self._offsets[name][places + 1] - self._offsets[name][places]
        return counts

    def token_places(self, bodies: int, titles: int) -> np.ndarray:
        """Where the wordpieces of each body begin and how many they are, and of its title [P, 4], if the two
        arrays begin at these places."""
        body_offsets = self._offsets["token"]
        title_offsets = self._offsets["title_token"]
        of_body = (bodies + body_offsets[:-1], np.diff(body_offsets))
        of_title = ((titles + title_offsets[:-1])[self.articles], np.diff(title_offsets)[self.articles])
        return np.stack([*of_body, *of_title], axis=1)

    def strings(self, flat: str, rows: np.ndarray) -> list[str]:
        """`string` of several passages."""
        places = self.articles[rows] if flat in _OF_ARTICLES else rows
        offsets = self._offsets[_FLAT[flat]]
        data = self._flat[flat].data
        borders = zip(offsets[places].tolist(), offsets[places + 1].tolist(), strict=True)
        return [str(data[start:end], "utf-8") for start, end in borders]

    def document(self, row: int) -> tuple[int, int]:
        """The first passage of the same document and the one past its last: those of its article, and of the
        articles beside it that come from the same place, the sections of a document."""
        offsets = self._offsets["source"]

        def source(article: int) -> bytes:
            return bytes(self._flat["sources"][offsets[article] : offsets[article + 1]])

        first = int(self.articles[row])
        past = first + 1
        if own := source(first):
            while first and source(first - 1) == own:
                first -= 1
            while past < len(offsets) - 1 and source(past) == own:
                past += 1
        begin, end = np.searchsorted(self.articles, [first, past]).tolist()
        return begin, end

    def titles(self) -> Iterator[str]:
        offsets = self._offsets["title"]
        data = self._flat["titles"].tobytes()
        return (data[start:end].decode("utf-8") for start, end in pairwise(offsets.tolist()))

    def sentence_counts(self) -> np.ndarray:
        return np.diff(self._offsets["sentence"])


class PassageTokens(NamedTuple):
    """Titles and bodies of some passages, in wordpieces."""

    titles: list[np.ndarray]
    bodies: list[np.ndarray]


@dataclass(frozen=True)
class FlatTokens:
    """Wordpieces of all passages in a few flat arrays, to be laid on a device.

    By id, where a passage's begin in the arrays end to end, and how many they are; 0 for ids that are gone.
    """

    arrays: list[np.ndarray]
    body_at_P: np.ndarray
    body_lengths_P: np.ndarray
    title_at_P: np.ndarray
    title_lengths_P: np.ndarray


class Corpus:
    """The passages that are retrieved and read, by id: the paper's Z. Open it with `Corpus.open(folder)`."""

    def __init__(
        self, folder: Path, manifest: Manifest, edits: int | None = None, *, before: "Corpus | None" = None
    ) -> None:
        """`before` is an earlier state of the corpus that is already open: only the edits since are read."""
        self.folder: Path = before.folder if before else same_here(folder, manifest, edits or 0)
        self.manifest = manifest
        self._base: Segment = before._base if before else Segment.of_corpus(self.folder)
        # by id, where the text of an edited passage stands, or None; the ids that each edit (wrote, removed)
        self._overlay: dict[int, tuple[Segment, int] | None] = dict(before._overlay) if before else {}
        self._changes: list[tuple[list[int], list[int]]] = list(before._changes) if before else []
        self._past: int = before._past if before else len(self._base)  # the id of the next passage
        self.state: str = before.state if before else manifest.fingerprint  # of the content with its edits
        if before:
            self.wordpieces = before.wordpieces
        there = count_edits(self.folder)
        self.edits = there if edits is None else edits
        if self.edits > there:
            lost = f"{shown(folder)} had {self.edits} edits and now has {there}"
            raise ArtefactDamaged(f"{lost}; restore {shown(folder)}/edits, or start again")
        for number in range(len(self._changes), self.edits):
            self._apply(edit_place(self.folder, number + 1))

    @classmethod
    def open(cls, folder: str | Path, *, edits: int | None = None) -> "Corpus":
        """Open and check a corpus, a folder or a URL, with its first `edits` edits (all of them if None)."""
        folder = here(folder)
        return cls(folder, open_artefact(folder, kind="corpus"), edits)

    def _apply(self, edit: Path) -> None:
        manifest = open_artefact(edit, kind="corpus-edit")
        if manifest.parents.get("corpus", self.fingerprint) != self.fingerprint:
            other = f"{shown(edit)} is an edit of another corpus, not of the one opened"
            raise Mismatch(f"{other}; open {shown(self.folder)} again")
        segment = Segment.of_edit(edit)
        written = manifest.config["ids"]
        removed = manifest.config["removed"]
        if wrong := wrong_ids(written, removed, passages=len(segment), past=self._past):
            raise ArtefactDamaged(f"{shown(edit)} {wrong}: do not trust {shown(self.folder)}")
        self._past = max([self._past, *(number + 1 for number in written)])
        self._overlay |= {number: (segment, row) for row, number in enumerate(written)}
        self._overlay |= dict.fromkeys(removed)
        self._changes.append((written, removed))
        self.state = manifest.after(self.state)

    def __repr__(self) -> str:
        return f"Corpus('{shown(self.folder)}', {len(self):,} passages)"

    @cached_property
    def wordpieces(self) -> Wordpieces:
        """The tokenizer that its passages were cut with."""
        return Wordpieces.load(self.folder / "tokenizer.json")

    @property
    def fingerprint(self) -> str:
        """Identifies the content without its edits."""
        return self.manifest.fingerprint

    @property
    def is_current(self) -> bool:
        """Does it have all edits that there are now? A resumed run reads the corpus as it was."""
        return self.edits == count_edits(self.folder)

    def newest(self) -> "Corpus":
        """The corpus with the edits written since it was opened; itself if there are none, which is cheap."""
        if edit_place(self.folder, self.edits + 1).exists():
            return Corpus(self.folder, self.manifest, before=self)
        return self

    @property
    def max_wordpieces(self) -> int:
        """The most wordpieces of a passage's body."""
        return int(self.manifest.config["max_wordpieces"])

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of all passages there are now, ascending."""
        base = len(self._base)
        gone = [number for number, place in self._overlay.items() if place is None and number < base]
        added = [number for number, place in self._overlay.items() if place is not None and number >= base]
        return np.concatenate([np.delete(np.arange(base), gone), np.array(sorted(added), dtype=np.int64)])

    def __len__(self) -> int:
        base = len(self._base)
        return base + sum((place is not None) - (number < base) for number, place in self._overlay.items())

    def _place(self, number: int) -> tuple[Segment, int]:
        number = int(number)
        place = self._overlay.get(number, (self._base, number) if 0 <= number < len(self._base) else None)
        if place is None:
            show = f"ids start at 0, with gaps; show them: realmlm passages {shown(self.folder)}"
            raise BadInput(f"no passage {number} in {shown(self.folder)}: {show}")
        return place

    def _part(self, flat: str, number: int) -> np.ndarray:
        segment, row = self._place(number)
        return segment.part(flat, row)

    def __contains__(self, number: int) -> bool:
        return self._overlay.get(int(number), 0 <= number < len(self._base) or None) is not None

    def __getitem__(self, number: int) -> Passage:
        segment, row = self._place(number)
        title, text, source = (segment.string(flat, row) for flat in ("titles", "texts", "sources"))
        return Passage(int(number), title, text, source)

    def passages(self, ids: Sequence[int]) -> list[Passage]:
        """Several passages, in the order of the ids."""
        columns = (self._strings(flat, ids) for flat in ("titles", "texts", "sources"))
        return [Passage(*row) for row in zip(ids, *columns, strict=True)]

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The texts of several passages alone."""
        return self._strings("texts", ids)

    def _strings(self, flat: str, ids: Sequence[int]) -> list[str]:
        places = [self._place(number) for number in ids] if self._overlay else []
        if places or not ids:
            return [segment.string(flat, row) for segment, row in places]
        self._place(min(ids))
        self._place(max(ids))
        return self._base.strings(flat, np.array(ids))

    def text(self, number: int) -> str:
        """The text of a passage alone."""
        segment, row = self._place(number)
        return segment.string("texts", row)

    def find(self, text: str, *, limit: int, stop: Callable[[], bool] = lambda: False) -> list[Passage]:
        """The first `limit` passages, by id, with this text in title, body or source; may `stop` before."""
        if limit < 1:
            raise BadInput(f"{limit} passages cannot be shown; choose a limit of 1 or more")
        wanted = text.casefold()  # case is ignored

        def matches(passage: Passage) -> bool:
            return any(wanted in part.casefold() for part in (passage.title, passage.text, passage.source))

        ids = takewhile(lambda number: not stop(), self.ids.tolist())
        return list(islice(filter(matches, map(self.__getitem__, ids)), limit))

    def source(self, number: int) -> str:
        """Where the passage comes from: its file, and which part of it."""
        segment, row = self._place(number)
        return segment.string("sources", row)

    def titles(self) -> set[str]:
        """The titles of all articles, including those whose passages were removed."""
        edits = {id(place[0]): place[0] for place in self._overlay.values() if place is not None}
        return {title for segment in (self._base, *edits.values()) for title in segment.titles()}

    def tokens(self, number: int) -> np.ndarray:
        """Wordpieces of the passage's body."""
        return self._part("tokens", number)

    def title_tokens(self, number: int) -> np.ndarray:
        """Wordpieces of its title, the first 32 at most."""
        return self._part("title_tokens", number)

    def tokens_of(self, ids: Iterable[int]) -> "PassageTokens":
        """Wordpieces of several passages, titles and bodies, in the order of the ids."""
        places = [self._place(number) for number in ids]
        titles = [segment.part("title_tokens", row) for segment, row in places]
        return PassageTokens(titles, [segment.part("tokens", row) for segment, row in places])

    def lengths_of(self, ids_N: np.ndarray) -> np.ndarray:
        """Wordpieces of title and body of each of these passages."""
        counts_N = self._base.lengths(np.minimum(ids_N, len(self._base) - 1))
        for row in np.flatnonzero(np.isin(ids_N, list(self._overlay))) if self._overlay else ():
            segment, place = self._place(ids_N[row])
            counts_N[row] = segment.lengths(np.array([place]))[0]
        return counts_N

    def flat_tokens(self) -> FlatTokens:
        """Wordpieces of all passages, titles and bodies."""
        edits = {id(place[0]): place[0] for place in self._overlay.values() if place is not None}
        segments = [self._base, *edits.values()]
        arrays = [segment.flat(name) for segment in segments for name in ("tokens", "title_tokens")]
        firsts = np.cumsum([0, *map(len, arrays)])
        places_P4 = np.zeros((self._past, 4), dtype=np.int64)
        places_P4[: len(self._base)] = self._base.token_places(firsts[0], firsts[1])
        if self._overlay:
            places = [segment.token_places(*firsts[2 * n : 2 * n + 2]) for n, segment in enumerate(segments)]
            numbered = {id(segment): number for number, segment in enumerate(segments)}
            for number, place in self._overlay.items():
                there = None if place is None else places[numbered[id(place[0])]][place[1]]
                places_P4[number] = 0 if there is None else there
        return FlatTokens(arrays, *places_P4.T)

    def token_chars(self, number: int) -> np.ndarray:
        """First and past-the-last character of each wordpiece in the passage's text."""
        return self._part("token_chars", number)

    def title_chars(self, number: int) -> np.ndarray:
        """The same of its title, the first 32 at most."""
        segment, row = self._place(number)
        (encoding,) = self.wordpieces.encode_batch([segment.string("titles", row)])
        return np.array(encoding.offsets[:MAX_TITLE], dtype=np.int64).reshape(-1, 2)

    def sentences(self, number: int) -> np.ndarray:
        """Borders of its sentences in wordpieces: sentence i is tokens[borders[i] : borders[i + 1]]."""
        segment, row = self._place(number)
        starts = segment.part("sentence_starts", row).astype(np.int64)
        return np.append(starts, len(segment.part("tokens", row)))

    def siblings(self, number: int) -> np.ndarray:
        """Ids of the other passages of the same document, whose articles are its sections; an edited passage
        is a document of its own."""
        segment, row = self._place(number)
        if segment is not self._base:
            return np.zeros(0, dtype=np.int64)
        first, last = segment.document(row)
        others = [other for other in range(first, last) if other != row and other not in self._overlay]
        return np.array(others, dtype=np.int64)

    @cached_property
    def sentence_counts(self) -> np.ndarray:
        """How many sentences each passage has, in the order of `ids`."""
        base = self._base.sentence_counts()
        ids = self.ids
        counts = base[np.minimum(ids, len(base) - 1)]
        for number, place in self._overlay.items():
            if place is not None:
                counts[np.searchsorted(ids, number)] = place[0].sentence_counts()[place[1]]
        return counts

    def changes_since(self, edits: int) -> tuple[list[int], list[int]]:
        """The ids that the edits after the first `edits` (wrote, removed): what an index of an earlier state
        lacks."""
        written: set[int] = set()
        removed: set[int] = set()
        for new, gone in self._changes[edits:]:
            written = (written | set(new)) - set(gone)
            removed = (removed | set(gone)) - set(new)
        return sorted(written), sorted(removed)

    def edit(
        self,
        *,
        add: Iterable[Article] = (),
        replace: Mapping[int, Article] | None = None,
        remove: Iterable[int] = (),
    ) -> tuple["Corpus", list[int]]:
        """Write one edit, all of it or nothing. Gives the corpus after it and the ids of the added passages.

        Edits that others made since this corpus was opened stay: this one comes after them, and is refused if
        both change the same passage. An article longer than a passage cannot replace one: remove the passage
        and add the article.
        """
        from realmlm.corpus.build import cut_articles  # build itself imports this module

        if url := url_of(self.folder):
            raise BadInput(f"{url} cannot be edited where it is; copy it to a disk, edit it, copy it back")
        replace = dict(replace or {})
        gone = sorted({int(number) for number in remove})
        for number in (*replace, *gone):
            self._place(number)
        if both := sorted(set(replace) & set(gone)):
            raise BadInput(f"passage {both[0]} cannot be both replaced and removed")
        written = cut_articles(list(replace.values()), self.wordpieces, max_wordpieces=self.max_wordpieces)
        if not np.array_equal(written.articles, np.arange(len(replace))):
            limit = f"one passage of {self.max_wordpieces} wordpieces"
            raise BadInput(f"a replacement text must fit in {limit}; remove the old and add the new")
        added = cut_articles(list(add), self.wordpieces, max_wordpieces=self.max_wordpieces)
        with locked(self.folder / ".edits.lock"):
            now = self._editable({*replace, *gone})
            new = list(range(now._past, now._past + len(added.articles)))
            with publish(edit_place(self.folder, now.edits + 1), kind="corpus-edit") as draft:
                save_arrays(draft.path / _EDIT, _edit_arrays([written, added]))
                draft.config |= {"ids": [*replace, *new], "removed": gone}
                draft.parents["corpus"] = self.fingerprint
        return now.newest(), new

    def with_passages(self, articles: Sequence[Article]) -> tuple["Corpus", list[list[int]]]:
        """The corpus and beside it, in memory alone, the passages of these articles; gives their ids too.
        They are read like any other, but no index has them."""
        from realmlm.corpus.build import cut_articles  # build itself imports this module

        block = cut_articles(list(articles), self.wordpieces, max_wordpieces=self.max_wordpieces)
        more = Corpus(self.folder, self.manifest, self.edits, before=self)
        segment = Segment(_edit_arrays([block]))
        more._past += len(segment)
        more._overlay |= {self._past + row: (segment, row) for row in range(len(segment))}
        ids: list[list[int]] = [[] for _ in articles]
        for row, article in enumerate(block.articles.tolist()):
            ids[article].append(self._past + row)
        return more, ids

    def _editable(self, changing: set[int]) -> "Corpus":
        """The newest state of the corpus, unless one of these passages was changed since. Needs the lock."""
        again = "since it was opened here; open it again, then edit"
        rebuilt = read_manifest(self.folder, kind="corpus").fingerprint != self.fingerprint
        if rebuilt or count_edits(self.folder) < self.edits:
            raise Mismatch(f"{self.folder} was rebuilt, or some of its edits removed, {again}")
        now = self.newest()
        if changed := sorted(changing & set().union(*now.changes_since(self.edits))):
            raise ChangedMeanwhile(f"passage {changed[0]} of {self.folder} was edited {again}")
        return now
