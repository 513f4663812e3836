"""The reader's heads over vectors that were picked out of packed sequences.

n vectors, or n passages of J wordpieces; H hidden size, V vocabulary, W span widths, S hidden size of the
span head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.model.attention import for_kernels
from realmlm.model.packed_encoders import Call, call_compiled, call_plain

AT_ONCE = 2**17  # wordpieces whose spans are scored at once where no gradient is needed
_ROWS = 4  # wordpieces of a program: each warp has one


def _call(compiled: bool) -> Call:
    return call_compiled if compiled else call_plain


def target_log_p(reader: Any, hidden_nH: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
    """log p of one wordpiece at each place [n], float32, and whether it is the likeliest there."""
    head = reader.mask_head
    return _call(reader.encoder.compiled)(
        _target_log_p,
        hidden_nH,
        targets_n,
        (head.dense.weight, head.dense.bias),
        (head.norm.weight, head.norm.bias),
        (reader.embedding.weight, head.bias),
        eps=head.norm.eps,
    )


def _target_log_p(
    hidden_nH: Tensor,
    targets_n: Tensor,
    dense: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    words: tuple[Tensor, Tensor],
    *,
    eps: float,
) -> tuple[Tensor, Tensor]:
    changed_nH = F.layer_norm(F.gelu(F.linear(hidden_nH, *dense)), norm[0].shape, *norm, eps)
    logits_nV = F.linear(changed_nH, *words).float()
    target_n = logits_nV.gather(1, targets_n[:, None])[:, 0]
    return target_n - torch.logsumexp(logits_nV, dim=1), target_n >= logits_nV.amax(1)


def span_scores(reader: Any, hidden_nJH: Tensor) -> Tensor:
    """Scores [n, J, W], float32: entry (j, w) is the span from j to j + w; past the end it means nothing."""
    if len(hidden_nJH) == 1 and not torch.is_grad_enabled():
        half_TH = hidden_nJH[0].bfloat16() if reader.encoder.quick else hidden_nJH[0]
        if for_kernels(half_TH):
            return score_spans(reader.span_head, half_TH)[None]
    few = max(1, AT_ONCE // max(1, len(hidden_nJH)))
    if torch.is_grad_enabled() or hidden_nJH.shape[1] <= few:
        return _scored(reader, hidden_nJH)
    beyond = reader.span_head.max_width - 1
    parts = [hidden_nJH[:, at : at + few + beyond] for at in range(0, hidden_nJH.shape[1], few)]
    return torch.cat([_scored(reader, part)[:, :few] for part in parts], dim=1)


@torch.no_grad()
def score_spans(head: Any, hidden_TH: Tensor) -> Tensor:
    """Scores [T, W] of the spans of one sequence by a kernel, which gives no gradient."""
    from realmlm.model.span_kernels import score_spans as kernel

    both = head.start_end
    start_end = F.linear(hidden_TH, both.weight.to(hidden_TH.dtype), both.bias.to(hidden_TH.dtype))
    output_S = head.output.weight.float().flatten()
    slope = head.norm.weight.float() * output_S
    level = head.norm.bias.float() @ output_S + head.output.bias.float()
    scores_TW = hidden_TH.new_empty(len(hidden_TH), head.max_width, dtype=torch.float32)
    size = len(output_S)
    with torch.cuda.device_of(hidden_TH):  # Triton takes the current GPU, whatever the tensors are on
        kernel[(-(-len(hidden_TH) // _ROWS),)](
            start_end.contiguous(),
            slope,
            level,
            scores_TW,
            len(hidden_TH),
            head.max_width,
            head.norm.eps,
            S=size,
            COLUMNS=1 << (size - 1).bit_length(),
            R=_ROWS,
        )
    return scores_TW


def _scored(reader: Any, hidden_nJH: Tensor) -> Tensor:
    head = reader.span_head
    scores_nJW: Tensor = _call(reader.encoder.compiled)(
        _span_scores,
        hidden_nJH,
        (head.start_end.weight, head.start_end.bias),
        (head.norm.weight, head.norm.bias),
        head.output.weight.flatten(),
        eps=head.norm.eps,
        widths=head.max_width,
    )
    return scores_nJW + head.output.bias.float()


def _span_scores(
    hidden_nJH: Tensor,
    start_end: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    output_S: Tensor,
    *,
    eps: float,
    widths: int,
) -> Tensor:
    length = hidden_nJH.shape[1]
    start_nJS, end_nJS = F.linear(hidden_nJH, *start_end).chunk(2, dim=-1)
    padded_nJS = F.pad(end_nJS, (0, 0, 0, widths - 1))
    scores = []
    for width in range(widths):
        span_nJS = F.relu(start_nJS + padded_nJS[:, width : width + length]).float()
        scores.append((F.layer_norm(span_nJS, norm[0].shape, *norm, eps) * output_S.float()).sum(-1))
    return torch.stack(scores, dim=-1)
