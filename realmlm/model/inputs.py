"""Model inputs: texts with special tokens, padded (join_BERT of the paper), as the tokenizer's family does
it.

N sequences, L wordpieces in the longest, M masks in the query with most of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import MAX_TITLE
from realmlm.corpus.wordpieces import Layout, Wordpieces

AT_ONCE = 1024  # wordpieces of a group on a CPU: of more, its cache holds too little
GROUPED = 128  # sequences from which on a GPU has enough to do with a part of them
_GROUPS = 4
PADDING = 0.15  # share of a batch below which a GPU takes it as it is
NULL = np.zeros(0, dtype=np.int64)  # the null document: no title, no body


@dataclass(frozen=True)
class Inputs:
    """Padded sequences for an encoder."""

    layout: Layout
    lengths_N: np.ndarray  # wordpieces of each, known without asking a GPU
    tokens_NL: Tensor
    attention_NL: Tensor  # 1 for wordpieces, 0 for padding
    segments_NL: Tensor  # as the tokenizer's family numbers them
    second_N: Tensor  # where the second text begins, its title not counted
    title_N: Tensor  # where its title begins; without one, the second text

    def to(self, device: torch.device) -> "Inputs":
        """The same on a device."""
        tensors = (self.tokens_NL, self.attention_NL, self.segments_NL, self.second_N, self.title_N)
        return Inputs(self.layout, self.lengths_N, *(send(tensor, device) for tensor in tensors))

    def rows(self, chosen: np.ndarray) -> "Inputs":
        """Some of them, without the padding that only the others need."""
        places = send(torch.from_numpy(chosen), self.tokens_NL.device)
        width = int(self.lengths_N[chosen].max())
        cut = (part_NL[:, :width] for part_NL in (self.tokens_NL, self.attention_NL, self.segments_NL))
        tensors = (tensor[places] for tensor in (*cut, self.second_N, self.title_N))
        return Inputs(self.layout, self.lengths_N[chosen], *tensors)

    def alike(self) -> list[np.ndarray]:
        """Rows in groups of like length, each to be read at once, so that little is spent on padding.

        On a CPU as much as its cache holds; on a GPU a few groups of a large batch with much padding.
        """
        order = np.argsort(-self.lengths_N, kind="stable")
        if not self.on_gpu:
            groups = []
            while len(order):
                groups.append(order[: max(1, AT_ONCE // int(self.lengths_N[order[0]]))])
                order = order[len(groups[-1]) :]
            return groups
        padding = 1 - self.lengths_N.sum() / max(1, self.tokens_NL.numel())
        worth_it = len(self) >= GROUPED and padding >= PADDING
        return np.array_split(order, _GROUPS) if worth_it else [np.arange(len(self))]

    def first(self, hidden_NLH: Tensor) -> Tensor:
        """The vector that stands for each sequence [N, H], as [CLS] does for BERT."""
        place = self.layout.cls
        assert place is not None  # who made the model has asked for one
        if place >= 0:
            return hidden_NLH[:, place]
        rows_N = torch.arange(len(self), device=hidden_NLH.device)
        return hidden_NLH[rows_N, self.attention_NL.sum(1) + place]  # XLNet's stands last

    @property
    def on_gpu(self) -> bool:
        return self.tokens_NL.is_cuda

    def __len__(self) -> int:
        return len(self.tokens_NL)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To a device; to a GPU through pinned memory, so that nothing waits for the copy."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pair_inputs(
    firsts: Sequence[np.ndarray],
    seconds: Sequence[np.ndarray] | None,
    wordpieces: Wordpieces,
    *,
    max_first: int,
    max_length: int,
) -> Inputs:
    """One text or two with the family's special tokens, in BERT `[CLS] first [SEP] second [SEP]`.

    The first is cut to `max_first` wordpieces, then all of it to `max_length`.
    """
    layout = wordpieces.single if seconds is None else wordpieces.pair
    count = len(firsts)
    begin = len(layout.before)
    room = max_length - layout.special
    cut = [first[: min(max_first, room)] for first in firsts]
    both = zip(cut, [NULL] * count if seconds is None else seconds, strict=True)
    tails = [second[: room - len(first)] for first, second in both]
    ends = np.array([begin + len(first) for first in cut], dtype=np.int64)
    heads = ends + len(layout.between)
    closes = heads + np.array([len(tail) for tail in tails], dtype=np.int64)
    lengths = closes + len(layout.after)
    width = int(lengths.max(initial=1))
    tokens = np.full((count, width), wordpieces.pad, dtype=np.int64)
    borders = zip(ends.tolist(), heads.tolist(), closes.tolist(), strict=True)
    for row, first, tail, (end, head, close) in zip(tokens, cut, tails, borders, strict=True):
        row[begin:end] = first
        row[head:close] = tail
    rows = np.arange(count)
    columns = np.arange(width)
    attention = columns < lengths[:, None]
    segments = _segments(attention, columns >= heads[:, None], layout)
    tokens[:, :begin] = [token for token, _ in layout.before]
    inner = (ends, layout.between, layout.first)
    for starts, special, usual in (inner, (closes, layout.after, layout.second)):
        for place, (token, segment) in enumerate(special):
            tokens[rows, starts + place] = token
            if segment != usual:
                segments[rows, starts + place] = segment
    arrays = (tokens, attention.astype(np.int64), segments, heads, heads)
    return Inputs(layout, lengths, *(torch.from_numpy(array) for array in arrays))


def _segments(attention: np.ndarray, second: np.ndarray, layout: Layout) -> np.ndarray:
    """Segment ids of the two texts and the special tokens that belong to them; 0 for padding."""
    if layout.first == layout.second:
        return attention * layout.first
    segments = (attention & second).astype(np.int64)
    usual = (layout.first, layout.second) == (0, 1)
    return segments if usual else np.array([layout.first, layout.second])[segments]


def query_inputs(queries: Sequence[np.ndarray], wordpieces: Wordpieces, *, max_query: int) -> Inputs:
    """`[CLS] x [SEP]`."""
    longest = max_query + wordpieces.single.special
    return pair_inputs(queries, None, wordpieces, max_first=max_query, max_length=longest)


def document_inputs(
    titles: Sequence[np.ndarray], bodies: Sequence[np.ndarray], wordpieces: Wordpieces, *, max_length: int
) -> Inputs:
    """`[CLS] title [SEP] body [SEP]`."""
    return pair_inputs(titles, bodies, wordpieces, max_first=MAX_TITLE, max_length=max_length)


def reader_inputs(
    queries: Sequence[np.ndarray],
    bodies: Sequence[np.ndarray],
    wordpieces: Wordpieces,
    *,
    titles: Sequence[np.ndarray] | None = None,
    max_query: int,
    max_length: int,
) -> Inputs:
    """`[CLS] x [SEP] body [SEP]`, or with titles `[CLS] x [SEP] title [SEP] body [SEP]`."""
    if titles is None:
        return pair_inputs(queries, bodies, wordpieces, max_first=max_query, max_length=max_length)
    between = np.array([token for token, _ in wordpieces.pair.between], dtype=np.int64)
    heads = [np.concatenate([title, between]) if len(title) else NULL for title in titles]
    whole = [np.concatenate([head, body]) for head, body in zip(heads, bodies, strict=True)]
    inputs = pair_inputs(queries, whole, wordpieces, max_first=max_query, max_length=max_length)
    return replace(inputs, second_N=inputs.second_N + torch.tensor([len(head) for head in heads]))


class TakesInputs:
    """The part of a model that says what its towers and its reader are given."""

    config: Any
    wordpieces: Wordpieces

    def query_inputs(self, queries: Sequence[np.ndarray]) -> Inputs:
        """What the query tower reads of queries in wordpieces."""
        return query_inputs(queries, self.wordpieces, max_query=self.config.max_query)

    def document_inputs(self, titles: Sequence[np.ndarray], bodies: Sequence[np.ndarray]) -> Inputs:
        """What the document tower reads of passages in wordpieces."""
        return document_inputs(titles, bodies, self.wordpieces, max_length=self.config.max_document)

    def reader_inputs(
        self, queries: Sequence[np.ndarray], titles: Sequence[np.ndarray], bodies: Sequence[np.ndarray]
    ) -> Inputs:
        """What the reader reads of each query with its passage; the null document has empty ones."""
        config = self.config
        heads = titles if config.read_titles else None
        limits = {"max_query": config.max_query, "max_length": config.max_joint}
        return reader_inputs(queries, bodies, self.wordpieces, titles=heads, **limits)


@dataclass(frozen=True)
class Masked:
    """Queries with some wordpieces hidden, and what stood there."""

    queries: list[np.ndarray]  # with [MASK]
    positions_BM: np.ndarray  # of the masks, within the query; padded with 0
    targets_BM: np.ndarray  # what they hide; padded with 0
    valid_BM: np.ndarray  # which entries are masks

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, targets and which are valid, on a device."""
        arrays = (self.positions_BM, self.targets_BM, self.valid_BM)
        positions_BM, targets_BM, valid_BM = (send(torch.from_numpy(array), device) for array in arrays)
        return positions_BM, targets_BM, valid_BM

    def hidden(self) -> list[np.ndarray]:
        """The wordpieces that each query hides."""
        return [targets[valid] for targets, valid in zip(self.targets_BM, self.valid_BM, strict=True)]

    def runs(self, longest: int) -> list[np.ndarray | None]:
        """What each query hides, where that is one run of at most so many wordpieces."""
        found: list[np.ndarray | None] = []
        for words, places in zip(self.hidden(), self.positions_BM, strict=True):
            count = len(words)
            in_a_row = 0 < count <= longest and places[count - 1] - places[0] == count - 1
            found.append(words if in_a_row else None)
        return found


def mask_queries(
    queries: Sequence[np.ndarray], positions: Sequence[np.ndarray], wordpieces: Wordpieces
) -> Masked:
    """Put [MASK] at the given positions of each query."""
    width = max((len(chosen) for chosen in positions), default=1)
    where = np.zeros((len(queries), width), dtype=np.int64)
    targets = np.zeros_like(where)
    valid = np.zeros(where.shape, dtype=bool)
    masked = []
    for row, (query, chosen) in enumerate(zip(queries, positions, strict=True)):
        hidden = query.astype(np.int64)
        where[row, : len(chosen)] = chosen
        targets[row, : len(chosen)] = hidden[chosen]
        valid[row, : len(chosen)] = True
        hidden[chosen] = wordpieces.mask
        masked.append(hidden)
    return Masked(masked, where, targets, valid)
