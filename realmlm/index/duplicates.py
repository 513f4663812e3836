"""Finds passages that have the same words: to copy a vector instead of computing it again, and to keep a
sentence from retrieving the passage it was taken from."""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import NotEnough
from realmlm.index.exact import Index


class SameContent:
    """Finds, for passages of a corpus, vectors of the same title and body in other indexes. It is a `Known`:
    `embed_passages` copies what it gives instead of computing it."""

    def __init__(self, corpus: Corpus, ids_N: np.ndarray, *, dim: int) -> None:
        """`ids_N` are ascending."""
        self._dim = dim
        self._ids_N = ids_N
        self._contents_N = _contents(corpus, ids_N)
        self._indexes: list[Index] = []
        self._index_N = np.full(len(ids_N), -1)  # which of the indexes has the vector; -1: none
        self._there_N = np.zeros(len(ids_N), dtype=np.int64)  # and under which id

    @property
    def lacking(self) -> int:
        """How many passages were not found in any index."""
        return int((self._index_N < 0).sum())

    def look_in(self, corpus: Corpus, ids_M: np.ndarray, index: Index) -> None:
        """Look for those still lacking among these passages of another corpus, or of another state of this
        one, whose vectors are in `index`."""
        ids_M = ids_M[index.contains(torch.from_numpy(ids_M)).cpu().numpy()]
        if not len(ids_M):
            return
        there_N = _ids_there(self._contents_N, _contents(corpus, ids_M), ids_M)
        found_N = (there_N >= 0) & (self._index_N < 0)
        self._index_N[found_N] = len(self._indexes)
        self._there_N[found_N] = there_N[found_N]
        self._indexes.append(index)

    def __call__(self, ids_N: np.ndarray) -> tuple[np.ndarray, Tensor]:
        rows_N = np.searchsorted(self._ids_N, ids_N)
        index_N = self._index_N[rows_N]
        there_N = torch.from_numpy(self._there_N[rows_N])
        vectors_ND = torch.zeros(len(ids_N), self._dim)
        for number, index in enumerate(self._indexes):
            here_N = torch.from_numpy(index_N == number)
            vectors_ND[here_N] = index.vectors(there_N[here_N]).cpu()
        return index_N >= 0, vectors_ND[torch.from_numpy(index_N >= 0)]


class SameWords:
    """Finds, for passages of a training text, all passages of a corpus with the same body: the passage itself
    and its copies. Titles do not count: a copy of a file may have another name.

    B passages of the text, E of the corpus for one of them at most, N and M passages of text and corpus in
    all, G groups of equal bodies.
    """

    def __init__(self, corpus: Corpus, text: Corpus) -> None:
        bodies_G, group_M = np.unique(_bodies(corpus), return_inverse=True)
        same_place = (text.folder, text.edits) == (corpus.folder, corpus.edits)
        if same_place and text.fingerprint == corpus.fingerprint:
            group_N = group_M
        else:
            bodies_N = _bodies(text)
            group_N = np.searchsorted(bodies_G, bodies_N)
            group_N[group_N == np.searchsorted(bodies_G, bodies_N, side="right")] = -1
        self._group_N = np.full(text.ids.max(initial=-1) + 1, -1)  # by id; −1: the corpus has no such body
        self._group_N[text.ids] = group_N
        self._ids_M = corpus.ids[np.argsort(group_M, kind="stable")]  # those of one group together
        sizes_G = np.bincount(group_M, minlength=len(bodies_G))
        self._first_G = sizes_G.cumsum() - sizes_G
        self._sizes_G = np.append(sizes_G, 0)  # the last is for −1
        self.most = int(self._sizes_G[group_N].max(initial=0))
        """The most passages of the corpus that have the body of one passage of the text."""

    def __call__(self, passages_B: np.ndarray) -> Tensor:
        """The ids in the corpus [B, E], filled up with −1."""
        group_B = self._group_N[passages_B]
        counts_B = self._sizes_G[group_B]
        ids_BE = np.full((len(group_B), counts_B.max(initial=0)), -1)
        rows, columns = (np.arange(ids_BE.shape[1]) < counts_B[:, None]).nonzero()
        ids_BE[rows, columns] = self._ids_M[self._first_G[group_B[rows]] + columns]
        return torch.from_numpy(ids_BE)

    def has(self, passages_B: np.ndarray) -> np.ndarray:
        """Which of these passages have any."""
        return self._group_N[passages_B] >= 0


def body_numbers(corpus: Corpus) -> np.ndarray:
    """A number for the body of each passage, by id: those of copies are the same. −1 where no passage is."""
    numbers_P = np.full(corpus.ids.max(initial=-1) + 1, -1)
    numbers_P[corpus.ids] = np.unique(_bodies(corpus), return_inverse=True)[1]
    return numbers_P


def check_others(corpus: Corpus, own: SameWords | None, *, k: int, others: int) -> None:
    """Raise unless the corpus has enough passages for k: besides a sentence's `own` passage and its copies,
    which are never retrieved for it, it must have this many `others`."""
    most = own.most if own else 0
    needed = others + min(most, 1)
    if needed > len(corpus):
        wrong = f"k = {k} needs at least {needed} passages, {corpus.folder} has {len(corpus)}"
        raise NotEnough(f"{wrong}; lower --k or use a larger corpus")
    if others + most > len(corpus):
        raise NotEnough(
            f"k = {k} needs {others} other passages for each sentence, but up to {most} of the {len(corpus)} "
            f"passages of {corpus.folder} have the same words, and none of them is offered to a sentence of "
            "theirs; remove copies, or add other documents"
        )


def share_cut_otherwise(corpus: Corpus, text: Corpus, own: SameWords, *, sample: int = 50) -> float:
    """Tells whether a training text has the documents of a corpus, but cut into other passages: then a
    sentence could retrieve itself, since its own passage is not found by its words.

    Gives, for a sample of the passages of the text that are not in the corpus, the share whose first sentence
    is in a passage of the corpus with the same title.
    """
    foreign = text.ids[~own.has(text.ids)]
    sought: dict[bytes, set[str]] = {}  # by title
    for number in foreign[:: -(-len(foreign) // sample) or 1].tolist():
        end = text.token_chars(number)[text.sentences(number)[1] - 1, 1]
        sought.setdefault(text.title_tokens(number).tobytes(), set()).add(text[number].text[:end])
    count = sum(map(len, sought.values()))
    found = 0
    for number in corpus.ids.tolist() if count else ():
        if wanted := sought.get(corpus.title_tokens(number).tobytes()):
            there = {sentence for sentence in wanted if sentence in corpus[number].text}
            wanted -= there
            found += len(there)
    return found / max(1, count)


def _ids_there(contents_N: np.ndarray, there_M: np.ndarray, ids_M: np.ndarray) -> np.ndarray:
    """For each of N contents the id of the first of M passages that has it, or −1."""
    different_G, first_G = np.unique(there_M, return_index=True)
    place_N = np.searchsorted(different_G, contents_N).clip(max=len(different_G) - 1)
    return np.where(different_G[place_N] == contents_N, ids_M[first_G[place_N]], -1)


def _contents(corpus: Corpus, ids_N: np.ndarray) -> np.ndarray:
    """A digest of the title and the body of each passage. The title's length sets them apart."""

    def content(number: int) -> bytes:
        title = corpus.title_tokens(number)
        return len(title).to_bytes(8, "little") + title.tobytes() + corpus.tokens(number).tobytes()

    return _digests(map(content, ids_N.tolist()))


def _bodies(corpus: Corpus) -> np.ndarray:
    """A digest of the body of each passage, without the title."""
    return _digests(corpus.tokens(number).tobytes() for number in corpus.ids.tolist())


def _digests(contents: Iterable[bytes]) -> np.ndarray:
    return np.array([hashlib.blake2b(data, digest_size=16).digest() for data in contents], dtype="S16")
