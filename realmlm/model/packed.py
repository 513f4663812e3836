"""Sequences end to end instead of padded, for encoders on a GPU: no padding is computed, and texts that lie
on the device are joined there.

N sequences of P pieces each, L wordpieces in the longest, T wordpieces in all, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.wordpieces import Layout
from realmlm.model.inputs import Inputs, send

_BOUND = 256  # wordpieces that bounds of lengths are apart


@dataclass(frozen=True)
class Packed:
    """N sequences end to end. What is left of T places is filling: sequences that no one asks for."""

    layout: Layout
    tokens_T: Tensor
    columns_T: Tensor  # place within the sequence
    segments_T: Tensor
    rows_T: Tensor  # the sequence it belongs to; N for filling
    starts_N: Tensor  # place of the first wordpiece
    lengths_N: Tensor
    second_N: Tensor  # where the second text begins within the sequence, its title not counted
    title_N: Tensor  # where its title begins; without one, the second text
    borders: Tensor  # int32: where sequences begin and end, those of the filling too
    longest: int  # no sequence is longer

    @classmethod
    def of(cls, inputs: Inputs) -> "Packed":
        """Padded inputs, whose lengths are known on the host, without their padding."""
        device = inputs.tokens_NL.device
        count, width = inputs.tokens_NL.shape
        lengths_N = inputs.lengths_N.astype(np.int64)
        ends_N = np.cumsum(lengths_N)
        starts_N = ends_N - lengths_N
        rows_T = np.repeat(np.arange(count), lengths_N)
        columns_T = np.arange(len(rows_T)) - np.repeat(starts_N, lengths_N)
        known = np.concatenate([rows_T, columns_T, starts_N, lengths_N])
        sizes = (len(rows_T), len(rows_T), count, count)
        rows, columns, starts, lengths = send(torch.from_numpy(known), device).split(sizes)
        places_T = rows * width + columns
        tokens_T = inputs.tokens_NL.flatten()[places_T]
        segments_T = inputs.segments_NL.flatten()[places_T]
        borders = torch.cat([starts, starts[-1:] + lengths[-1:]]).to(torch.int32)
        parts = (tokens_T, columns, segments_T, rows, starts, lengths, inputs.second_N, inputs.title_N)
        # rounded up: what is compiled for one bound serves many batches
        longest = -(-int(lengths_N.max(initial=1)) // _BOUND) * _BOUND
        return cls(inputs.layout, *parts, borders, longest)

    def __len__(self) -> int:
        return len(self.starts_N)

    def padded(self, hidden_TH: Tensor, width: int) -> Tensor:
        """A vector a wordpiece [N, L, H], 0 for padding. There must be no filling."""
        flat = hidden_TH.new_zeros(len(self) * width, hidden_TH.shape[-1])
        return flat.index_copy(0, self.rows_T * width + self.columns_T, hidden_TH).view(len(self), width, -1)

    def mean(self, hidden_TH: Tensor) -> Tensor:
        """The mean vector of each sequence [N, H]; 0 for an empty one."""
        total = hidden_TH.new_zeros(len(self) + 1, hidden_TH.shape[-1], dtype=torch.float32)
        total_NH = total.index_add(0, self.rows_T, hidden_TH.float())[:-1]
        return total_NH / self.lengths_N.clamp(min=1)[:, None]

    def first(self, hidden_TH: Tensor) -> Tensor:
        """The vector that stands for each sequence [N, H], as [CLS] does for BERT."""
        place = self.layout.cls
        assert place is not None  # new_model has asked for one
        from_N = self.starts_N if place >= 0 else self.starts_N + self.lengths_N
        return hidden_TH[(from_N + place).clamp(max=len(hidden_TH) - 1)]


@dataclass(frozen=True)
class Text:
    """A text of each of N sequences: `lengths_N` wordpieces of a flat array, from `at_N` on."""

    tokens: Tensor
    at_N: Tensor
    lengths_N: Tensor
    segment: int

    def cut(self, room_N: Tensor) -> "Text":
        """No longer than there is room for."""
        return Text(self.tokens, self.at_N, torch.minimum(self.lengths_N, room_N.clamp(min=0)), self.segment)


@dataclass(frozen=True)
class Special:
    """A special token, in the sequences that have it."""

    token: int
    segment: int
    lengths_N: Tensor  # 1 or 0


Piece = Text | Special


def pack(
    pieces: Sequence[Piece], *, layout: Layout, body: int, size: "Size", title: int | None = None
) -> Packed:
    """Sequences of these pieces, one after the other; `body` says which of them is the second text, `title`
    which one is its title."""
    lengths_NP = torch.stack([piece.lengths_N for piece in pieces], dim=1)
    count, columns = lengths_NP.shape
    device = lengths_NP.device
    ends_M = lengths_NP.flatten().cumsum(0)  # of all pieces of all sequences
    starts_M = ends_M - lengths_NP.flatten()
    used = ends_M[-1]
    place_T = torch.arange(size.total, device=device)
    piece_T = torch.searchsorted(ends_M, place_T, right=True)
    filling_T = place_T >= used
    piece_T = piece_T.clamp(max=len(ends_M) - 1)
    within_T = place_T - starts_M[piece_T]
    kind_T = piece_T % columns
    row_T = piece_T // columns
    tokens_T = torch.zeros_like(place_T)
    segments_T = torch.zeros_like(place_T)
    for number, piece in enumerate(pieces):
        here_T = (kind_T == number) & ~filling_T
        if isinstance(piece, Special):
            found_T: Tensor | int = piece.token
        else:
            address_T = torch.where(here_T, piece.at_N[row_T] + within_T, 0)
            found_T = piece.tokens[address_T].long()
        tokens_T = torch.where(here_T, found_T, tokens_T)
        if piece.segment:
            segments_T = torch.where(here_T, piece.segment, segments_T)
    starts_N = starts_M.view(count, columns)[:, 0]
    ends_N = ends_M.view(count, columns)[:, -1]
    beyond_T = place_T - used
    # an encoder may have fewer positions than the limits add up to, never fewer than a sequence has
    most = (ends_N - starts_N).amax().clamp(min=1, max=size.longest)
    columns_T = torch.where(filling_T, beyond_T % most, place_T - starts_N[row_T])
    more = torch.arange(1, size.spare + 1, device=device) * size.longest
    borders = torch.cat([starts_N[:1], ends_N, (used + more).clamp(max=size.total)])
    return Packed(
        layout,
        tokens_T,
        columns_T,
        segments_T,
        torch.where(filling_T, count, row_T),
        starts_N,
        ends_N - starts_N,
        starts_M.view(count, columns)[:, body] - starts_N,
        starts_M.view(count, columns)[:, body if title is None else title] - starts_N,
        borders.to(torch.int32),
        size.longest,
    )


@dataclass(frozen=True)
class Size:
    """How much room packed sequences get: the same for many batches, so that a recorded step serves them."""

    total: int
    """Wordpieces, filling included."""
    longest: int
    """No sequence is longer."""
    filling: int
    """Wordpieces of filling there can be."""

    @cached_property
    def spare(self) -> int:
        """Sequences that the filling is cut into."""
        return -(-self.filling // self.longest)

    @classmethod
    def fitting(cls, needed: int, *, grain: int, longest: int) -> "Size":
        """The next multiple of `grain`."""
        return cls(-(-needed // grain) * grain, longest, grain)
