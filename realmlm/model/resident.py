"""A corpus's wordpieces on the device, and what towers and reader are given of them, joined there.

B queries of at most Q wordpieces, N sequences, P passages by id, T wordpieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import MAX_TITLE, Corpus, FlatTokens
from realmlm.corpus.wordpieces import Layout, Wordpieces
from realmlm.model.inputs import send
from realmlm.model.packed import Packed, Piece, Size, Special, Text, pack

_SHARE = 0.25  # of the device's free memory that a corpus may take
_SMALL_VOCABULARY = 2**15  # whose ids fit into 16 bits with their sign


@dataclass(frozen=True)
class Queries:
    """Queries in wordpieces on the device, each in a row of Q places."""

    tokens_BQ: Tensor
    lengths_B: Tensor

    def text(self, segment: int, rows_N: Tensor | None = None) -> Text:
        """These rows, or each once."""
        device = self.tokens_BQ.device
        rows_N = torch.arange(len(self.tokens_BQ), device=device) if rows_N is None else rows_N
        width = self.tokens_BQ.shape[1]
        return Text(self.tokens_BQ.flatten(), rows_N * width, self.lengths_B[rows_N], segment)

    @classmethod
    def of(cls, queries: Sequence[np.ndarray], *, width: int, device: torch.device) -> "Queries":
        """Queries from the host, cut to `width` wordpieces."""
        table = np.zeros((len(queries), width + 1), dtype=np.int64)
        for row, query in zip(table, queries, strict=True):
            cut = query[:width]
            row[: len(cut)] = cut
            row[width] = len(cut)
        on_device = send(torch.from_numpy(table), device)
        return cls(on_device[:, :width].contiguous(), on_device[:, width])


class Resident:
    """A corpus whose wordpieces lie on a device. An id below 0 stands for the null document."""

    def __init__(
        self, flat: FlatTokens, config: Any, wordpieces: Wordpieces, *, device: torch.device
    ) -> None:
        self._config = config
        self._layout = wordpieces.pair
        self._single = wordpieces.single
        self.device = device
        self.lengthens_V = torch.from_numpy(wordpieces.lengthens).to(device)
        small = len(wordpieces) <= _SMALL_VOCABULARY
        parts = [torch.zeros(1, dtype=torch.int16 if small else torch.int32, device=device)]
        for array in flat.arrays[::-1]:
            signed = array.view(np.int16) if small and array.dtype == np.uint16 else array.astype(np.int32)
            parts.insert(0, torch.from_numpy(signed).to(device, parts[-1].dtype))
        self.tokens = torch.cat(parts)  # the last one is no one's: an empty text may begin there
        places = (flat.body_at_P, flat.body_lengths_P, flat.title_at_P, flat.title_lengths_P)
        # the last entry, which is that of −1 too, is the null document
        on_device = [torch.from_numpy(np.append(part_P, 0)).to(device) for part_P in places]
        self.body_at_P, self.body_lengths_P, self.title_at_P, self.title_lengths_P = on_device
        self._room = config.max_document - self._layout.special
        self._title_room = min(MAX_TITLE, self._room)

    @classmethod
    def of(
        cls, corpus: Corpus, config: Any, wordpieces: Wordpieces, *, device: torch.device
    ) -> "Resident | None":
        """A corpus on a device; None if it would take too much of its memory."""
        flat = corpus.flat_tokens()
        needed = 4 * sum(len(array) for array in flat.arrays)
        if device.type == "cuda" and needed > _SHARE * torch.cuda.mem_get_info(device)[0]:
            return None
        return cls(flat, config, wordpieces, device=device)

    def queries(self, queries: Queries, size: Size) -> Packed:
        """What the query tower is given, `[CLS] x [SEP]` of each."""
        text = queries.text(self._single.first)
        pieces = _around(self._single, text, [], torch.ones_like(text.lengths_N))
        return pack(pieces, layout=self._single, body=len(pieces) - 1, size=size)

    def _title(self, ids_N: Tensor, segment: int) -> Text:
        return Text(self.tokens, self.title_at_P[ids_N], self.title_lengths_P[ids_N], segment)

    def _body(self, ids_N: Tensor) -> Text:
        return Text(self.tokens, self.body_at_P[ids_N], self.body_lengths_P[ids_N], self._layout.second)

    # --- documents: [CLS] title [SEP] body [SEP] ------------------------------------------------------------

    def _document(self, ids_N: Tensor) -> tuple[Text, Text]:
        title = self._title(ids_N, self._layout.first)
        title = title.cut(torch.full_like(title.lengths_N, self._title_room))
        return title, self._body(ids_N).cut(self._room - title.lengths_N)

    def document_lengths(self, ids_N: Tensor) -> Tensor:
        """Wordpieces of what the document tower is given, special tokens too."""
        title, body = self._document(ids_N)
        return title.lengths_N + body.lengths_N + self._layout.special

    def documents(self, ids_N: Tensor, size: Size, *, there_N: Tensor | None = None) -> Packed:
        """What the document tower is given; where a passage is not `there`, nothing."""
        title, body = self._document(ids_N)
        ones_N = torch.ones_like(title.lengths_N) if there_N is None else there_N.long()
        title = replace(title, lengths_N=title.lengths_N * ones_N)
        body = replace(body, lengths_N=body.lengths_N * ones_N)
        pieces = _around(self._layout, title, [body], ones_N)
        return pack(pieces, layout=self._layout, body=_body_place(self._layout), size=size)

    # --- pairs: [CLS] x [SEP] body [SEP], or [CLS] x [SEP] title [SEP] body [SEP] ---------------------------

    def _pair(self, query: Text, ids_N: Tensor) -> list[Piece]:
        """What follows the query."""
        room_N = self._config.max_joint - self._layout.special - query.lengths_N
        head: list[Piece] = []
        if self._config.read_titles:
            title = self._title(ids_N, self._layout.second).cut(room_N)
            room_N = room_N - title.lengths_N
            head.append(title)
            for token, _ in self._layout.between:
                there_N = (title.lengths_N > 0).long() * (room_N > 0)
                head.append(Special(token, self._layout.second, there_N))
                room_N = room_N - there_N
        return [*head, self._body(ids_N).cut(room_N)]

    def pair_lengths(self, queries: Queries, rows_N: Tensor, ids_N: Tensor) -> Tensor:
        """Wordpieces of what the reader is given, special tokens too."""
        query = queries.text(self._layout.first, rows_N)
        lengths = [piece.lengths_N for piece in (query, *self._pair(query, ids_N))]
        return torch.stack(lengths).sum(0) + self._layout.special

    def pairs(self, queries: Queries, rows_N: Tensor, ids_N: Tensor, size: Size) -> Packed:
        """What the reader is given of these queries, each with its passage."""
        query = queries.text(self._layout.first, rows_N)
        second = self._pair(query, ids_N)
        pieces = _around(self._layout, query, second, torch.ones_like(query.lengths_N))
        title = _body_place(self._layout)  # or the body, where no title is read
        body = title + len(second) - 1
        return pack(pieces, layout=self._layout, body=body, size=size, title=title)

    def bodies(self, ids_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The first wordpieces of these passages' bodies [N, width], and how long the bodies are [N]."""
        lengths_N = self.body_lengths_P[ids_N]
        places = self.body_at_P[ids_N][:, None] + torch.arange(width, device=self.device)
        return self.tokens[places.clamp(max=len(self.tokens) - 1)], lengths_N


def _body_place(layout: Layout) -> int:
    return len(layout.before) + 1 + len(layout.between)


def _around(layout: Layout, first: Text, second: Sequence[Piece], there_N: Tensor) -> list[Piece]:
    """The texts with the special tokens around them."""

    def special(tokens: Sequence[tuple[int, int]]) -> list[Piece]:
        return [Special(token, segment, there_N) for token, segment in tokens]

    between = special(layout.between) if second else []
    return [*special(layout.before), first, *between, *second, *special(layout.after)]
