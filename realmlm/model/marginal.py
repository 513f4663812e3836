"""The equations of the paper, in log space. Everything here is differentiable and has no state.

B queries, K passages each (the null document among them), C candidates each, M masked wordpieces, N (query,
passage) pairs, U passages of a batch, L wordpieces, W span widths, S spans of all passages of a query, V
vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def marginal_log_likelihood(retrieval_BK: Tensor, reader_BK: Tensor) -> Tensor:
    """log p(y|x) = log Σ_z p(z|x) p(y|z,x), eq. 1. Inputs are unnormalised f(x,z) and log p(y|z,x)."""
    return torch.logsumexp(retrieval_BK.log_softmax(-1) + reader_BK, dim=-1)


def hidden_log_p(vocabulary_BKMV: Tensor, targets_BM: Tensor) -> Tensor:
    """log p(y_j|z,x) [B, K, M] of the wordpieces that the masks hide, from log p over the vocabulary."""
    targets_BKM1 = targets_BM[:, None, :, None].expand(*vocabulary_BKMV.shape[:3], 1)
    return vocabulary_BKMV.gather(3, targets_BKM1)[..., 0]


def joint_reading(token_BKM: Tensor, valid_BM: Tensor) -> Tensor:
    """log p(y|z,x) = Σ_j log p(y_j|z,x), the product over the masks of a query, from log p(y_j|z,x)."""
    return (token_BKM * valid_BM[:, None, :]).sum(-1)


def per_token_marginal(retrieval_BK: Tensor, token_BKM: Tensor, valid_BM: Tensor) -> Tensor:
    """Σ_j log Σ_z p(z|x) p(y_j|z,x): a passage for each mask anew, as in the authors' released code."""
    mixed_BM = torch.logsumexp(retrieval_BK.log_softmax(-1)[:, :, None] + token_BKM, dim=1)
    return (mixed_BM * valid_BM).sum(-1)


def posterior(retrieval_BK: Tensor, reader_BK: Tensor) -> Tensor:
    """p(z|x,y): how much of the answer's probability each passage carries."""
    return (retrieval_BK.log_softmax(-1) + reader_BK).softmax(-1)


def divergence(target_BK: Tensor, retrieval_BK: Tensor) -> Tensor:
    """KL(q(z) ‖ p(z|x)) [B] of a target q that is given as it is."""
    return (torch.xlogy(target_BK, target_BK) - target_BK * retrieval_BK.log_softmax(-1)).sum(-1)


def taught_apart(
    weight_BK: Tensor,
    retrieval_BK: Tensor,
    reader_BK: Tensor,
    target: str,
    teacher_BK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What f(x,z) learns from y, if not by the marginal likelihood: KL(q(z) ‖ p(z|x)) [B], to be made small.

    `posterior`: q(z) = p(z|x,y), as EMDR² (Sachan et al. 2021) teaches its retriever. Where f(x,z) alone
    weighs the passages, that has the gradient of eq. 1. `perplexity`: q(z) ∝ p(y|z,x), perplexity
    distillation as in Atlas (Izacard et al. 2023): what the retriever thought does not count. `teacher`: q is
    another reader's p(z|x,y), given as `teacher_BK`. q has no gradient.

    `weight_BK` weighs the passages in p(y|x): f(x,z), or f(x,z) and more. It is given back without what the
    marginal would teach f(x,z); for the target `marginal` as it is, with 0.
    """
    if target == "marginal":
        return weight_BK, torch.zeros_like(weight_BK[:, 0])
    target_BK = teacher_BK
    if target_BK is None:
        target_BK = posterior(weight_BK, reader_BK) if target == "posterior" else reader_BK.softmax(-1)
    without_BK = weight_BK - retrieval_BK + retrieval_BK.detach()
    return without_BK, divergence(target_BK.detach(), retrieval_BK)


def retrieval_reward(retrieval_BK: Tensor, reader_BK: Tensor) -> Tensor:
    """r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), the gradient of log p(y|x) by f(x,z) (appendix A)."""
    return posterior(retrieval_BK, reader_BK) - retrieval_BK.softmax(-1)


def retrieval_utility(reader_BK: Tensor, null_B: Tensor) -> Tensor:
    """RU(z|x) = log p(y|z,x) − log p(y|∅,x) (appendix D)."""
    return reader_BK - null_B[:, None]


def span_mask(spans_N3: np.ndarray, allowed_BLW: Tensor) -> Tensor:
    """Spans given as (row, start, width − 1), as a mask [B, L, W] within what is allowed."""
    mask_BLW = torch.zeros_like(allowed_BLW)
    rows_N, starts_N, widths_N = torch.from_numpy(spans_N3).to(allowed_BLW.device).unbind(1)
    mask_BLW[rows_N, starts_N, widths_N] = True
    return mask_BLW & allowed_BLW


def span_log_probabilities(scores_NLW: Tensor, allowed_NLW: Tensor) -> Tensor:
    """log p(s|z,x), a softmax over the allowed spans of a passage; −inf for all others."""
    scores_NS = scores_NLW.masked_fill(~allowed_NLW, -torch.inf).flatten(1)
    empty_N = ~allowed_NLW.flatten(1).any(-1)
    return (scores_NS - _safe_logsumexp(scores_NS, empty_N)[:, None]).view_as(scores_NLW)


def weighed_together(retrieval_BK: Tensor, scores_NLW: Tensor, allowed_NLW: Tensor) -> Tensor:
    """f(x,z) + log Σ_s exp score(s) [B, K]: instead of f(x,z) it makes one softmax over all passages' spans.

    The form in the authors' released code. A passage without any allowed span gets no weight.
    """
    scores_NS = scores_NLW.masked_fill(~allowed_NLW, -torch.inf).flatten(1)
    empty_N = ~allowed_NLW.flatten(1).any(-1)
    total_N = _safe_logsumexp(scores_NS, empty_N).masked_fill(empty_N, torch.finfo(scores_NS.dtype).min)
    return retrieval_BK + total_N.view_as(retrieval_BK)


def judged_log_likelihood(logit_BK: Tensor, holds_BK: Tensor) -> Tensor:
    """½ mean log σ(g(x,z)) over passages that hold the answer + ½ mean log σ(−g(x,z)) over the others [B].

    Where only one of the two kinds was read, its half alone. Both kinds count alike however many passages are
    read: so g becomes the log of a likelihood ratio, log p(what was read|z answers) / p(what was read|it does
    not), and exp(f + g) is prior times likelihood (Bayes), the weight of a passage in eq. 1.
    """
    right_BK = F.logsigmoid(torch.where(holds_BK, logit_BK, -logit_BK))
    halves = [
        torch.where(kind_BK, right_BK, 0.0).sum(-1) / kind_BK.sum(-1).clamp(min=1)
        for kind_BK in (holds_BK, ~holds_BK)
    ]
    return (halves[0] + halves[1]) / 2


def answer_log_likelihood(span_NLW: Tensor, gold_NLW: Tensor) -> Tensor:
    """log p(y|z,x) = log Σ_{s ∈ S(z,y)} p(s|z,x); −inf where the passage does not hold the answer."""
    gold_NS = gold_NLW.flatten(1)
    without_N = ~gold_NS.any(-1)
    total_N = _safe_logsumexp(span_NLW.flatten(1).masked_fill(~gold_NS, -torch.inf), without_N)
    return total_N.masked_fill(without_N, -torch.inf)


def passages_and_spans(weight_BK: Tensor, span_NLW: Tensor) -> Tensor:
    """log p(z,s|x) = log p(z|x) + log p(s|z,x) [B, S] of every span of every passage of a query, from what
    weighs the passages and log p(s|z,x); −inf for what is no span. Where spans are weighed together it is
    their softmax over all passages."""
    log_N = weight_BK.log_softmax(-1).flatten()
    return (log_N[:, None, None] + span_NLW).reshape(len(weight_BK), -1)


def span_distillation(teacher_BS: Tensor, student_BS: Tensor, most: int) -> Tensor:
    """KL(q ‖ p) [B] of a teacher's distribution q over spans, given as log q, and a student's, log p: over
    the `most` spans that are likeliest to the teacher, and all others as one (knowledge distillation, Hinton
    et al. 2015). −inf is no span to either; log q has no gradient."""
    best_BM = teacher_BS.topk(most, dim=-1).indices

    def grouped(log_BS: Tensor) -> Tensor:
        others_BS = log_BS.scatter(1, best_BM, -torch.inf)
        none_B = others_BS.amax(-1) == -torch.inf
        rest_B = _safe_logsumexp(others_BS, none_B).masked_fill(none_B, -torch.inf)
        return torch.cat([log_BS.gather(1, best_BM), rest_B[:, None]], dim=1)

    log_q_BM = grouped(teacher_BS.detach())
    nothing_BM = log_q_BM == -torch.inf
    log_p_BM = grouped(student_BS).masked_fill(nothing_BM, 0.0)
    log_q_BM = log_q_BM.masked_fill(nothing_BM, 0.0)
    return (log_q_BM.exp() * (log_q_BM - log_p_BM)).masked_fill(nothing_BM, 0.0).sum(-1)


def passage_distillation(teacher_BK: Tensor, student_BK: Tensor) -> Tensor:
    """Mean over the passages of KL(σ(g_T) ‖ σ(g_S)) [B], of yes or no to each: does it answer the question?
    From the teacher's g(x,z), which has no gradient, and the student's."""
    teacher_BK = teacher_BK.detach()
    told = [
        torch.sigmoid(sign * teacher_BK) * (F.logsigmoid(sign * teacher_BK) - F.logsigmoid(sign * student_BK))
        for sign in (1, -1)
    ]
    return (told[0] + told[1]).mean(-1)


def _safe_logsumexp(scores_NS: Tensor, empty_N: Tensor) -> Tensor:
    """logsumexp whose gradient is 0, not NaN, for the rows that are empty (all −inf)."""
    return torch.logsumexp(scores_NS.masked_fill(empty_N[:, None], 0.0), dim=-1)


def best_span_log_likelihood(span_NLW: Tensor, gold_NLW: Tensor) -> Tensor:
    """log max_{s ∈ S(z,y)} p(s|z,x): the likeliest place alone (hard EM, Min et al. 2019), or −inf."""
    return span_NLW.flatten(1).masked_fill(~gold_NLW.flatten(1), -torch.inf).max(-1).values


def evidence_log_likelihood(scores_BC: Tensor, holds_BC: Tensor) -> Tensor:
    """log Σ_{z holds the answer} p(z|x) among the candidates; 0, without gradient, where none does."""
    some_B1 = holds_BC.any(-1, keepdim=True)
    return torch.logsumexp(scores_BC.log_softmax(-1).masked_fill(~(holds_BC | ~some_B1), -torch.inf), dim=-1)


def inner_products(query_BD: Tensor, document_ND: Tensor) -> Tensor:
    """f(x,z) = Embed_query(x)ᵀ Embed_doc(z) [B, N], or [B, C] of each query's own documents [B, C, D].

    Always in float32: in bfloat16 5,000 candidates would share some fifty different scores.
    """
    with torch.autocast(query_BD.device.type, enabled=False):
        query_BD = query_BD.float()
        document_ND = document_ND.float()
        if document_ND.ndim == 2:
            return query_BD @ document_ND.T
        return torch.einsum("bd,bcd->bc", query_BD, document_ND)


def contrast(scores_BU: Tensor, own_B: Tensor, others_BU: Tensor) -> tuple[Tensor, Tensor]:
    """−log p(z⁺|x) among z⁺, in column `own_B`, and the others it is told from (Karpukhin et al. 2020,
    eq. 2); and is z⁺ the likeliest? [B]."""
    scores_BU = scores_BU.masked_fill(~others_BU.scatter(1, own_B[:, None], True), -torch.inf)
    return F.cross_entropy(scores_BU, own_B, reduction="none"), scores_BU.argmax(-1) == own_B


def in_batch_contrast(scores_BN: Tensor, passages_N: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Inverse cloze task (Lee et al. 2019): −log p(z_i|x_i) within the batch, and is z_i the likeliest? [B].
    The passages of these queries begin in column `first`.

    No passage is its own negative, nor is any with the same number: ids, or numbers of equal words.
    """
    own_B = torch.arange(first, first + len(scores_BN), device=scores_BN.device)
    return contrast(scores_BN, own_B, passages_N[own_B][:, None] != passages_N)


def among_all(scores_BU: Tensor, own_BK: Tensor, others_BU: Tensor) -> Tensor:
    """log p(z|x) [B, K] of a query's own passages, in columns `own_BK`, among these and the others of the
    batch: nearer to the sum over all of Z in eq. 1 than a softmax over its own."""
    counted_BU = others_BU.scatter(1, own_BK, True)
    return scores_BU.masked_fill(~counted_BU, -torch.inf).log_softmax(-1).gather(1, own_BK)
