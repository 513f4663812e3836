"""Pointing: the reader marks where in a passage the hidden words of a sentence stand, as it will mark answers
to questions.

N pairs of sentence and passage, n of them with the words in the passage, L wordpieces, H hidden size, W span
widths.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from realmlm.model.encoders import Reader
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import answer_log_likelihood, marginal_log_likelihood, span_mask
from realmlm.reading.read import MaskReading, log_spans
from realmlm.train.data import places_of


def standing(runs: Sequence[np.ndarray | None], bodies: Sequence[np.ndarray], inputs: Inputs) -> np.ndarray:
    """Where each run of hidden words stands in the passage beside it: (row, start, width − 1) of every place
    [spans, 3]."""
    found = [np.zeros((0, 3), dtype=np.int64)]
    length = inputs.tokens_NL.shape[1]
    for row, (words, body, second) in enumerate(zip(runs, bodies, inputs.second_N.tolist(), strict=True)):
        if words is None:
            continue
        places = places_of(words, body)
        places = places[places + second + len(words) <= length] + second
        found.append(
            np.stack([np.full_like(places, row), places, np.full_like(places, len(words) - 1)], axis=1)
        )
    return np.concatenate(found)


def point(reader: Reader, reading: MaskReading, gold_N3: np.ndarray) -> tuple[Tensor, Tensor]:
    """log p(the words where they stand|z,x) [N], −inf where they do not; and where they do [N].

    `gold_N3` is where they stand, as `standing` gives it. Only pairs whose passage has them are computed.
    """
    inputs = reading.inputs
    device = reading.hidden_NLH.device
    log_p_N = torch.full((len(inputs),), -torch.inf, device=device)
    rows_n, gold_rows = np.unique(gold_N3[:, 0], return_inverse=True)
    if not len(rows_n):
        return log_p_N, log_p_N > -torch.inf
    part = inputs.rows(rows_n)
    places_n = torch.from_numpy(rows_n).to(device)
    hidden_nLH = reading.hidden_NLH[places_n, : part.tokens_NL.shape[1]]
    log_nLW, _, allowed_nLW = log_spans(reader, hidden_nLH, part)
    gold_nLW = span_mask(np.column_stack([gold_rows, gold_N3[:, 1:]]), allowed_nLW)
    log_p_N = log_p_N.index_put((places_n,), answer_log_likelihood(log_nLW, gold_nLW))
    return log_p_N, log_p_N > -torch.inf


def pointing_log_likelihood(retrieval_BK: Tensor, point_N: Tensor, held_N: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ_z p(z|x) p(the words where they stand|z,x) [B], and for which sentences a passage has them; 0
    where none does, so that there is no gradient and no NaN. The last two are what `point` gives."""
    some_B = held_N.view_as(retrieval_BK).any(-1)
    point_BK = point_N.view_as(retrieval_BK).masked_fill(~some_B[:, None], 0.0)
    return marginal_log_likelihood(retrieval_BK, point_BK).masked_fill(~some_B, 0.0), some_B


def mean_where(valid_B: Tensor, values_B: Tensor) -> Tensor:
    """Mean over the valid entries, for the row; 0 if there is none."""
    return torch.where(valid_B, values_B, 0.0).sum() / valid_B.sum().clamp(min=1)
