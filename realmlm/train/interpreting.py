"""Where the wordpieces of a teacher's tokenizer are among those of its student's, by their characters.

N pairs of question and passage, T wordpieces of a passage, L columns and W widths of a teacher's spans, J
columns and V widths of its student's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.reading.read import SpanReading


class Columns(NamedTuple):
    """How the spans of a reading are told: as in `SpanReading`, whose columns and widths these are."""

    body_N: Tensor
    apart: int
    columns: int
    widths: int

    @classmethod
    def of(cls, reading: SpanReading) -> "Columns":
        """Those of a reading."""
        return cls(reading.body_N, reading.apart, *reading.log_NLW.shape[1:])


@dataclass(frozen=True)
class Retold:
    """A passage in a teacher's wordpieces."""

    title: np.ndarray
    body: np.ndarray
    places_T2: np.ndarray
    """For each wordpiece of title and body the first of the student's that it touches and past the last,
    counted from the student's body: those of a title are below 0, or at it."""


class Interpreter:
    """Passages of a student's corpus in a teacher's wordpieces, each taken apart once.

    student   the   her   ##on   builds        a span of the teacher's, "heron builds", is (1, 3) there:
    teacher   the   heron   build   ##s        (1, 4) among the student's, from the first wordpiece that
    places    0:1   1:3     3:4     3:4        it touches to past the last
    """

    def __init__(self, corpus: Corpus, wordpieces: Wordpieces) -> None:
        self._corpus = corpus
        self._wordpieces = wordpieces
        self._known: dict[int, Retold] = {}

    def passages(self, ids_N: np.ndarray) -> list[Retold]:
        """These passages, in this order."""
        new = [number for number in np.unique(ids_N).tolist() if number not in self._known]
        texts = [part for number in new for part in (self._corpus[number].title, self._corpus.text(number))]
        encodings = iter(self._wordpieces.encode_batch(texts))
        for number, title, body in zip(new, encodings, encodings, strict=False):
            own = self._corpus.title_chars(number)
            head = np.array(title.offsets[:MAX_TITLE], dtype=np.int64).reshape(-1, 2)
            rest = np.array(body.offsets, dtype=np.int64).reshape(-1, 2)
            places = [touched(own, head) - len(own), touched(self._corpus.token_chars(number), rest)]
            first, second = (np.array(part, dtype=np.int64) for part in (title.ids[:MAX_TITLE], body.ids))
            self._known[number] = Retold(first, second, np.concatenate(places))
        return [self._known[number] for number in ids_N.tolist()]


def touched(chars_S2: np.ndarray, others_T2: np.ndarray) -> np.ndarray:
    """For spans of characters, the first of these wordpieces [S, 2] that each touches and past the last
    [T, 2]; where it touches none, the two are the same."""
    firsts_T = np.searchsorted(chars_S2[:, 1], others_T2[:, 0], side="right")
    lasts_T = np.searchsorted(chars_S2[:, 0], others_T2[:, 1], side="left")
    return np.stack([firsts_T, np.maximum(firsts_T, lasts_T)], axis=1)


def retell(reading: SpanReading, passages: Sequence[Retold], to: Columns) -> SpanReading:
    """A teacher's reading of passages in the columns of its student: each span's probability goes to the span
    of the student's wordpieces that it touches. What has no place there is lost."""
    device = reading.log_NLW.device
    count, length, width = reading.log_NLW.shape
    longest = max(len(passage.body) for passage in passages)
    table = np.zeros((count, MAX_TITLE + longest, 2), dtype=np.int64)
    for row, passage in zip(table, passages, strict=True):
        first = MAX_TITLE - len(passage.title)
        row[first : first + len(passage.places_T2)] = passage.places_T2
    places_NT2 = torch.from_numpy(table).to(device)
    columns_NL = torch.arange(length, device=device).expand(count, -1)
    own_NL = (reading.firsts(columns_NL) + MAX_TITLE).clamp(min=0, max=places_NT2.shape[1] - 1)
    first_NL, past_NL = (part_NT.gather(1, own_NL) for part_NT in places_NT2.unbind(-1))
    past_NLW = F.pad(past_NL, (0, width - 1)).unfold(1, width, 1)
    widths_NLW = past_NLW - first_NL[:, :, None]
    column_NL = to.body_N.to(device)[:, None] + first_NL - (first_NL < 0) * to.apart
    there_NL = (column_NL >= 0) & (column_NL < to.columns)
    fits_NLW = reading.allowed_NLW & (widths_NLW >= 1) & (widths_NLW <= to.widths) & there_NL[:, :, None]
    row_N11 = torch.arange(count, device=device)[:, None, None] * to.columns
    target_NLW = (row_N11 + column_NL[:, :, None]) * to.widths + widths_NLW - 1
    p_NLW = reading.log_NLW.float().exp().masked_fill(~fits_NLW, 0.0)
    told = p_NLW.new_zeros(count * to.columns * to.widths)
    told = told.scatter_add(0, target_NLW.masked_fill(~fits_NLW, 0).flatten(), p_NLW.flatten())
    log_NJV = told.log().view(count, to.columns, to.widths)
    return SpanReading(reading.weight_N, reading.logit_N, log_NJV, log_NJV > -torch.inf, to.body_N, to.apart)
