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
from realmlm.model.marginal import answer_log_likelihood, span_log_probabilities, span_mask
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


def point(reader: Reader, hidden_NLH: Tensor, inputs: Inputs, gold_N3: np.ndarray) -> tuple[Tensor, Tensor]:
    """log p(the words where they stand|z,x) [N], −inf where they do not; and where they do [N]. Only those
    rows are computed."""
    log_p_N = torch.full((len(inputs),), -torch.inf, device=hidden_NLH.device)
    rows_n, gold_rows = np.unique(gold_N3[:, 0], return_inverse=True)
    if not len(rows_n):
        return log_p_N, log_p_N > -torch.inf
    part = inputs.rows(rows_n)
    places_n = torch.from_numpy(rows_n).to(hidden_NLH.device)
    scores_nLW, allowed_nLW = reader.spans_from(hidden_NLH[places_n, : part.tokens_NL.shape[1]], part)
    gold_nLW = span_mask(np.column_stack([gold_rows, gold_N3[:, 1:]]), allowed_nLW)
    log_p_n = answer_log_likelihood(span_log_probabilities(scores_nLW, allowed_nLW), gold_nLW)
    log_p_N = log_p_N.index_put((places_n,), log_p_n)
    return log_p_N, log_p_N > -torch.inf
