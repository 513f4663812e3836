"""Attention within sequences that lie end to end, against an explicit softmax in float64.

The same tests run on plain torch here, on the kernels where there is a GPU, and on the kernels in Triton's
interpreter where there is Triton.
"""

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from realmlm.model import attention
from realmlm.model.attention import Distance, Tiles, attend, attend_qkv

GPU = torch.cuda.is_available() and not attention.INTERPRETED
DEVICE = "cuda" if GPU else "cpu"
KERNELS = GPU or attention.INTERPRETED
# the interpreter multiplies bfloat16 wrongly
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32]
LENGTHS = [[5], [1, 0, 16, 17, 0], [64, 65, 1, 63], [130, 3, 0, 0]]
needs_kernels = pytest.mark.skipif(not KERNELS, reason="neither a GPU nor TRITON_INTERPRET=1 with Triton")
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU here")


def test_the_kernels_in_tritons_interpreter() -> None:
    if GPU or attention.INTERPRETED or importlib.util.find_spec("triton") is None:
        pytest.skip("tested as they are, or no Triton here")
    again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(again, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def borders_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def truth(
    qkv: Tensor, lengths: list[int], bias: Callable[[int], Tensor] | None = None, stays: Sequence[Tensor] = ()
) -> Tensor:
    """Softmax by softmax, in float64. `stays`: a factor for each probability of each sequence [A, L, L]."""
    query, key, value = qkv.double().unbind(1)
    seen = torch.zeros_like(query)
    first = 0
    for number, length in enumerate(lengths):
        for head in range(query.shape[1] if length else 0):
            q, k, v = (part[first : first + length, head] for part in (query, key, value))
            scores = q @ k.T / math.sqrt(q.shape[1])
            if bias is not None:
                scores = scores + bias(length)[head]
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            seen[first : first + length, head] = (weights * stays[number][head] if stays else weights) @ v
        first += length
    return seen


def close(ours: Tensor, theirs: Tensor, times: float = 1) -> None:
    """As close as the type allows: a rounding or two of the largest."""
    room = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[ours.dtype] * times
    assert ours.isfinite().all()
    assert (ours.double() - theirs.double()).abs().max() <= room * max(
        1.0, float(theirs.detach().abs().max())
    )


def some_distance(heads: int, reach: int, buckets: int = 6) -> Distance:
    table = draw(heads, buckets, seed=7).requires_grad_()
    bucket = torch.randint(buckets, (2 * reach - 1,), generator=torch.Generator().manual_seed(8))
    return Distance(table, bucket.to(DEVICE, torch.int32))


def plain_bias(distance: Distance) -> Callable[[int], Tensor]:
    """A number at a time."""
    reach = (len(distance.bucket_R) + 1) // 2

    def bias(length: int) -> Tensor:
        rows = [
            torch.stack([distance.table_AU[:, distance.bucket_R[j - i + reach - 1]] for j in range(length)])
            for i in range(length)
        ]
        return torch.stack(rows).permute(2, 0, 1).double()

    return bias


# --- what is seen and its gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_same_as_softmax_by_softmax(lengths: list[int], size: int, dtype: torch.dtype) -> None:
    total = sum(lengths) + 9  # nine belong to no sequence
    qkv = draw(total, 3, 2, size, seed=1, dtype=dtype).requires_grad_()
    grad = draw(total, 2, size, seed=2, dtype=dtype)
    seen = attend_qkv(qkv, borders_of(lengths), longest=max(lengths))
    seen.backward(grad)
    assert qkv.grad is not None
    exact = qkv.detach().double().requires_grad_()
    expected = truth(exact, lengths)
    expected.backward(grad.double())
    assert exact.grad is not None
    close(seen, expected)
    close(qkv.grad, exact.grad)
    assert not seen[-9:].any()
    assert not qkv.grad[-9:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_learned_of_distance(dtype: torch.dtype) -> None:
    lengths = [20, 0, 70, 1] if not GPU else [20, 0, 200, 1, 64]
    distance = some_distance(3, 90 if not GPU else 300)
    qkv = draw(sum(lengths), 3, 3, 16, seed=3, dtype=dtype).requires_grad_()
    grad = draw(sum(lengths), 3, 16, seed=4, dtype=dtype)
    seen = attend_qkv(qkv, borders_of(lengths), longest=max(lengths) + 5, distance=distance)
    seen.backward(grad)
    assert qkv.grad is not None
    assert distance.table_AU.grad is not None
    table = distance.table_AU.detach().double().requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    expected = truth(exact, lengths, plain_bias(Distance(table, distance.bucket_R)))
    expected.backward(grad.double())
    assert table.grad is not None
    close(seen, expected)
    close(qkv.grad, exact.grad)  # type: ignore[arg-type]
    assert (distance.table_AU.grad - table.grad).abs().max() <= (
        2e-2 if GPU else 1e-4
    ) * table.grad.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_views_of_one_product(dtype: torch.dtype) -> None:
    lengths = [12, 33]
    product = draw(45, 3 * 2 * 32 + 8, seed=5, dtype=dtype)
    product.requires_grad_()
    first, second, third = [product[:, place * 64 : place * 64 + 64].view(45, 2, 32) for place in (2, 0, 1)]
    seen = attend(first, second, third, borders_of(lengths), longest=40)
    seen.sum().backward()  # a gradient whose strides are 0
    exact = torch.stack([first, second, third], 1).detach().double().requires_grad_()
    expected = truth(exact, lengths)
    expected.sum().backward()
    close(seen, expected)
    assert product.grad is not None
    assert exact.grad is not None
    joined = exact.grad[:, [1, 2, 0]].reshape(45, -1)
    close(product.grad[:, : 3 * 64], joined)
    assert not product.grad[:, 3 * 64 :].any()


def test_scores_far_from_zero() -> None:
    """Scores of ±500: nothing over- or underflows, in the empty part of a tile neither."""
    for sign in (1.0, -1.0):
        qkv = draw(10, 3, 1, 16, seed=6, dtype=DTYPES[-1])
        qkv[:, 0] = 11
        qkv[:, 1] = sign * (11 + 0.01 * qkv[:, 1])
        qkv.requires_grad_()
        attend_qkv(qkv, borders_of([4, 6]), longest=6).sum().backward()
        assert qkv.grad is not None
        assert qkv.grad.isfinite().all()
        exact = qkv.detach().double().requires_grad_()
        torch.cat([each_sum(exact[:4]), each_sum(exact[4:])]).sum().backward()
        close(qkv.grad, exact.grad, times=10)  # type: ignore[arg-type]


def each_sum(qkv: Tensor) -> Tensor:
    weights = (qkv[:, 0, 0] @ qkv[:, 1, 0].T / 4).softmax(-1)
    return weights @ qkv[:, 2, 0]


@needs_kernels
@pytest.mark.parametrize("tiles", [Tiles(16, 64, 4, 1), Tiles(32, 32, 4, 1), Tiles(64, 16, 4, 1)])
def test_any_tiles_give_the_same(tiles: Tiles) -> None:
    lengths = [1, 40, 0, 100, 16, 64]
    dtype = DTYPES[-1]
    distance = some_distance(2, 110)
    line = distance.line().detach()
    borders = borders_of(lengths)
    qkv = draw(sum(lengths) + 3, 3, 2, 32, seed=9, dtype=dtype)
    grad = draw(sum(lengths) + 3, 2, 32, seed=10, dtype=dtype)
    out, sums = attention.launch_forward([qkv], borders, None, line, 100, 0.0, tiles)
    dqkv, dline = attention.launch_backward(
        [grad, out, sums], [qkv], borders, None, line, True, (100, 0.0), tiles
    )
    exact = qkv.double().requires_grad_()
    line.requires_grad_()

    def bias(length: int) -> Tensor:
        return torch.stack([line[:, 109 - i : 109 - i + length] for i in range(length)], 1).double()

    expected = truth(exact, lengths, bias)
    expected.backward(grad.double())
    assert line.grad is not None
    close(out, expected)
    close(dqkv, exact.grad)  # type: ignore[arg-type]
    assert (dline - line.grad).abs().max() <= (2e-2 if GPU else 1e-4) * line.grad.abs().max()


def test_the_distance_of_mpnet() -> None:
    """Table, buckets and where the number is added are those of transformers."""
    from transformers import MPNetConfig
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

    config = MPNetConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8)
    torch.manual_seed(0)
    encoder = MPNetEncoder(config).eval()
    layer = MPNetSelfAttention(config).eval()
    layer.o = nn.Identity()
    hidden = torch.randn(1, 70, 64)
    theirs = layer(hidden, position_bias=encoder.compute_position_bias(hidden))[0][0]
    places = torch.arange(-99, 100)
    buckets = encoder.relative_position_bucket(places).int()
    distance = Distance(encoder.relative_attention_bias.weight.T.to(DEVICE), buckets.to(DEVICE))
    query, key, value = [
        part(hidden[0]).view(70, 4, 16).to(DEVICE, DTYPES[-1]) for part in (layer.q, layer.k, layer.v)
    ]
    ours = attend(query, key, value, borders_of([70]), longest=100, distance=distance)
    close(ours.flatten(1), theirs.to(DEVICE))


# --- dropout ------------------------------------------------------------------------------------------------

ALL = 0xFFFFFFFF


def mixed(number: Tensor) -> Tensor:
    number = ((number ^ (number >> 16)) * 0x6A09E667) & ALL
    number = ((number ^ (number >> 15)) * 0xB7E15163) & ALL
    return number ^ (number >> 16)


def factors(seed: int, sequence: int, length: int, heads: int, dropped: float) -> Tensor:
    """What a probability is multiplied by [A, L, L]: 0, or what makes up for those that are dropped."""
    pairs = torch.arange(sequence * heads, (sequence + 1) * heads)[:, None]
    places = torch.arange(length)
    rows = mixed(mixed((seed + pairs * 0x9E3779B1) & ALL) ^ (places * 0x9E3779B1 & ALL))
    columns = mixed(places + 0x9E3779B1)
    drawn = ((rows[:, :, None] ^ columns) * 0x6A09E667) & ALL
    drawn = ((drawn ^ (drawn >> 15)) * 0xB7E15163) & ALL
    signed = torch.where(drawn >= 2**31, drawn - 2**32, drawn)
    return (signed >= round(dropped * 2**32) - 2**31).double().to(DEVICE) / (1 - dropped)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_is_dropped_forwards_and_backwards(dtype: torch.dtype) -> None:
    lengths = [40, 0, 70]
    distance = some_distance(2, 80)
    qkv = draw(110, 3, 2, 32, seed=11, dtype=dtype).requires_grad_()
    grad = draw(110, 2, 32, seed=12, dtype=dtype)
    torch.manual_seed(5)
    seed = int(torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=DEVICE))
    torch.manual_seed(5)
    seen = attend_qkv(qkv, borders_of(lengths), longest=70, dropped=0.3, distance=distance)
    seen.backward(grad)
    stays = [factors(seed, number, length, 2, 0.3) for number, length in enumerate(lengths)]
    exact = qkv.detach().double().requires_grad_()
    table = distance.table_AU.detach().double().requires_grad_()
    expected = truth(exact, lengths, plain_bias(Distance(table, distance.bucket_R)), stays)
    expected.backward(grad.double())
    close(seen, expected)
    close(qkv.grad, exact.grad)  # type: ignore[arg-type]
    assert distance.table_AU.grad is not None
    assert table.grad is not None
    assert (distance.table_AU.grad - table.grad).abs().max() <= (
        2e-2 if GPU else 1e-4
    ) * table.grad.abs().max()


@pytest.mark.skipif(GPU, reason="needs float32")
def test_gradients_are_differences_also_with_dropout() -> None:
    borders = borders_of([6, 0, 9])
    distance = some_distance(1, 12)
    qkv = draw(15, 3, 1, 16, seed=13).requires_grad_()
    weights = draw(15, 1, 16, seed=14)

    def loss(qkv: Tensor, table: Tensor) -> Tensor:
        torch.manual_seed(6)
        seen = attend_qkv(qkv, borders, longest=9, dropped=0.4, distance=Distance(table, distance.bucket_R))
        return (seen * weights).double().sum()

    dqkv, dtable = torch.autograd.grad(loss(qkv, distance.table_AU), (qkv, distance.table_AU))
    with torch.no_grad():
        for turn in range(5):
            step = draw(15, 3, 1, 16, seed=20 + turn)
            tilt = draw(1, 6, seed=40 + turn)
            ahead = loss(qkv + 1e-2 * step, distance.table_AU + 1e-2 * tilt)
            behind = loss(qkv - 1e-2 * step, distance.table_AU - 1e-2 * tilt)
            slope = (dqkv * step).sum() + (dtable * tilt).sum()
            assert (ahead - behind) / 2e-2 == pytest.approx(float(slope), rel=2e-2, abs=2e-3)


def test_dropout_keeps_the_mean() -> None:
    """Values of 1: what is seen is the share that stays, made up for."""
    qkv = draw(400, 3, 2, 16, seed=15, dtype=DTYPES[-1])
    qkv[:, :2] *= 0.1
    qkv[:, 2] = 1
    torch.manual_seed(7)
    seen = [attend_qkv(qkv, borders_of([200, 200]), longest=200, dropped=0.1)[:, :, 0] for _ in range(2)]
    for some in seen:
        assert float(some.double().mean()) == pytest.approx(1, abs=3e-3)
        assert 0.01 < float(some.double().std()) < 0.04  # √(0.1 / 0.9 / 200) = 0.024
    assert (seen[0] != seen[1]).double().mean() > 0.8  # drawn anew
    assert (seen[0][:200] != seen[0][200:]).double().mean() > 0.8
    assert (seen[0][:, 0] != seen[0][:, 1]).double().mean() > 0.8


def test_what_is_dropped_looks_drawn() -> None:
    """The share, and the correlation of neighbours in rows, columns, heads, sequences, seeds and rectangles,
    are those of chance."""
    masks = torch.stack(
        [factors(seed, s, 128, 4, 0.1) > 0 for seed in (1, 2) for s in (0, 1)]
    )  # [4, A, L, L]
    dropped = 1 - masks.double()
    assert float(dropped.mean()) == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / dropped.numel()))
    centred = dropped - 0.1
    pairs = [
        centred[..., 1:] * centred[..., :-1],
        centred[..., 8:] * centred[..., :-8],
        centred[..., 1:, :] * centred[..., :-1, :],
        centred[..., 64:, :] * centred[..., :-64, :],
        centred[..., 1:, 1:] * centred[..., :-1, :-1],
        centred[:, 1:] * centred[:, :-1],
        centred[1:] * centred[:-1],
    ]
    for pair in pairs:
        assert abs(float(pair.mean())) < 4.5 * 0.09 / math.sqrt(pair.numel())
    corners = centred[..., :-1, :-1] * centred[..., 1:, :-1] * centred[..., :-1, 1:] * centred[..., 1:, 1:]
    assert abs(float(corners.mean())) < 4.5 * 0.09**2 / math.sqrt(corners.numel())
    for sums in (centred.sum(-1), centred.sum(-2)):
        assert float(sums.var()) == pytest.approx(128 * 0.09, rel=0.15)


# --- on a GPU -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Real:
    sequences: int
    shortest: int
    longest: int
    heads: int
    size: int


REAL = [Real(300, 60, 230, 12, 32), Real(200, 100, 128, 12, 32), Real(128, 280, 420, 12, 64)]
REAL += [Real(40, 1, 1024, 4, 64), Real(40, 1, 300, 4, 128), Real(64, 1, 512, 12, 64)]


def real_lengths(real: Real) -> list[int]:
    generator = torch.Generator().manual_seed(16)
    return torch.randint(real.shortest, real.longest + 1, (real.sequences,), generator=generator).tolist()


def padded_truth(qkv: Tensor, lengths: list[int]) -> Tensor:
    parts = qkv.double().split([*lengths, len(qkv) - sum(lengths)])
    seen = []
    for part in parts[:-1]:
        query, key, value = part.permute(1, 2, 0, 3)
        weights = (query @ key.transpose(1, 2) / math.sqrt(qkv.shape[-1])).softmax(-1)
        seen.append((weights @ value).transpose(0, 1))
    return torch.cat([*seen, torch.zeros_like(parts[-1][:, 0])])


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("real", REAL, ids=str)
def test_at_real_sizes(real: Real, dtype: torch.dtype) -> None:
    lengths = real_lengths(real)
    total = sum(lengths) + 1000
    qkv = draw(total, 3, real.heads, real.size, seed=17, dtype=dtype).requires_grad_()
    grad = draw(total, real.heads, real.size, seed=18, dtype=dtype)
    borders = borders_of([*lengths, 0, 0])
    seen = attend_qkv(qkv, borders, longest=real.longest)
    (dqkv,) = torch.autograd.grad(seen, qkv, grad)
    exact = qkv.detach().double().requires_grad_()
    expected = padded_truth(exact, lengths)
    expected.backward(grad.double())
    close(seen, expected)
    close(dqkv, exact.grad)  # type: ignore[arg-type]
    again = attend_qkv(qkv, borders, longest=real.longest)
    assert torch.equal(seen, again)
    assert torch.equal(dqkv, torch.autograd.grad(again, qkv, grad)[0])


@needs_gpu
def test_at_real_sizes_with_distance_and_dropout_gradients_are_the_same_bits() -> None:
    lengths = real_lengths(REAL[0])
    distance = some_distance(12, 512, 32)
    qkv = draw(sum(lengths), 3, 12, 64, seed=19, dtype=torch.bfloat16).requires_grad_()
    results = []
    for _ in range(2):
        torch.manual_seed(8)
        seen = attend_qkv(qkv, borders_of(lengths), longest=230, dropped=0.1, distance=distance)
        results.append(torch.autograd.grad(seen.float().square().sum(), (qkv, distance.table_AU)))
    for one, other in zip(*results, strict=True):
        assert one.isfinite().all()
        assert one.abs().max() > 0
        assert torch.equal(one, other)


@pytest.mark.parametrize("dropped", [0.0, 0.1])
@needs_kernels
def test_compiled_layers_hold_it_without_a_break(dropped: float) -> None:
    distance = some_distance(2, 128)
    weight = draw(64, 192, seed=20, dtype=DTYPES[0]).requires_grad_()

    def layer(hidden: Tensor, table: Tensor, borders: Tensor) -> Tensor:
        qkv = (hidden @ weight / 8).view(-1, 3, 2, 32)
        told = Distance(table, distance.bucket_R)
        return attend_qkv(qkv, borders, longest=100, dropped=dropped, distance=told).flatten(1) + hidden

    def step(layer: Callable[..., Tensor], lengths: list[int]) -> list[Tensor]:
        hidden = draw(sum(lengths), 64, seed=21, dtype=DTYPES[0])
        seen = layer(hidden, distance.table_AU, borders_of(lengths))
        return [seen, *torch.autograd.grad(seen.float().square().sum(), (weight, distance.table_AU))]

    torch.compiler.reset()
    backend = "inductor" if GPU else "aot_eager"
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend=backend)
    for lengths in ([30, 100, 0], [7, 99, 64], [1, 1, 90]):
        ours = step(compiled, lengths)
        assert all(some.isfinite().all() for some in ours)
        if dropped == 0:
            for some, other in zip(ours, step(layer, lengths), strict=True):
                assert (some - other).abs().max() <= (3e-2 if GPU else 1e-5) * other.abs().max()


@needs_kernels
def test_torch_finds_nothing_wrong_with_the_operations() -> None:
    qkv = draw(20, 3, 2, 16, seed=23, dtype=DTYPES[-1]).requires_grad_()
    seed = torch.ones(1, dtype=torch.int32, device=DEVICE)
    line = draw(2, 39, seed=24).requires_grad_()
    given = (borders_of([5, 0, 15]), seed, line, 16, 0.1)
    torch.library.opcheck(torch.ops.realmlm.attend.default, ([qkv], *given))
    three = [part.detach().clone().requires_grad_() for part in qkv.unbind(1)]
    torch.library.opcheck(torch.ops.realmlm.attend.default, (three, *given))


@needs_gpu
def test_in_a_cuda_graph() -> None:
    """Borders and wordpieces change between replays, and dropout is drawn anew."""
    qkv = draw(1000, 3, 2, 32, seed=22, dtype=torch.bfloat16).requires_grad_()
    borders = borders_of([100, 200, 0, 50])

    def step() -> tuple[Tensor, Tensor, Tensor]:
        seen = attend_qkv(qkv, borders, longest=256)
        (dqkv,) = torch.autograd.grad(seen, qkv, torch.ones_like(seen))
        return seen, dqkv, attend_qkv(qkv.detach(), borders, longest=256, dropped=0.2)

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen, dqkv, thinned = step()
    before = None
    for turn, lengths in enumerate([[256, 256, 256, 100], [0, 1, 200, 3], [64, 65, 66, 0]]):
        with torch.no_grad():
            qkv.copy_(draw(1000, 3, 2, 32, seed=30 + turn, dtype=torch.bfloat16))
        borders.copy_(borders_of(lengths))
        graph.replay()
        expected, dexpected, _ = step()
        assert torch.equal(seen, expected)
        assert torch.equal(dqkv, dexpected)
        graph.replay()
        assert before is None or not torch.equal(thinned, before)
        before = thinned.clone()
        graph.replay()
        assert not torch.equal(thinned, before)
