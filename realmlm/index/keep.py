"""Indexes on disk: found or made for a corpus and a document tower, and brought up to the corpus's edits.

Q queries, N passages, D vector size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactMissing, Mismatch, NotEnough, RealmError
from realmlm.index.build import Embedding, Encode, Known, build_index, embed_in_parts
from realmlm.index.duplicates import SameContent
from realmlm.index.exact import Index
from realmlm.index.store import (
    ShardedBuild,
    apply_edit,
    edits_contained,
    index_info,
    open_index,
    save_edit,
    state_contained,
)
from realmlm.log import say
from realmlm.storage.artefacts import Manifest, count_edits, read_manifest
from realmlm.storage.locks import lock_on
from realmlm.storage.mirrors import here
from realmlm.storage.remote import shown

EmbedQueries = Callable[[Sequence[np.ndarray]], Tensor]
"""Queries in wordpieces to vectors [Q, D]."""


class Kept(Protocol):
    """An open index and the state of the corpus that it holds."""

    @property
    def index(self) -> Index: ...

    corpus: Corpus

    @property
    def found(self) -> np.ndarray | None:
        """The passages that can be found; None: all."""

    def follow(self, corpus: Corpus) -> bool:
        """Hold this state of the corpus, or a later one. False: it has to be opened again."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is asked of an index. One that exists may be of any kind and dtype where none is named; a new one
    is then exact, in float16."""

    kind: str | None = None
    dtype: torch.dtype | None = None
    elsewhere: Callable[[str], Encode] | None = None
    """A new one is embedded on a Ray cluster, as `realmlm.index.build.Embedding` says."""


@dataclass
class KeptIndex:
    """An open index and its folder. `corpus` is the state of the corpus that the index holds."""

    index: Index
    path: Path
    corpus: Corpus
    _encode: Encode
    _base: Manifest
    _edits: int  # of the index, taken up so far

    @classmethod
    def open(cls, path: Path, corpus: Corpus, encode: Encode) -> "KeptIndex":
        """An index of this corpus as it is on disk, with fewer or more edits than the corpus may have here.
        Needs no lock: edits are only ever appended, each as a whole."""
        base = read_manifest(path, kind="index")
        edits = count_edits(path)
        contained = edits_contained(path, edits)
        if contained != corpus.edits:
            before = corpus if contained > corpus.edits else None
            corpus = Corpus(corpus.folder, corpus.manifest, contained, before=before)
        _check_state(path, edits, corpus)
        index = open_index(path, device=str(encode.device), edits=edits)
        return cls(index, path, corpus, encode, base, edits)

    @property
    def found(self) -> np.ndarray | None:
        return None

    def follow(self, corpus: Corpus) -> bool:
        """Hold this state of the corpus, or a later one that the index on disk holds already.

        What other processes embedded is read from there; the rest is embedded and appended, on disk and in
        memory. False: what is on disk is not what is open here; it has to be opened again.
        """
        if not self._read_on():
            return False
        if self.corpus.edits < corpus.edits:
            with _held(self.path, corpus):
                if not self._read_on():
                    return False
                self.take_up(corpus, quiet=True)
        return True

    def _read_on(self) -> bool:
        """Take up what others appended on disk."""
        if not self.path.exists() or read_manifest(self.path, kind="index") != self._base:
            return False
        there = count_edits(self.path)
        while self._edits < there:
            contained = edits_contained(self.path, self._edits + 1)
            later = Corpus(self.corpus.folder, self.corpus.manifest, contained, before=self.corpus)
            _check_state(self.path, self._edits + 1, later)
            apply_edit(self.path, self.index, self._edits + 1)
            self._edits += 1
            self.corpus = later
        return self._edits == there

    def take_up(self, corpus: Corpus, *, quiet: bool = False) -> None:
        """The same while the lock is held already. Cut off, it goes on where it was when called again."""
        if self.corpus.edits >= corpus.edits:
            return
        written, removed = corpus.changes_since(self.corpus.edits)
        if not quiet:
            say(f"{shown(self.path)}: taking up {len(written)} new and {len(removed)} removed passages")
        build = self._embedded(corpus, written, removed, quiet=quiet) if written else None
        save_edit(
            self.path,
            self.index,
            added_ids=torch.tensor(written),
            added_vectors=build.vectors() if build else torch.empty(0, self.index.dim),
            removed_ids=torch.tensor(removed),
            corpus_edits=corpus.edits,
            state=corpus.state,
        )
        self._edits += 1
        self.corpus = corpus
        if build:
            build.discard()

    def _embedded(
        self, corpus: Corpus, written: list[int], removed: list[int], *, quiet: bool
    ) -> ShardedBuild:
        ids = np.array(written, dtype=np.int64)
        same = None
        if removed:  # of a document that changed, or moved, most passages come back with new ids
            same = SameContent(corpus, ids, dim=self._encode.dim)
            same.look_in(self.corpus, np.array(removed, dtype=np.int64), self.index)
        plan = {"corpus_edits": corpus.edits, "kind": "exact", "step": 0}
        how = Embedding(dtype=self.index.dtype, quiet=quiet, known=same)
        return embed_in_parts(self.path, corpus, ids, self._encode, how, plan=plan)


def kept_index(
    corpus: Corpus,
    encode: Encode,
    *,
    embed_queries: EmbedQueries,
    path: Path | None = None,
    wanted: Wanted,
    others: Path | None = None,
    follow: bool = False,
) -> KeptIndex:
    """The index of a corpus by a document tower: opened, built if there is none, brought up to the edits.
    One that lacks nothing is opened without writing anything.

    Without a path it stands beside the corpus, named by the tower's fingerprint: models that differ only in
    query tower or reader share it. At a `path` a new one is made only if its kind is asked for. Passages that
    stand word for word in corpora of the folder `others` get their vectors from the indexes beside those. An
    approximate index is measured with queries, which `embed_queries` embeds. With `follow` the corpus is held
    as it is now, with edits that others made since it was opened.
    """
    kind = wanted.kind or "exact"
    path = None if path is None else here(path)
    if path is not None and wanted.kind is None and not path.exists():
        make = f"realmlm index --model MODEL --corpus {shown(corpus.folder)} --out {shown(path)}"
        raise ArtefactMissing(f"no index in {shown(path)}; make one: {make}")
    if follow:
        corpus = corpus.newest()
        path = path or here(_place(corpus, encode.fingerprint, kind))
    path = path or here(index_place(corpus, encode.fingerprint, kind))
    if path.exists() and edits_contained(path) >= corpus.edits:
        _check(path, corpus, encode, wanted, follow=follow)
        kept = KeptIndex.open(path, corpus, encode)
        if kept.corpus.edits > corpus.edits:  # an edit came in between
            _check(path, corpus, encode, wanted, follow=follow)
        return kept
    with _held(path, corpus):  # others may want the same index at this moment
        if not path.exists():
            dtype = wanted.dtype or torch.float16
            begun = _begun(path, corpus)
            same = _same_vectors(path, begun, encode, dtype, others)
            queries_QD = embed_queries(sample_queries(begun)).cpu() if kind == "ivf" else None
            how = Embedding(dtype=dtype, known=same, elsewhere=wanted.elsewhere)
            build_index(path, begun, encode, how, kind=kind, queries_QD=queries_QD)
        _check(path, corpus, encode, wanted, follow=follow)
        kept = KeptIndex.open(path, corpus, encode)
        kept.take_up(corpus)
        return kept


def _begun(path: Path, corpus: Corpus) -> Corpus:
    """The earlier state of the corpus that a build at `path` was cut off at, or else the corpus: where that
    state is built first, what was embedded then is used, however the corpus has changed since."""
    try:
        plan = ShardedBuild.begun(path.parent / f".{path.name}.partial").plan
        edits = int(plan["corpus_edits"])
        state = plan["state"]
    except (ArtefactMissing, KeyError, TypeError, ValueError):
        return corpus
    if not 0 <= edits < corpus.edits:
        return corpus
    former = Corpus(corpus.folder, corpus.manifest, edits)
    return former if former.state == state else corpus


def _same_vectors(
    path: Path, corpus: Corpus, encode: Encode, dtype: torch.dtype, others: Path | None
) -> Known | None:
    """Vectors that a new index need not embed: those beside the corpus, else what `others` have of its
    content."""
    beside = here(index_place(corpus, encode.fingerprint, "exact"))
    if beside != path and _serves(beside, corpus, dtype):
        index = open_index(beside)
        return lambda ids_N: (np.ones(len(ids_N), dtype=bool), index.vectors(torch.from_numpy(ids_N)))
    # vectors that a corpus was imported with are not made by embedding its passages
    if corpus.manifest.config.get("vectors") == encode.fingerprint:
        less = f"is less precise than {_name(dtype)} or lacks edits" if beside.exists() else "is gone"
        imported = f"{shown(beside)}, the vectors that {shown(corpus.folder)} was imported with"
        raise Mismatch(f"{imported}, {less}, and cannot be made again; import it again")
    same = _same_content(corpus, encode, dtype, others) if others else None
    lacking = len(corpus) if same is None else same.lacking
    taken = f", {len(corpus) - lacking:,} are known" if lacking < len(corpus) else ""
    what = f"no index of {shown(corpus.folder)} by this model yet"
    say(f"{what}: embedding {lacking:,} passages into {shown(path)}{taken}")
    return same


def count_lacking(corpus: Corpus, encode: Encode, *, others: Path | None = None) -> int:
    """How many passages `kept_index` would embed for an exact index beside the corpus."""
    path = index_place(corpus, encode.fingerprint, "exact")
    if path.exists():
        return len(corpus.changes_since(edits_contained(path))[0])
    return _same_content(corpus, encode, torch.float16, others).lacking if others else len(corpus)


def _check(path: Path, corpus: Corpus, encode: Encode, wanted: Wanted, *, follow: bool) -> None:
    """Is the index at `path` of this corpus, this tower, and the kind and dtype asked for?"""
    info = index_info(path, expect_weights=encode.fingerprint, expect_corpus=corpus.fingerprint)
    made = "exact" if info.recall is None else "ivf"
    if wanted.kind is not None and made != wanted.kind:
        held = f"{shown(path)} holds an index of the kind {made}, not {wanted.kind}"
        raise Mismatch(f"{held}; choose another --out, or remove it first")
    if wanted.dtype is not None and info.dtype != _name(wanted.dtype):
        held = f"{shown(path)} holds vectors in {info.dtype}, not {_name(wanted.dtype)}"
        raise Mismatch(f"{held}; remove it to have it made anew, or go on with {info.dtype}")
    if info.corpus_edits > (count_edits(corpus.folder) if follow else corpus.edits):
        edits = f"{info.corpus_edits} edits of {shown(corpus.folder)}, which has {corpus.edits} now"
        held = f"{shown(path)} contains {edits}"
        raise Mismatch(f"{held}; remove the index first")


def _check_state(path: Path, edits: int, corpus: Corpus) -> None:
    """Are the edits that an index with its first `edits` edits includes those of this corpus? Someone may
    have removed some of the corpus's edits and made as many others."""
    if state_contained(path, edits) not in (None, corpus.state):
        gone = f"{shown(path)} includes edits that {shown(corpus.folder)} no longer has"
        raise Mismatch(f"{gone}; remove it, and it is made again")


def _same_content(corpus: Corpus, encode: Encode, dtype: torch.dtype, others: Path) -> SameContent:
    """The vectors of the same content in indexes beside corpora of this folder, this corpus's former state
    first."""
    same = SameContent(corpus, corpus.ids, dim=encode.dim)
    tokenizer = corpus.manifest.parents.get("tokenizer")
    places = others.glob(f"[!.]*/index/{encode.fingerprint[:16]}-exact")
    for path in sorted(places, key=lambda path: (not path.parts[-3].startswith(corpus.folder.name), path)):
        if not same.lacking:
            break
        try:
            info = index_info(path, expect_weights=encode.fingerprint)
            other = Corpus.open(path.parents[1], edits=info.corpus_edits)
            index = open_index(path)
            unchanged = index_info(path) == info  # no other process edited it meanwhile
        except (RealmError, OSError):  # or it removes it at this moment
            continue
        fits = unchanged and other.fingerprint == info.corpus and index.dtype == dtype
        if fits and other.manifest.parents.get("tokenizer") == tokenizer:
            same.look_in(other, other.ids, index)
    return same


@contextmanager
def _held(path: Path, corpus: Corpus) -> Iterator[None]:
    """The lock of an index that is to be written."""
    try:
        lock = lock_on(path.parent / f".{path.name}.lock")
        lock.acquire()
    except OSError as error:
        lacks = f"lacks edits of {shown(corpus.folder)}" if path.exists() else "does not exist yet"
        why = f"the index {shown(path)} {lacks} and cannot be written ({error.strerror})"
        cure = f"run `realmlm index --corpus {shown(corpus.folder)}` with the same --model where it can be"
        raise NotEnough(f"{why}; {cure}") from error
    try:
        yield
    finally:
        lock.release()


def _serves(path: Path, corpus: Corpus, dtype: torch.dtype) -> bool:
    """Has an index of this corpus as it is now all vectors, none less precise than asked for?"""
    if not path.exists():
        return False
    info = index_info(path)
    current = info.corpus == corpus.fingerprint and info.corpus_edits == corpus.edits
    return current and info.dtype in ("float32", _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def index_place(corpus: Corpus, weights: str, kind: str) -> Path:
    """The usual place of a corpus's index by the document tower of this fingerprint."""
    place = _place(corpus, weights, kind)
    return place if corpus.is_current else place.with_name(f"{place.name}-after-{corpus.edits}-edits")


def _place(corpus: Corpus, weights: str, kind: str) -> Path:
    return corpus.folder / "index" / f"{weights[:16]}-{kind}"


def sample_queries(corpus: Corpus, *, count: int = 256) -> list[np.ndarray]:
    """First sentences of some passages, of which a random quarter of the words is left, to measure an
    approximate index with: about as far from their passages as questions are, whole sentences lie nearer
    (docs/log.md)."""
    ids = corpus.ids[np.linspace(0, len(corpus) - 1, min(count, len(corpus))).astype(np.int64)]
    generator = np.random.default_rng(0)
    sentences = [corpus.tokens(number)[: corpus.sentences(number)[1]] for number in ids]
    return [_some_words(tokens, corpus.wordpieces, share=0.25, generator=generator) for tokens in sentences]


def _some_words(
    tokens: np.ndarray, wordpieces: Wordpieces, *, share: float, generator: np.random.Generator
) -> np.ndarray:
    """This share of the words, rounded up, in their order."""
    first = ~wordpieces.continues[tokens]
    first[0] = True
    words = int(first.sum())
    chosen = generator.permutation(words) < share * words
    return tokens[chosen[first.cumsum() - 1]]
