"""Reading p(y|z,x): queries joined with the passages offered to them, masks predicted, spans scored.

Training, evaluation and asking all read through these functions. B queries, K passages each, N = B · K pairs,
M masks, L wordpieces, H hidden size, W span widths, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realmlm.model.encoders import Reader
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import (
    answer_log_likelihood,
    marginal_log_likelihood,
    span_log_probabilities,
    span_mask,
    weighed_together,
)
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import Offered


def join(model: Realm, queries: list[np.ndarray], offered: Offered) -> Inputs:
    """Every query with each passage that is offered to it, as the reader reads them, N = B · K of them."""
    repeated = [query for query in queries for _ in range(offered.k)]
    return model.reader_inputs(repeated, offered.titles_N, offered.bodies_N)


@dataclass(frozen=True)
class MaskReading:
    """What the reader expects at the masks of each query, for each passage."""

    log_BKMV: Tensor  # log p over the vocabulary
    hidden_NLH: Tensor  # what its encoder gave
    inputs: Inputs  # and was given


def read_masks(model: Realm, inputs: Inputs, positions_BM: Tensor) -> MaskReading:
    """Read queries joined with as many passages each, the masks of a query at `positions_BM`."""
    k = len(inputs.tokens_NL) // len(positions_BM)
    hidden_NLH = model.reader.encoder(inputs)
    log_NMV = model.reader.masks_from(hidden_NLH, inputs, positions_BM.repeat_interleave(k, dim=0))
    return MaskReading(log_NMV.unflatten(0, (-1, k)), hidden_NLH, inputs)


@dataclass(frozen=True)
class SpanReading:
    """How likely each span of each pair's passage is the answer.

    Spans are told by their first wordpiece, counted from the first one of the body; those of the title come
    before it, −1 is the title's last.
    """

    weight_N: Tensor  # what weighs the passages against each other: f + g, or with the spans' own scores
    logit_N: Tensor | None  # g(x,z), if the reader has learned it
    log_NLW: Tensor  # log p(s|z,x)
    allowed_NLW: Tensor  # which spans there are
    body_N: Tensor  # the column of the body's first wordpiece
    apart: int  # columns between the title's last and that

    @classmethod
    def of(
        cls,
        model: Realm,
        scores_N: Tensor,
        logit_N: Tensor | None,
        spans: tuple[Tensor, Tensor],
        *,
        body_N: Tensor,
        apart: int = 0,
    ) -> "SpanReading":
        """From f(x,z), g(x,z), and the scores of spans with which of them there are.

        f + g takes the place of f in p(z|x): passages are weighed by what the reader says of them too.
        """
        scores_NLW, allowed_NLW = spans
        weight_N = scores_N if logit_N is None else scores_N + logit_N
        if model.config.weighs_together:
            weight_N = weighed_together(weight_N, scores_NLW, allowed_NLW)
        log_NLW = span_log_probabilities(scores_NLW, allowed_NLW)
        return cls(weight_N, logit_N, log_NLW, allowed_NLW, body_N, apart)

    def firsts(self, columns_NS: Tensor) -> Tensor:
        """The first wordpieces of spans that begin in these columns."""
        firsts_NS = columns_NS - self.body_N[:, None]
        return torch.where(firsts_NS < 0, firsts_NS + self.apart, firsts_NS)


def read_spans(model: Realm, inputs: Inputs, scores_N: Tensor) -> SpanReading:
    """Score all spans of joined queries and passages, whose f(x,z) are `scores_N`."""
    hidden_NLH = model.reader.encoder(inputs)
    spans = model.reader.spans_from(hidden_NLH, inputs, titles=model.config.title_answers)
    logit_N = model.reader.passage_logits(hidden_NLH, inputs)
    apart = len(inputs.layout.between)
    return SpanReading.of(model, scores_N, logit_N, spans, body_N=inputs.second_N, apart=apart)


def log_spans(reader: Reader, hidden_NLH: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """log p(s|z,x), the scores behind it and which spans there are [N, L, W], from the encoder's output."""
    scores_NLW, allowed_NLW = reader.spans_from(hidden_NLH, inputs)
    return span_log_probabilities(scores_NLW, allowed_NLW), scores_NLW, allowed_NLW


# --- pointing: where in a passage the hidden words stand, marked as answers to questions are ---------------


def places_of(words: np.ndarray, tokens: np.ndarray, lengthens: np.ndarray) -> np.ndarray:
    """Where in the tokens these words stand in a row, not as the beginning of longer ones (`Wordpieces`):
    "Berlin" does not stand in "the Berliner"."""
    places = np.flatnonzero(tokens[: max(0, len(tokens) - len(words) + 1)] == words[0])
    for offset in range(1, len(words)):
        places = places[tokens[places + offset] == words[offset]]
    ends = places + len(words)
    return places[(ends == len(tokens)) | ~lengthens[tokens[np.minimum(ends, len(tokens) - 1)]]]


def standing(
    runs: Sequence[np.ndarray | None], bodies: Sequence[np.ndarray], inputs: Inputs, lengthens: np.ndarray
) -> np.ndarray:
    """Where hidden words stand in the passage beside, as `places_of` finds them: (row, start, width − 1) of
    each place [spans, 3]."""
    found = [np.zeros((0, 3), dtype=np.int64)]
    length = inputs.tokens_NL.shape[1]
    for row, (words, body, second) in enumerate(zip(runs, bodies, inputs.second_N.tolist(), strict=True)):
        if words is None:
            continue
        places = places_of(words, body, lengthens)
        places = places[places + second + len(words) <= length] + second
        columns = (np.full_like(places, row), places, np.full_like(places, len(words) - 1))
        found.append(np.stack(columns, axis=1))
    return np.concatenate(found)


def point(reader: Reader, reading: MaskReading, gold_N3: np.ndarray) -> tuple[Tensor, Tensor]:
    """log p(the words where they stand|z,x) [N], −inf where they do not; and where they do [N].

    `gold_N3` is where they stand, as `standing` gives it. Only pairs whose passage has them are computed.
    """
    inputs = reading.inputs
    device = reading.hidden_NLH.device
    log_p_N = torch.full((len(inputs.tokens_NL),), -torch.inf, device=device)
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
    """log Σ_z p(z|x) p(the words where they stand|z,x) [B], 0 without gradient if no passage has them; and
    for which sentences one has. `point` gives the last two arguments."""
    some_B = held_N.view_as(retrieval_BK).any(-1)
    point_BK = point_N.view_as(retrieval_BK).masked_fill(~some_B[:, None], 0.0)
    return marginal_log_likelihood(retrieval_BK, point_BK).masked_fill(~some_B, 0.0), some_B
