"""Reading p(y|z,x): queries joined with the passages offered to them, masks predicted, spans scored.

Training, evaluation and asking all read through these functions. B queries, K passages each, N = B · K pairs,
M masks, L wordpieces, H hidden size, W span widths, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from realmlm.model.encoders import Reader
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import span_log_probabilities, weighed_together
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import Offered


def join(model: Realm, queries: list[np.ndarray], offered: Offered) -> Inputs:
    """Every query with each passage that is offered to it, as the reader reads them, N = B · K of them."""
    repeated = [query for query in queries for _ in range(offered.k)]
    return model.reader_inputs(repeated, offered.titles_of_pairs(), offered.bodies_of_pairs())


@dataclass(frozen=True)
class MaskReading:
    """What the reader expects at the masks of each query, for each passage."""

    log_BKMV: Tensor  # log p over the vocabulary
    hidden_NLH: Tensor  # what its encoder gave
    inputs: Inputs  # and was given


def read_masks(model: Realm, inputs: Inputs, positions_BM: Tensor) -> MaskReading:
    """Read queries joined with as many passages each, the masks of a query at `positions_BM`."""
    k = len(inputs) // len(positions_BM)
    hidden_NLH = model.reader.encoder(inputs)
    log_NMV = model.reader.masks_from(hidden_NLH, inputs, positions_BM.repeat_interleave(k, dim=0))
    return MaskReading(log_NMV.unflatten(0, (-1, k)), hidden_NLH, inputs)


@dataclass(frozen=True)
class SpanReading:
    """How likely each span of each pair's passage is the answer."""

    weight_N: Tensor  # what weighs the passages against each other: f(x,z), or with the spans' own scores
    log_NLW: Tensor  # log p(s|z,x)
    allowed_NLW: Tensor  # which spans there are


def read_spans(model: Realm, inputs: Inputs, scores_N: Tensor) -> SpanReading:
    """Score all spans of joined queries and passages, whose f(x,z) are `scores_N`."""
    log_NLW, scores_NLW, allowed_NLW = log_spans(model.reader, model.reader.encoder(inputs), inputs)
    weight_N = scores_N
    if model.config.weighs_together:
        weight_N = weighed_together(scores_N, scores_NLW, allowed_NLW)
    return SpanReading(weight_N, log_NLW, allowed_NLW)


def log_spans(reader: Reader, hidden_NLH: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """log p(s|z,x), the scores behind it, and which spans there are, all [N, L, W]; from what the reader's
    encoder gave for these inputs."""
    scores_NLW, allowed_NLW = reader.spans_from(hidden_NLH, inputs)
    return span_log_probabilities(scores_NLW, allowed_NLW), scores_NLW, allowed_NLW
