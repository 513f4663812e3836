"""Model inputs: wordpieces joined with special tokens and padded (join_BERT of the paper).

N sequences, L wordpieces in the longest, M masks in the query with most of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import MAX_TITLE
from realmlm.corpus.wordpieces import Wordpieces

NULL = np.zeros(0, dtype=np.int64)  # the null document: no title, no body


@dataclass(frozen=True)
class Inputs:
    """Padded sequences for an encoder."""

    tokens_NL: Tensor
    attention_NL: Tensor  # 1 for wordpieces, 0 for padding
    segments_NL: Tensor  # 0 for the first part, 1 for the second
    second_N: Tensor  # where the second part begins

    def to(self, device: torch.device) -> "Inputs":
        return Inputs(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    def __len__(self) -> int:
        return len(self.tokens_NL)


def pair_inputs(
    firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray] | None, wordpieces: Wordpieces, *, max_first: int, max_length: int
) -> Inputs:
    """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, the first cut to `max_first`, then all of it to `max_length`."""
    count = len(firsts)
    cut = [first[: min(max_first, max_length - 3)] for first in firsts]
    tails = (
        [NULL] * count if seconds is None else [second[: max_length - 3 - len(first)] for first, second in zip(cut, seconds, strict=True)]
    )
    closing = 0 if seconds is None else 1
    heads = np.array([len(first) + 2 for first in cut], dtype=np.int64)
    lengths = heads + np.array([len(tail) + closing for tail in tails], dtype=np.int64)
    width = int(lengths.max(initial=1))
    tokens = np.full((count, width), wordpieces.pad, dtype=np.int64)
    tokens[:, 0] = wordpieces.cls
    for row, (first, tail) in enumerate(zip(cut, tails, strict=True)):
        tokens[row, 1 : 1 + len(first)] = first
        tokens[row, heads[row] : heads[row] + len(tail)] = tail
    rows, columns = np.arange(count), np.arange(width)
    tokens[rows, heads - 1] = wordpieces.sep
    tokens[rows, lengths - 1] = wordpieces.sep
    attention = columns < lengths[:, None]
    segments = attention & (columns >= heads[:, None])
    return Inputs(*(torch.from_numpy(array) for array in (tokens, attention.astype(np.int64), segments.astype(np.int64), heads)))


def query_inputs(queries: Sequence[np.ndarray], wordpieces: Wordpieces, *, max_query: int) -> Inputs:
    """`[CLS] x [SEP]`."""
    return pair_inputs(queries, None, wordpieces, max_first=max_query, max_length=max_query + 3)


def document_inputs(titles: Sequence[np.ndarray], bodies: Sequence[np.ndarray], wordpieces: Wordpieces, *, max_length: int) -> Inputs:
    """`[CLS] title [SEP] body [SEP]`."""
    return pair_inputs(titles, bodies, wordpieces, max_first=MAX_TITLE, max_length=max_length)


def reader_inputs(
    queries: Sequence[np.ndarray], bodies: Sequence[np.ndarray], wordpieces: Wordpieces, *, max_query: int, max_length: int
) -> Inputs:
    """`[CLS] x [SEP] body [SEP]`: x and z read together."""
    return pair_inputs(queries, bodies, wordpieces, max_first=max_query, max_length=max_length)


@dataclass(frozen=True)
class Masked:
    """Queries with some wordpieces hidden, and what stood there."""

    queries: list[np.ndarray]  # with [MASK]
    positions_BM: Tensor  # of the masks, within the query; padded with 0
    targets_BM: Tensor  # what they hide; padded with 0
    valid_BM: Tensor  # which entries are masks

    def to(self, device: torch.device) -> "Masked":
        return Masked(self.queries, self.positions_BM.to(device), self.targets_BM.to(device), self.valid_BM.to(device))


def mask_queries(queries: Sequence[np.ndarray], positions: Sequence[np.ndarray], wordpieces: Wordpieces) -> Masked:
    """Put [MASK] at the given positions of each query."""
    width = max((len(chosen) for chosen in positions), default=1)
    where = np.zeros((len(queries), width), dtype=np.int64)
    targets, valid = np.zeros_like(where), np.zeros(where.shape, dtype=bool)
    masked = []
    for row, (query, chosen) in enumerate(zip(queries, positions, strict=True)):
        hidden = query.astype(np.int64)
        where[row, : len(chosen)] = chosen
        targets[row, : len(chosen)] = hidden[chosen]
        valid[row, : len(chosen)] = True
        hidden = hidden.copy()
        hidden[chosen] = wordpieces.mask
        masked.append(hidden)
    return Masked(masked, torch.from_numpy(where), torch.from_numpy(targets), torch.from_numpy(valid))
