"""The equations against plain sums in float64, finite differences and the paper's closed forms."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from realmlm.model.marginal import (
    among_all,
    answer_log_likelihood,
    contrast,
    divergence,
    hidden_log_p,
    in_batch_contrast,
    inner_products,
    joint_reading,
    judged_log_likelihood,
    marginal_log_likelihood,
    per_token_marginal,
    posterior,
    retrieval_reward,
    retrieval_utility,
    span_log_probabilities,
    taught_apart,
)

scores = st.floats(-8, 8)
sizes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


@given(sizes, st.integers(0, 10_000))
def test_marginal_is_the_plain_sum_over_passages(size: tuple[int, int, int], seed: int) -> None:
    queries, passages, _ = size
    retrieval = draw(seed, queries, passages)
    reader = -draw(seed + 1, queries, passages).abs()
    got = marginal_log_likelihood(retrieval, reader)
    for b in range(queries):
        p = softmax(retrieval[b].tolist())
        plain = sum(p[z] * math.exp(reader[b, z]) for z in range(passages))
        assert got[b].item() == pytest.approx(math.log(plain), abs=1e-9)


@given(sizes, st.integers(0, 10_000))
def test_judging_counts_passages_with_and_without_the_answer_alike(
    size: tuple[int, int, int], seed: int
) -> None:
    queries, passages, _ = size
    logits = draw(seed, queries, passages)
    holds = torch.rand(queries, passages, generator=torch.Generator().manual_seed(seed)) < 0.4
    got = judged_log_likelihood(logits, holds)
    for b in range(queries):
        halves = []
        for kind in (True, False):
            right = [
                -math.log1p(math.exp(-g if kind else g))
                for g, held in zip(logits[b].tolist(), holds[b].tolist(), strict=True)
                if held == kind
            ]
            halves.append(sum(right) / len(right) if right else 0.0)
        assert got[b].item() == pytest.approx(sum(halves) / 2, abs=1e-9)


@given(sizes, st.integers(0, 10_000))
def test_both_marginals_by_loops(size: tuple[int, int, int], seed: int) -> None:
    queries, passages, masks = size
    retrieval = draw(seed, queries, passages)
    vocabulary = -draw(seed + 1, queries, passages, masks, 6).abs()
    targets = torch.randint(6, (queries, masks), generator=torch.Generator().manual_seed(seed))
    token = hidden_log_p(vocabulary, targets)
    for b, z, j in itertools.product(range(queries), range(passages), range(masks)):
        assert token[b, z, j] == vocabulary[b, z, j, targets[b, j]]
    valid = torch.rand(queries, masks, generator=torch.Generator().manual_seed(seed)) < 0.7
    joint = marginal_log_likelihood(retrieval, joint_reading(token, valid))
    single = per_token_marginal(retrieval, token, valid)
    for b in range(queries):
        p = softmax(retrieval[b].tolist())
        kept = [j for j in range(masks) if valid[b, j]]
        product = sum(p[z] * math.prod(math.exp(token[b, z, j]) for j in kept) for z in range(passages))
        mixed = math.prod(sum(p[z] * math.exp(token[b, z, j]) for z in range(passages)) for j in kept)
        assert joint[b].item() == pytest.approx(math.log(product), abs=1e-9)
        assert single[b].item() == pytest.approx(math.log(mixed), abs=1e-9)


@given(sizes, st.integers(0, 10_000))
def test_gradient_by_the_score_is_the_closed_form(size: tuple[int, int, int], seed: int) -> None:
    """∂ log p(y|x) / ∂ f(x,z) = r(z) = [p(y|z,x)/p(y|x) − 1] p(z|x)."""
    queries, passages, _ = size
    retrieval = draw(seed, queries, passages).requires_grad_()
    reader = -draw(seed + 1, queries, passages).abs()
    marginal_log_likelihood(retrieval, reader).sum().backward()
    p = retrieval.detach().softmax(-1)
    likelihood = (p * reader.exp()).sum(-1, keepdim=True)
    closed = (reader.exp() / likelihood - 1) * p
    assert retrieval.grad is not None
    assert torch.allclose(retrieval.grad, closed, atol=1e-10)
    assert torch.allclose(retrieval_reward(retrieval.detach(), reader), closed, atol=1e-10)
    # rewarded only if better than expected
    assert torch.equal(closed > 1e-12, (reader.exp() > likelihood) & (closed > 1e-12))


def test_gradient_against_finite_differences() -> None:
    retrieval = draw(1, 2, 4)
    reader = -draw(2, 2, 4).abs()
    inputs = (retrieval.requires_grad_(), reader.requires_grad_())
    assert torch.autograd.gradcheck(marginal_log_likelihood, inputs)


def test_one_perfect_passage_makes_it_supervised_learning() -> None:
    """p(y|z*,x) = 1 and 0 elsewhere: the gradient equals that of log p(z*|x) (appendix B)."""
    retrieval = draw(3, 5, 6).requires_grad_()
    gold = torch.tensor([0, 3, 5, 2, 2])
    reader = torch.full((5, 6), -torch.inf, dtype=torch.float64)
    reader[torch.arange(5), gold] = 0.0
    (latent,) = torch.autograd.grad(marginal_log_likelihood(retrieval, reader).sum(), retrieval)
    (supervised,) = torch.autograd.grad(retrieval.log_softmax(-1)[torch.arange(5), gold].sum(), retrieval)
    assert torch.allclose(latent, supervised, atol=1e-12)


def test_posterior_is_bayes_rule() -> None:
    retrieval = draw(4, 3, 4)
    reader = -draw(5, 3, 4).abs()
    joint = retrieval.softmax(-1) * reader.exp()
    assert torch.allclose(posterior(retrieval, reader), joint / joint.sum(-1, keepdim=True))


def test_utility_is_the_gain_over_the_null_document() -> None:
    reader = torch.tensor([[-3.0, -1.0, -4.0]])
    assert retrieval_utility(reader, reader[:, 0]).tolist() == [[0.0, 2.0, -1.0]]


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
def test_span_probabilities_by_a_loop_over_all_spans(pairs: int, length: int, widths: int, seed: int) -> None:
    scores_NLW = draw(seed, pairs, length, widths)
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(pairs, length, widths, generator=generator) < 0.6
    gold = torch.rand(pairs, length, widths, generator=generator) < 0.3
    log_p = span_log_probabilities(scores_NLW, allowed)
    answer = answer_log_likelihood(log_p, gold)
    for n in range(pairs):
        spans = [(s, w) for s in range(length) for w in range(widths) if allowed[n, s, w]]
        total = sum(math.exp(scores_NLW[n, s, w]) for s, w in spans)
        for s in range(length):
            for w in range(widths):
                expected = math.log(math.exp(scores_NLW[n, s, w]) / total) if (s, w) in spans else -math.inf
                assert log_p[n, s, w].item() == pytest.approx(expected, abs=1e-9)
        right = sum(math.exp(scores_NLW[n, s, w]) / total for s, w in spans if gold[n, s, w])
        assert answer[n].item() == pytest.approx(math.log(right) if right else -math.inf, abs=1e-9)


def test_passages_without_the_answer_give_no_nan() -> None:
    scores_NLW = draw(8, 3, 4, 2).requires_grad_()
    allowed = torch.ones(3, 4, 2, dtype=torch.bool)
    allowed[2] = False  # an empty passage
    gold = torch.zeros(3, 4, 2, dtype=torch.bool)
    gold[0, 1, 1] = True
    answer = answer_log_likelihood(span_log_probabilities(scores_NLW, allowed), gold)
    assert torch.isneginf(answer[1:]).all()
    torch.where(gold.flatten(1).any(-1), answer, 0.0).sum().backward()
    assert scores_NLW.grad is not None
    assert torch.isfinite(scores_NLW.grad).all()
    assert scores_NLW.grad[0].abs().sum() > 0
    assert not scores_NLW.grad[1:].any()


def test_in_batch_contrast_is_cross_entropy_over_the_batch() -> None:
    query = draw(6, 4, 3)
    document = draw(7, 4, 3)
    got, found = in_batch_contrast(query @ document.T, torch.tensor([5, 8, 5, 9]))
    for i in range(4):
        others = [j for j in range(4) if {i, j} != {0, 2}]  # the same passage drawn twice is no negative
        p = softmax([float(query[i] @ document[j]) for j in others])
        assert got[i].item() == pytest.approx(-math.log(p[others.index(i)]), abs=1e-9)
        assert found[i].item() == (max(p) == p[others.index(i)])


def test_a_passage_drawn_twice_is_found_twice() -> None:
    scores = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert in_batch_contrast(scores, torch.tensor([7, 7, 8]))[1].tolist() == [True, True, True]
    assert in_batch_contrast(scores, torch.tensor([6, 7, 8]))[1].tolist() == [False, False, True]


def test_scores_keep_their_precision_under_autocast() -> None:
    query = draw(9, 2, 128).float()
    document = draw(10, 3000, 128).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        all_pairs = inner_products(query, document)
        own = inner_products(query, document.expand(2, -1, -1))
    exact = query.double() @ document.double().T
    assert torch.allclose(all_pairs.double(), exact, atol=1e-3)
    assert torch.allclose(own.double(), exact, atol=1e-3)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000))
def test_a_passage_told_from_others_by_a_plain_loop(queries: int, passages: int, seed: int) -> None:
    """−log of its share among itself and those it is told from; all others count for nothing."""
    scores_BU = draw(seed, queries, passages)
    dice = torch.Generator().manual_seed(seed)
    own = torch.randint(passages, (queries,), generator=dice)
    others = torch.rand(queries, passages, generator=dice) < 0.5
    loss, found = contrast(scores_BU, own, others)
    for b in range(queries):
        rivals = [u for u in range(passages) if others[b, u] and u != own[b]]
        mine = scores_BU[b, own[b]].item()
        total = math.exp(mine) + sum(math.exp(scores_BU[b, u]) for u in rivals)
        assert loss[b].item() == pytest.approx(math.log(total) - mine, abs=1e-9)
        assert found[b].item() == all(scores_BU[b, u] < mine for u in rivals)
    assert torch.autograd.gradcheck(
        lambda given: contrast(given, own, others)[0], (scores_BU.requires_grad_(),)
    )


# --- what else can teach the retriever ----------------------------------------------------------------------


@given(sizes, st.integers(0, 10_000))
def test_targets_by_plain_loops(size: tuple[int, int, int], seed: int) -> None:
    queries, passages, _ = size
    retrieval = draw(seed, queries, passages)
    weight = retrieval + draw(seed + 2, queries, passages)
    reader = -draw(seed + 1, queries, passages).abs()
    reader[0, 1:] = -torch.inf  # passages without the answer
    for target in ("posterior", "perplexity"):
        fixed, apart = taught_apart(weight, retrieval, reader, target)
        assert torch.allclose(fixed, weight, atol=1e-12)
        for b in range(queries):
            p = softmax(retrieval[b].tolist())
            prior = softmax(weight[b].tolist()) if target == "posterior" else [1.0] * passages
            joint = [prior[z] * math.exp(reader[b, z]) for z in range(passages)]
            q = [part / sum(joint) for part in joint]
            plain = sum(q[z] * (math.log(q[z]) - math.log(p[z])) for z in range(passages) if q[z])
            assert apart[b].item() == pytest.approx(plain, abs=1e-9)
    same, nothing = taught_apart(weight, retrieval, reader, "marginal")
    assert same is weight
    assert not nothing.any()


def test_the_divergence_against_finite_differences() -> None:
    target = draw(7, 3, 4).softmax(-1)
    retrieval = draw(8, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: divergence(target, scores), (retrieval,))


def test_the_posterior_teaches_what_emdr2_does_and_alone_what_the_marginal_does() -> None:
    """log Σ_z p(z|x) SG(p(y|z,x)) has the posterior's gradient, and so has eq. 1; with more than f(x,z) in the
    weights the two part."""
    retrieval = draw(9, 4, 5).requires_grad_()
    beside = draw(10, 4, 5)
    reader = -draw(11, 4, 5).abs()

    def by_f(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss.sum(), retrieval)[0]

    _, apart = taught_apart(retrieval, retrieval, reader, "posterior")
    assert torch.allclose(by_f(-apart), by_f(marginal_log_likelihood(retrieval, reader)), atol=1e-12)
    weight = retrieval + beside
    _, apart = taught_apart(weight, retrieval, reader, "posterior")
    told = posterior(weight, reader).detach() - retrieval.detach().softmax(-1)
    assert torch.allclose(by_f(-apart), told, atol=1e-12)
    assert not torch.allclose(told, by_f(marginal_log_likelihood(weight, reader)), atol=1e-2)


@pytest.mark.parametrize("target", ["posterior", "perplexity"])
def test_a_target_is_no_ones_to_change_and_the_reader_learns_as_before(target: str) -> None:
    retrieval = draw(12, 4, 5).requires_grad_()
    beside = draw(13, 4, 5).requires_grad_()
    reader = (-draw(14, 4, 5).abs()).requires_grad_()
    fixed, apart = taught_apart(retrieval + beside, retrieval, reader, target)
    assert torch.autograd.grad(apart.sum(), (beside, reader), retain_graph=True, allow_unused=True) == (
        None,
        None,
    )
    learned = marginal_log_likelihood(fixed, reader).sum()
    plain = marginal_log_likelihood(retrieval + beside, reader).sum()
    assert torch.autograd.grad(learned, retrieval, retain_graph=True)[0].abs().max() < 1e-12
    for one, other in zip(
        torch.autograd.grad(learned, (beside, reader)),
        torch.autograd.grad(plain, (beside, reader)),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-12)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(3, 7), st.integers(0, 10_000))
def test_its_own_passages_among_those_of_the_batch_by_a_plain_loop(
    queries: int, own: int, passages: int, seed: int
) -> None:
    scores_BU = draw(seed, queries, passages)
    dice = torch.Generator().manual_seed(seed)
    own_BK = torch.stack([torch.randperm(passages, generator=dice)[:own] for _ in range(queries)])
    others_BU = torch.rand(queries, passages, generator=dice) < 0.5
    got_BK = among_all(scores_BU, own_BK, others_BU)
    for b in range(queries):
        counted = {u for u in range(passages) if others_BU[b, u]} | set(own_BK[b].tolist())
        total = sum(math.exp(scores_BU[b, u].item()) for u in counted)
        for k, u in enumerate(own_BK[b].tolist()):
            assert got_BK[b, k].item() == pytest.approx(scores_BU[b, u].item() - math.log(total), abs=1e-9)
