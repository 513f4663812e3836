"""The sparse baseline: BM25 (Lucene's variant) through bm25s, with ties defined.

Q queries, K passages each, N passages in the index.
"""

import importlib.util
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from realmlm.corpus.store import Corpus
from realmlm.errors import NotEnough, require


class BM25Index:
    """The statistics of a corpus's words, in memory. Words are lower-cased runs of two or more letters or
    digits, without English stopwords."""

    def __init__(self, passages: Iterable[tuple[int, str]], *, k1: float = 1.5, b: float = 0.75) -> None:
        """`passages` are ids and texts, in which title and body are already joined."""
        # bm25s imports JAX if it is installed, and JAX takes most of a GPU's memory at once
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self._bm25s = require("bm25s", extra="bm25", why="the BM25 baseline")
        # in the order of the ids, so that ties can be decided by position
        ordered = sorted(passages, key=lambda passage: passage[0])
        self._ids_N = np.array([passage_id for passage_id, _ in ordered], dtype=np.int64)
        words = self._tokenize([text for _, text in ordered], as_ids=True)
        if not words.vocab:
            raise NotEnough(f"no word to index in {len(ordered):,} passages; give passages with text")
        self._backend = "numba" if importlib.util.find_spec("numba") else "numpy"
        self._index = self._bm25s.BM25(k1=k1, b=b, method="lucene", backend=self._backend)
        self._index.index(words, show_progress=False)

    @classmethod
    def of(cls, corpus: Corpus) -> "BM25Index":
        """An index of the titles and texts of a corpus."""
        passages = (corpus[number] for number in corpus.ids.tolist())
        return cls((passage.id, f"{passage.title} {passage.text}") for passage in passages)

    def __len__(self) -> int:
        return len(self._ids_N)

    def search(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """The scores (float32) and ids (int64) [Q, K] of the k best passages: best score first, then smallest
        id. A passage without a common word scores 0."""
        if not 1 <= k <= len(self):
            count = f"{len(self):,}"
            raise NotEnough(f"{k} passages asked for, the index holds {count}; choose k from 1 to {count}")
        if not queries:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        # bm25s refuses a query without words: it gets one that no passage has, which is ignored
        words = [words or ["\0"] for words in self._tokenize(queries, as_ids=False)]
        wanted = min(k + 1, len(self))  # one more shows whether the last place is tied
        found = self._index.retrieve(words, k=wanted, show_progress=False, backend_selection=self._backend)
        scores_QK = np.asarray(found.scores)
        positions_QK = np.asarray(found.documents)
        order_QK = np.lexsort((positions_QK, -scores_QK), axis=-1)
        scores_QK = np.take_along_axis(scores_QK, order_QK, axis=-1)
        positions_QK = np.take_along_axis(positions_QK, order_QK, axis=-1)
        if wanted > k:
            # bm25s decides ties in no defined way: decide again
            for query in np.flatnonzero(scores_QK[:, k - 1] == scores_QK[:, k]):
                scores_N = self._index.get_scores_from_ids(self._index.get_tokens_ids(words[query]))
                best = np.argsort(-scores_N, kind="stable")[:k]
                scores_QK[query, :k] = scores_N[best]
                positions_QK[query, :k] = best
        return scores_QK[:, :k].astype(np.float32), self._ids_N[positions_QK[:, :k]]

    def _tokenize(self, texts: list[str], *, as_ids: bool) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", return_ids=as_ids, show_progress=False)
