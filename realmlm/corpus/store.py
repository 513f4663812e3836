"""The corpus on disk: passages with their titles, wordpieces and sentence borders, memory-mapped; and its
edits.

A corpus is an artefact of flat arrays (docs/formats.md). Passage ids are the positions in it. Edits are small
numbered artefacts in `edits/`, each of the same form plus the ids it adds, replaces or removes; opening a
corpus lays them over the base in order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, BadInput, Mismatch
from realmlm.sources.article import Article
from realmlm.storage.arrays import ArrayWriter, map_array, map_arrays, save_arrays
from realmlm.storage.artefacts import Manifest, count_edits, edit_place, open_artefact, publish, read_manifest
from realmlm.storage.locks import locked

# P passages, A articles, T wordpieces

_EDIT = "edit.safetensors"
_SMALL = 2**20  # bytes
CONTENT_MARK = " #"  # in a source between the file's name and the checksum of what it contained
MAX_TITLE = 32  # wordpieces of a title that are kept
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
        """The file it comes from, without the checksum that a source may carry."""
        return re.sub(rf"{CONTENT_MARK}[0-9a-f]{{16}}\Z", "", self.source)


@dataclass(frozen=True)
class Block:
    """Some articles cut into passages, as flat arrays: what a worker hands back and a writer appends.

    Lengths, not offsets: blocks can be joined by appending. Titles and sources are per article, `articles`
    says which one a passage is of, counted from 0 within the block.
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
    # [T, 2] first and past-the-last character of a wordpiece, within its passage's text
    token_chars: np.ndarray
    sentence_starts: np.ndarray  # first wordpiece of each sentence, within its passage
    sentence_lengths: np.ndarray  # [P] how many sentences a passage has


_FLAT = ("texts", "titles", "sources", "title_tokens", "tokens", "token_chars", "sentence_starts")
_COUNTED = ("text", "title", "source", "title_token", "token", "sentence")


class SegmentWriter:
    """Appends blocks to the arrays of a corpus being written; memory stays at one block."""

    def __init__(self, folder: Path, *, token_dtype: type[np.unsignedinteger]) -> None:
        dtypes: dict[str, type] = dict.fromkeys(("texts", "titles", "sources"), np.uint8)
        dtypes |= {
            "title_tokens": token_dtype,
            "tokens": token_dtype,
            "token_chars": np.uint16,
            "sentence_starts": np.uint16,
        }
        self._flat = {
            name: ArrayWriter(
                folder / f"{name}.safetensors", dtypes[name], row=(2,) if name == "token_chars" else ()
            )
            for name in _FLAT
        }
        self._offsets = {
            name: ArrayWriter(folder / f"{name}_offsets.safetensors", np.int64) for name in _COUNTED
        }
        self._articles = ArrayWriter(folder / "articles.safetensors", np.int64)
        self._ends = dict.fromkeys(_COUNTED, 0)
        for writer in self._offsets.values():
            writer.append([0])

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


_FILES = (
    *_FLAT,
    *(f"{name}_offsets" for name in _COUNTED),
    "articles",
)  # of a corpus one each; of an edit they are in one file


def _edit_arrays(blocks: Sequence[Block]) -> dict[str, np.ndarray]:
    """What a SegmentWriter would write of these blocks."""
    arrays = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in _FLAT}
    for name in _COUNTED:
        arrays[f"{name}_offsets"] = np.cumsum(
            [0, *(length for block in blocks for length in getattr(block, f"{name}_lengths"))], dtype=np.int64
        )
    firsts = np.cumsum([0, *(len(block.title_lengths) for block in blocks)])
    arrays["articles"] = np.concatenate(
        [block.articles + first for block, first in zip(blocks, firsts[:-1], strict=True)]
    )
    return arrays


class Segment:
    """The arrays of a corpus, or of one edit of it; passages by row."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._flat = {name: arrays[name] for name in _FLAT}
        self._offsets = {name: arrays[f"{name}_offsets"] for name in _COUNTED}
        self.articles = arrays["articles"]

    @classmethod
    def of_corpus(cls, folder: Path) -> "Segment":
        return cls({name: map_array(folder / f"{name}.safetensors") for name in _FILES})

    @classmethod
    def of_edit(cls, folder: Path) -> "Segment":
        """Small arrays are read: a map holds a descriptor, and edits may be thousands."""
        older = not (folder / _EDIT).exists()  # has a file for each array, as a corpus does
        arrays = (
            {name: map_array(folder / f"{name}.safetensors") for name in _FILES}
            if older
            else map_arrays(folder / _EDIT)
        )
        return cls({name: array if array.nbytes > _SMALL else array.copy() for name, array in arrays.items()})

    def __len__(self) -> int:
        return len(self.articles)

    def _cut(self, flat: str, counted: str, row: int) -> np.ndarray:
        offsets = self._offsets[counted]
        return self._flat[flat][offsets[row] : offsets[row + 1]]

    def text(self, row: int) -> str:
        return bytes(self._cut("texts", "text", row)).decode("utf-8")

    def title(self, row: int) -> str:
        return bytes(self._cut("titles", "title", self.articles[row])).decode("utf-8")

    def titles(self) -> Iterator[str]:
        offsets = self._offsets["title"]
        data = self._flat["titles"].tobytes()
        return (data[start:end].decode("utf-8") for start, end in pairwise(offsets.tolist()))

    def source(self, row: int) -> str:
        return bytes(self._cut("sources", "source", self.articles[row])).decode("utf-8")

    def tokens(self, row: int) -> np.ndarray:
        return self._cut("tokens", "token", row)

    def token_chars(self, row: int) -> np.ndarray:
        return self._cut("token_chars", "token", row)

    def title_tokens(self, row: int) -> np.ndarray:
        return self._cut("title_tokens", "title_token", self.articles[row])

    def sentence_starts(self, row: int) -> np.ndarray:
        return self._cut("sentence_starts", "sentence", row)

    def sentence_counts(self) -> np.ndarray:
        return np.diff(self._offsets["sentence"])


class PassageTokens(NamedTuple):
    """Titles and bodies of some passages, in wordpieces."""

    titles: list[np.ndarray]
    bodies: list[np.ndarray]


class Corpus:
    """Passages by id. Open it with `Corpus.open(folder)`."""

    def __init__(
        self, folder: Path, manifest: Manifest, edits: int | None = None, *, before: "Corpus | None" = None
    ) -> None:
        """`before` is an earlier state of it that is open already: only the edits since are read."""
        self.folder = folder
        self.manifest = manifest
        self._base: Segment = before._base if before else Segment.of_corpus(folder)
        self._overlay: dict[
            int, tuple[Segment, int] | None
        ] = {}  # id -> where its newest text stands; None: removed
        self._changes: list[tuple[list[int], list[int]]] = []  # ids (written, removed) by each edit
        if before:
            self.wordpieces = before.wordpieces
            self._overlay = dict(before._overlay)
            self._changes = list(before._changes)
        there = count_edits(folder)
        self.edits = there if edits is None else edits
        if self.edits > there:
            raise ArtefactDamaged(
                f"{folder} had {self.edits} edits and now has {there}; restore {folder}/edits, or start again"
            )
        for number in range(len(self._changes), self.edits):
            self._lay_over(edit_place(folder, number + 1))

    @classmethod
    def open(cls, folder: str | Path, *, edits: int | None = None) -> "Corpus":
        """Open and check a corpus with its first `edits` edits (all of them if None)."""
        folder = Path(folder)
        return cls(
            folder,
            open_artefact(folder, kind="corpus", hint=f"make one: realmlm corpus notes/ --out {folder}"),
            edits,
        )

    def _lay_over(self, folder: Path) -> None:
        manifest = open_artefact(folder, kind="corpus-edit")
        if manifest.parents.get("corpus", self.fingerprint) != self.fingerprint:
            raise Mismatch(
                f"{folder} is an edit of another corpus, not of the one opened; open {self.folder} again"
            )
        segment = Segment.of_edit(folder)
        written = manifest.config["ids"]
        removed = manifest.config["removed"]
        self._overlay |= {number: (segment, row) for row, number in enumerate(written)} | dict.fromkeys(
            removed
        )
        self._changes.append((written, removed))

    @cached_property
    def wordpieces(self) -> Wordpieces:
        return Wordpieces.load(self.folder / "tokenizer.json")

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def is_current(self) -> bool:
        """Were all edits laid over that there are now? A resumed run reads the corpus as it was."""
        return self.edits == count_edits(self.folder)

    def newest(self) -> "Corpus":
        """It with the edits that were written since; itself if there are none, which costs one look whether
        the next is there."""
        return (
            Corpus(self.folder, self.manifest, before=self)
            if edit_place(self.folder, self.edits + 1).exists()
            else self
        )

    @property
    def max_wordpieces(self) -> int:
        return int(self.manifest.config["max_wordpieces"])

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of all passages there are now, ascending."""
        gone = [
            number for number, place in self._overlay.items() if place is None and number < len(self._base)
        ]
        added = sorted(
            number
            for number, place in self._overlay.items()
            if place is not None and number >= len(self._base)
        )
        return np.concatenate([np.delete(np.arange(len(self._base)), gone), np.array(added, dtype=np.int64)])

    def __len__(self) -> int:
        base = len(self._base)
        return base + sum((place is not None) - (number < base) for number, place in self._overlay.items())

    def _place(self, number: int) -> tuple[Segment, int]:
        number = int(number)
        place = self._overlay.get(number, (self._base, number) if 0 <= number < len(self._base) else None)
        if place is None:
            raise BadInput(
                f"no passage {number} in {self.folder}: ids start at 0, with gaps; show them: realmlm "
                f"passages {self.folder}"
            )
        return place

    def __contains__(self, number: int) -> bool:
        return self._overlay.get(int(number), 0 <= number < len(self._base) or None) is not None

    def __getitem__(self, number: int) -> Passage:
        segment, row = self._place(number)
        return Passage(
            id=int(number), title=segment.title(row), text=segment.text(row), source=segment.source(row)
        )

    def find(self, text: str, *, limit: int) -> list[Passage]:
        """The first `limit` passages with this in title, text or source, upper and lower case alike, in the
        order of their ids."""
        if limit < 1:
            raise BadInput(f"{limit} passages cannot be shown; choose a limit of 1 or more")
        wanted = text.casefold()
        passages = (self[number] for number in self.ids.tolist())
        return list(
            islice(
                (
                    p
                    for p in passages
                    if any(wanted in part.casefold() for part in (p.title, p.text, p.source))
                ),
                limit,
            )
        )

    def source(self, number: int) -> str:
        """Where the passage comes from."""
        segment, row = self._place(number)
        return segment.source(row)

    def titles(self) -> set[str]:
        """The titles of all articles, those of removed passages among them."""
        edits = {id(place[0]): place[0] for place in self._overlay.values() if place is not None}
        return {title for segment in (self._base, *edits.values()) for title in segment.titles()}

    def tokens(self, number: int) -> np.ndarray:
        """Wordpieces of the passage's body."""
        segment, row = self._place(number)
        return segment.tokens(row)

    def title_tokens(self, number: int) -> np.ndarray:
        segment, row = self._place(number)
        return segment.title_tokens(row)

    def tokens_of(self, ids: Iterable[int]) -> "PassageTokens":
        """Wordpieces of several passages, titles and bodies, in the order of the ids."""
        places = [self._place(number) for number in ids]
        titles = [segment.title_tokens(row) for segment, row in places]
        return PassageTokens(titles, [segment.tokens(row) for segment, row in places])

    def token_chars(self, number: int) -> np.ndarray:
        """First and past-the-last character of each wordpiece in the passage's text."""
        segment, row = self._place(number)
        return segment.token_chars(row)

    def sentences(self, number: int) -> np.ndarray:
        """Borders of the passage's sentences in wordpieces: sentence i is tokens[borders[i]:borders[i +
        1]]."""
        segment, row = self._place(number)
        return np.append(segment.sentence_starts(row).astype(np.int64), len(segment.tokens(row)))

    def siblings(self, number: int) -> np.ndarray:
        """Ids of the other passages of the same article; an edited passage is an article of its own."""
        segment, row = self._place(number)
        if segment is not self._base:
            return np.zeros(0, dtype=np.int64)
        first, last = np.searchsorted(segment.articles, [segment.articles[row], segment.articles[row] + 1])
        return np.array(
            [other for other in range(first, last) if other != row and other not in self._overlay],
            dtype=np.int64,
        )

    @cached_property
    def sentence_counts(self) -> np.ndarray:
        """Sentences of each passage, in the order of `ids`."""
        base = self._base.sentence_counts()
        ids = self.ids
        counts = base[np.minimum(ids, len(base) - 1)]
        for number, place in self._overlay.items():
            if place is not None:
                counts[np.searchsorted(ids, number)] = place[0].sentence_counts()[place[1]]
        return counts

    def changes_since(self, edits: int) -> tuple[list[int], list[int]]:
        """Ids (written, removed) by the edits after the first `edits`: what an index that contains only those
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
        """Write one edit and return the corpus as it is then, with the ids of the added passages. All of it
        happens, or nothing.

        What others edited since it was opened stays: this comes after it, and is refused if they changed a
        passage that it changes. An article longer than a passage cannot replace one: remove it and add the
        new text.
        """
        from realmlm.corpus.build import cut_articles  # the knife uses this module's records

        replace = dict(replace or {})
        gone = sorted({int(number) for number in remove})
        for number in (*replace, *gone):
            self._place(number)
        if both := sorted(set(replace) & set(gone)):
            raise BadInput(f"passage {both[0]} cannot be both replaced and removed")
        written = cut_articles(list(replace.values()), self.wordpieces, max_wordpieces=self.max_wordpieces)
        if not np.array_equal(written.articles, np.arange(len(replace))):
            raise BadInput(
                f"a replacement text must fit in one passage of {self.max_wordpieces} wordpieces; remove the "
                "old and add the new"
            )
        added = cut_articles(list(add), self.wordpieces, max_wordpieces=self.max_wordpieces)
        with locked(self.folder / ".edits.lock"):
            now = self._to_edit({*replace, *gone})
            first = int(max([len(now._base) - 1, *now._overlay])) + 1
            new = list(range(first, first + len(added.articles)))
            with publish(edit_place(self.folder, now.edits + 1), kind="corpus-edit") as draft:
                save_arrays(draft.path / _EDIT, _edit_arrays([written, added]))
                draft.config |= {"ids": [*replace, *new], "removed": gone}
                draft.parents["corpus"] = self.fingerprint
        return now.newest(), new

    def _to_edit(self, changing: set[int]) -> "Corpus":
        """The newest state, if these passages may be changed in it by someone who knows this state. The lock
        must be held."""
        if (
            read_manifest(self.folder, kind="corpus").fingerprint != self.fingerprint
            or count_edits(self.folder) < self.edits
        ):
            raise Mismatch(
                f"{self.folder} was rebuilt, or some of its edits removed, since it was opened here; open it "
                "again, then edit"
            )
        now = self.newest()
        if changed := sorted(changing & set().union(*now.changes_since(self.edits))):
            raise BadInput(
                f"passage {changed[0]} of {self.folder} was edited since it was opened here; open it again, "
                "then edit"
            )
        return now
