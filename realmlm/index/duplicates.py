"""Passages that stand, word for word, in another corpus too: found there, and their vectors not computed
again."""

import hashlib

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import NotEnough
from realmlm.index.exact import Index


class SameContent:
    """For passages of a corpus, where the same title and body have a vector already: a `Known` of
    `embed_passages`."""

    def __init__(self, corpus: Corpus, ids_N: np.ndarray, *, dim: int) -> None:
        """`ids_N` are ascending."""
        self._dim = dim
        self._ids_N = ids_N
        self._contents_N = _contents(corpus, ids_N)
        self._indexes: list[Index] = []
        self._index_N = np.full(len(ids_N), -1)  # which of the indexes has a passage's vector; -1: none
        self._there_N = np.zeros(len(ids_N), dtype=np.int64)  # its id in there

    @property
    def lacking(self) -> int:
        """How many were not found anywhere."""
        return int((self._index_N < 0).sum())

    def look_in(self, corpus: Corpus, ids_M: np.ndarray, index: Index) -> None:
        """Look for those that are still lacking among passages of another corpus, or of another state of this
        one, and its index."""
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
    """For passages of a text, all passages of a corpus with the same words in their bodies: their own one and
    its copies.

    Titles do not count: a copy of a file may be named otherwise. B passages of the text, E of the corpus for
    one of them at most, N and M passages of text and corpus in all, G different bodies.
    """

    def __init__(self, corpus: Corpus, text: Corpus) -> None:
        known_G, group_M = np.unique(_bodies(corpus), return_inverse=True)
        if (text.folder, text.edits) == (
            corpus.folder,
            corpus.edits,
        ) and text.fingerprint == corpus.fingerprint:
            group_N = group_M
        else:
            bodies_N = _bodies(text)
            group_N = np.searchsorted(known_G, bodies_N)
            group_N[group_N == np.searchsorted(known_G, bodies_N, side="right")] = -1
        self._group_N = np.full(text.ids.max(initial=-1) + 1, -1)  # by id; −1: none has these words
        self._group_N[text.ids] = group_N
        self._ids_M = corpus.ids[np.argsort(group_M, kind="stable")]  # those of one group together
        sizes_G = np.bincount(group_M, minlength=len(known_G))
        # the last is that of none, −1
        self._first_G = sizes_G.cumsum() - sizes_G
        self._sizes_G = np.append(sizes_G, 0)
        self.most = int(self._sizes_G[group_N].max(initial=0))
        """As many are there of one passage at most."""

    def __call__(self, passages_B: np.ndarray) -> Tensor:
        """The ids in the corpus [B, E], −1 where there are no more."""
        group_B = self._group_N[passages_B]
        counts_B = self._sizes_G[group_B]
        ids_BE = np.full((len(group_B), counts_B.max(initial=0)), -1)
        rows, columns = (np.arange(ids_BE.shape[1]) < counts_B[:, None]).nonzero()
        ids_BE[rows, columns] = self._ids_M[self._first_G[group_B[rows]] + columns]
        return torch.from_numpy(ids_BE)

    def has(self, passages_B: np.ndarray) -> np.ndarray:
        """Which of these have any."""
        return self._group_N[passages_B] >= 0


def check_others(corpus: Corpus, own: SameWords | None, *, k: int, others: int) -> None:
    """Are there as many others as k asks for, whatever passages are a sentence's `own` and are not offered to
    it?"""
    most = own.most if own else 0
    needed = others + min(most, 1)
    if needed > len(corpus):
        raise NotEnough(
            f"k = {k} needs at least {needed} passages, {corpus.folder} has {len(corpus)}; lower --k or use "
            "a larger corpus"
        )
    if others + most > len(corpus):
        raise NotEnough(
            f"k = {k} needs {others} other passages for each sentence, but up to {most} of the {len(corpus)} "
            f"passages of {corpus.folder} "
            "have the same words, and none of them is offered to a sentence of theirs; remove copies, or add "
            "other documents"
        )


def share_cut_otherwise(corpus: Corpus, text: Corpus, own: SameWords, *, sample: int = 50) -> float:
    """Of some passages of the text that are none of the corpus: the share whose first sentence stands in one
    of the same title. A text of the same documents cut otherwise has many: what is left out of a search by
    its place is not left out then.
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
    """For each content the first id that has it among others, or −1."""
    if not len(there_M):
        return np.full(len(contents_N), -1)
    known_M, first_M = np.unique(there_M, return_index=True)
    place_N = np.searchsorted(known_M, contents_N).clip(max=len(known_M) - 1)
    return np.where(known_M[place_N] == contents_N, ids_M[first_M[place_N]], -1)


def _contents(corpus: Corpus, ids_N: np.ndarray) -> np.ndarray:
    """A digest of each passage's wordpieces, those of its title apart from those of its body."""

    def digest(number: int) -> bytes:
        title = corpus.title_tokens(number)
        body = corpus.tokens(number)
        return hashlib.blake2b(
            len(title).to_bytes(8, "little") + title.tobytes() + body.tobytes(), digest_size=16
        ).digest()

    return np.array([digest(number) for number in ids_N.tolist()], dtype="S16")


def _bodies(corpus: Corpus) -> np.ndarray:
    """A digest of each passage's wordpieces without the title."""
    return np.array(
        [
            hashlib.blake2b(corpus.tokens(number).tobytes(), digest_size=16).digest()
            for number in corpus.ids.tolist()
        ],
        dtype="S16",
    )
