"""LayerNorm over a sum with dropout, against the same in float64.

The same tests run on plain torch here, on the kernels where there is a GPU, and on the kernels in Triton's
interpreter where there is Triton.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from realmlm.model import attention, norms
from realmlm.model.norms import Tiles, add_norm

GPU = torch.cuda.is_available() and not attention.INTERPRETED
DEVICE = "cuda" if GPU else "cpu"
KERNELS = GPU or attention.INTERPRETED
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32, torch.float16]
SIZES = [16, 48, 384, 400, 768, 1024]
EPS = 1e-3
needs_kernels = pytest.mark.skipif(not KERNELS, reason="neither a GPU nor TRITON_INTERPRET=1 with Triton")
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU here")


def test_the_kernels_in_tritons_interpreter() -> None:
    if GPU or attention.INTERPRETED or importlib.util.find_spec("triton") is None:
        pytest.skip("tested as they are, or no Triton here")
    again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(again, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def some_inputs(total: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """New, old, weight and bias; rows far from 0, so that a variance from squares alone would be wrong."""
    new = draw(total, size, seed=1, dtype=dtype)
    old = draw(total, size, seed=2, dtype=dtype) + 8
    weight = 1 + 0.3 * draw(size, seed=3)
    return [part.requires_grad_() for part in (new, old, weight, draw(size, seed=4))]


def truth(given: list[Tensor], factors: Tensor | float = 1.0) -> Tensor:
    """By the definition. `factors`: what each number of new is multiplied by."""
    new, old, weight, bias = given
    total = new * factors + old
    apart = total - total.mean(1, keepdim=True)
    return apart / (apart.square().mean(1, keepdim=True) + EPS).sqrt() * weight + bias


def exact_gradients(
    given: list[Tensor], grad: Tensor, factors: Tensor | float = 1.0
) -> tuple[Tensor, list[Tensor]]:
    exact = [part.detach().double().requires_grad_() for part in given]
    out = truth(exact, factors)
    return out, list(torch.autograd.grad(out, exact, grad.double()))


def close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    """As close as the type that was worked in allows: a rounding or two of the largest."""
    room = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    if ours.numel():
        largest = max(1.0, float(theirs.detach().abs().max()))
        assert float((ours.detach().double() - theirs.detach()).abs().max()) <= room * largest


def compare(given: list[Tensor], out: Tensor, grad: Tensor, factors: Tensor | float = 1.0) -> None:
    """What comes out and all gradients, in the types of what went in."""
    grads = torch.autograd.grad(out, given, grad)
    expected, exact = exact_gradients(given, grad, factors)
    dtype = given[0].dtype
    assert out.dtype == dtype
    close(out, expected, dtype)
    for ours, theirs, part in zip(grads, exact, given, strict=True):
        assert ours.dtype == part.dtype
        close(ours, theirs, dtype)


# --- what comes out, and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("total", [0, 1, 31])
def test_the_same_as_by_definition(total: int, size: int, dtype: torch.dtype) -> None:
    given = some_inputs(total, size, dtype)
    compare(given, add_norm(*given, eps=EPS), draw(total, size, seed=5, dtype=dtype))
    with torch.no_grad():
        out = add_norm(*given, eps=EPS)
    close(out, truth([part.detach().double() for part in given]), dtype)
    with torch.inference_mode():
        assert torch.equal(add_norm(*given, eps=EPS), out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_other_types_and_a_gradient_without_strides(dtype: torch.dtype) -> None:
    new = draw(5, 96, seed=6, dtype=dtype)[:, :48].requires_grad_()
    old = draw(48, 5, seed=7).T.requires_grad_()
    weight, bias = (draw(48, seed=seed, dtype=dtype).requires_grad_() for seed in (8, 9))
    given = [new, old, weight, bias]
    out = add_norm(*given, eps=EPS)
    compare(given, out, torch.ones((), dtype=dtype, device=DEVICE).expand(5, 48))


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (3,), (0, 1), (1, 2)])
def test_gradients_only_for_what_learns(learning: tuple[int, ...]) -> None:
    given = some_inputs(6, 48, DTYPES[-1])
    grad = draw(6, 48, seed=10, dtype=DTYPES[-1])
    _, exact = exact_gradients(given, grad)
    for place, part in enumerate(given):
        part.requires_grad_(place in learning)
    add_norm(*given, eps=EPS).backward(grad)
    for place, part in enumerate(given):
        assert (part.grad is not None) == (place in learning)
        if part.grad is not None:
            close(part.grad, exact[place], DTYPES[-1])


@needs_kernels
@pytest.mark.parametrize(
    "tiles", [Tiles(1, 128, 1, 1, 1), Tiles(2, 256, 4, 1, 3), Tiles(8, 64, 4, 2, 2), Tiles(16, 512, 8, 3, 1)]
)
def test_any_tiles_give_the_same(tiles: Tiles) -> None:
    dtype = DTYPES[-1]
    given = [part.detach() for part in some_inputs(45, 384, dtype)]
    grad = draw(45, 384, seed=11, dtype=dtype)
    seed = torch.tensor([12], dtype=torch.int32, device=DEVICE)
    out, sums, moments = norms.launch_forward(given, seed, EPS, 0.25, True, tiles)
    dold, dnew, daffine = norms.launch_backward([grad, sums, moments], given[2], seed, 0.25, True, tiles)
    expected, exact = exact_gradients(given, grad, factors(12, 45, 384, 0.25))
    for ours, theirs in zip([out, dnew, dold, *daffine], [expected, *exact], strict=True):
        close(ours, theirs, dtype)


@needs_kernels
def test_nothing_is_kept_where_nothing_learns() -> None:
    given = [part.detach() for part in some_inputs(9, 48, DTYPES[-1])]
    out, sums, moments = norms.launch_forward(given, None, EPS, 0.0, False, norms.forward_tiles(48))
    assert len(out) == 9
    assert sums.numel() == moments.numel() == 0


# --- dropout ------------------------------------------------------------------------------------------------

ALL = 0xFFFFFFFF


def mixed(number: Tensor) -> Tensor:
    number = ((number ^ (number >> 16)) * 0x6A09E667) & ALL
    number = ((number ^ (number >> 15)) * 0xB7E15163) & ALL
    return number ^ (number >> 16)


def factors(seed: int, total: int, size: int, dropped: float) -> Tensor:
    """What a number is multiplied by [T, H]: 0, or what makes up for those that are dropped."""
    rows = mixed(mixed(torch.tensor(seed)) ^ (torch.arange(total) * 0x9E3779B1 & ALL))
    drawn = ((rows[:, None] ^ mixed(torch.arange(size) + 0x9E3779B1)) * 0x6A09E667) & ALL
    drawn = ((drawn ^ (drawn >> 15)) * 0xB7E15163) & ALL
    signed = torch.where(drawn >= 2**31, drawn - 2**32, drawn)
    return (signed >= round(dropped * 2**32) - 2**31).double().to(DEVICE) / (1 - dropped)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 384, 768])
def test_the_same_is_dropped_forwards_and_backwards(size: int, dtype: torch.dtype) -> None:
    given = some_inputs(21, size, dtype)
    torch.manual_seed(5)
    seed = int(torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=DEVICE))
    torch.manual_seed(5)
    out = add_norm(*given, eps=EPS, dropped=0.3)
    compare(given, out, draw(21, size, seed=13, dtype=dtype), factors(seed, 21, size, 0.3))


@pytest.mark.skipif(GPU, reason="needs float32")
def test_gradients_are_differences_also_with_dropout() -> None:
    given = some_inputs(6, 48, torch.float32)
    weights = draw(6, 48, seed=14)

    def loss(parts: list[Tensor]) -> Tensor:
        torch.manual_seed(6)
        return (add_norm(*parts, eps=EPS, dropped=0.4) * weights).double().sum()

    grads = torch.autograd.grad(loss(given), given)
    with torch.no_grad():
        for turn in range(5):
            steps = [draw(*part.shape, seed=20 + 4 * turn + place) for place, part in enumerate(given)]
            ahead = loss([part + 1e-3 * step for part, step in zip(given, steps, strict=True)])
            behind = loss([part - 1e-3 * step for part, step in zip(given, steps, strict=True)])
            slope = sum(float((grad * step).sum()) for grad, step in zip(grads, steps, strict=True))
            assert float(ahead - behind) / 2e-3 == pytest.approx(slope, rel=2e-2, abs=2e-2)


def test_dropout_keeps_the_mean_and_is_drawn_anew() -> None:
    """New is 1, old is 0: what is normed tells what was dropped."""
    new = torch.ones(400, 64, device=DEVICE, dtype=DTYPES[-1])
    old = torch.zeros_like(new)
    weight = torch.ones(64, device=DEVICE)
    torch.manual_seed(7)
    drawn = [
        add_norm(new, old, weight, 0 * weight, eps=EPS, dropped=0.1) < -0.5  # far below the mean of its row
        for _ in range(2)
    ]
    for dropped in drawn:
        assert float(dropped.double().mean()) == pytest.approx(0.1, abs=0.01)
        assert float((dropped[1:] & dropped[:-1]).double().mean()) == pytest.approx(0.01, abs=0.004)
        assert float((dropped[:, 1:] & dropped[:, :-1]).double().mean()) == pytest.approx(0.01, abs=0.004)
    assert float((drawn[0] & drawn[1]).double().mean()) == pytest.approx(0.01, abs=0.004)


# --- as a part of larger things -----------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_compiled_functions_hold_it_without_a_break(dropped: float) -> None:
    linear = (draw(64, 64, seed=15, dtype=DTYPES[0]) / 8).requires_grad_()
    _, _, weight, bias = some_inputs(0, 64, DTYPES[0])
    learned = [linear, weight, bias]

    def layer(hidden: Tensor) -> Tensor:
        return add_norm(hidden @ linear, hidden, weight, bias, eps=EPS, dropped=dropped)

    torch.compiler.reset()
    backend = "inductor" if GPU else "aot_eager"
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend=backend)

    def step(layer: Callable[[Tensor], Tensor], hidden: Tensor) -> list[Tensor]:
        out = layer(hidden)
        return [out, *torch.autograd.grad(out.float().square().sum(), learned)]

    for total in (30, 7, 190):
        hidden = draw(total, 64, seed=16, dtype=DTYPES[0])
        ours = step(compiled, hidden)
        with torch.no_grad():
            ours.append(compiled(hidden))
        assert all(some.isfinite().all() for some in ours)
        if dropped == 0:
            for some, other in zip(ours, [*step(layer, hidden), layer(hidden)], strict=True):
                assert (some - other).abs().max() <= (3e-2 if GPU else 1e-5) * other.abs().max()


@needs_kernels
@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_torch_finds_nothing_wrong_with_the_operations(dropped: float) -> None:
    given = some_inputs(20, 48, DTYPES[-1])
    seed = torch.ones(1, dtype=torch.int32, device=DEVICE) if dropped else None
    torch.library.opcheck(torch.ops.realmlm.add_norm.default, (*given, seed, EPS, dropped, True))
    fixed = [part.detach() for part in given]
    torch.library.opcheck(torch.ops.realmlm.add_norm.default, (*fixed, seed, EPS, dropped, False))
    sums, moments = torch.ops.realmlm.add_norm(*fixed, seed, EPS, dropped, True)[1:]
    for affine_learns in (True, False):
        torch.library.opcheck(
            torch.ops.realmlm.add_norm_backward.default,
            (fixed[0], sums, moments, fixed[2], seed, dropped, affine_learns),
        )


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(168_003, 384), (40_001, 768), (20_000, 1024), (20_001, 312)], ids=str)
def test_at_real_sizes_gradients_are_right_and_the_same_bits(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = some_inputs(*shape, dtype)
    grad = draw(*shape, seed=17, dtype=dtype)
    seed = torch.tensor([18], dtype=torch.int32, device=DEVICE)
    results = []
    for _ in range(2):
        out = torch.ops.realmlm.add_norm(*given, seed, EPS, 0.1, True)[0]
        results.append([out.detach(), *torch.autograd.grad(out, given, grad)])
    expected, exact = exact_gradients(given, grad, factors(18, *shape, 0.1))
    for one, other, right in zip(*results, [expected, *exact], strict=True):
        assert torch.equal(one, other)
        close(one, right, dtype)


@needs_gpu
def test_in_a_cuda_graph() -> None:
    """Rows change between replays, and dropout is drawn anew."""
    given = some_inputs(1001, 384, torch.bfloat16)

    def step() -> list[Tensor]:
        out = add_norm(*given, eps=EPS)
        grads = torch.autograd.grad(out, given, torch.ones_like(out))
        thinned = add_norm(*given, eps=EPS, dropped=0.2)
        return [out, *grads, thinned, *torch.autograd.grad(thinned, given, torch.ones_like(out))]

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for turn in range(3):
        with torch.no_grad():
            given[0].copy_(draw(1001, 384, seed=30 + turn, dtype=torch.bfloat16))
        graph.replay()
        for ours, theirs in zip(recorded[:5], step(), strict=False):
            assert torch.equal(ours, theirs)
        before = recorded[5].clone()
        graph.replay()
        assert not torch.equal(recorded[5], before)
