"""How long does attention over sequences that lie end to end take on a GPU? `python benchmarks/attention.py
[--sweep]`

Milliseconds forwards and backwards of ours (`realmlm.model.attention`), of torch's flash attention over the
same sequences and of torch's attention over padded ones, for the shapes that training has. `--sweep` tries
other tiles too, which is how those in `forward_tiles` and `backward_tiles` were chosen.
"""

import argparse
import datetime
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from kernel_timing import milliseconds
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from realmlm.model import attention
from realmlm.model.attention import Distance, Tiles, backward_tiles, forward_tiles

WORKERS = 14
FORWARD = [Tiles(64, 64, 4, 1), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)]
FORWARD += [Tiles(64, 128, 4, 2), Tiles(128, 64, 4, 2), Tiles(128, 64, 8, 2), Tiles(128, 128, 8, 2)]
BACKWARD = [Tiles(64, 64, 4, 1, 168), Tiles(64, 64, 4, 2, 168), Tiles(64, 64, 4, 1), Tiles(64, 64, 4, 2)]
BACKWARD += [Tiles(32, 64, 4, 1, 128), Tiles(32, 64, 4, 1, 168), Tiles(32, 64, 4, 2), Tiles(32, 128, 8, 1)]
BACKWARD += [Tiles(64, 128, 8, 1), Tiles(64, 128, 8, 2), Tiles(32, 256, 8, 1), Tiles(64, 64, 8, 1, 128)]


@dataclass(frozen=True)
class Shape:
    """Sequences of `shortest` to `longest` wordpieces, heads of `size` numbers."""

    name: str
    sequences: int
    shortest: int
    longest: int
    heads: int
    size: int
    dropped: float = 0.0
    buckets: int = 0


SHAPES = [
    Shape("mini's reader", 1024, 100, 230, 12, 32),
    Shape("mini's passages", 750, 100, 140, 12, 32),
    Shape("BERT-base's reader", 512, 280, 420, 12, 64),
]
MORE = [
    Shape("mini's reader, dropout", 1024, 100, 230, 12, 32, dropped=0.1),
    Shape("BERT-base's reader, dropout", 512, 280, 420, 12, 64, dropped=0.1),
    Shape("MPNet's reader, dropout", 512, 120, 280, 12, 64, dropped=0.1, buckets=32),
]


def forward_of(shape: Shape) -> Tiles:
    return forward_tiles(shape.size, line=shape.buckets > 0)


def backward_of(shape: Shape) -> Tiles:
    return backward_tiles(shape.size, line_learns=shape.buckets > 0)


class Case:
    """The tensors of a shape, and what is measured on them."""

    def __init__(self, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(shape.shortest, shape.longest + 1, (shape.sequences,), generator=generator)
        self.shape = shape
        self.lengths = lengths.cuda()
        self.borders = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int().cuda()
        self.total = int(lengths.sum())
        self.qkv = torch.randn(
            self.total, 3, shape.heads, shape.size, dtype=torch.bfloat16, device="cuda", requires_grad=True
        )
        self.grad = torch.randn_like(self.qkv[:, 0])
        self.seed = torch.ones(1, dtype=torch.int32, device="cuda") if shape.dropped else None
        self.line = None
        if shape.buckets:
            bucket = torch.randint(shape.buckets, (1023,), device="cuda")
            self.line = Distance(torch.randn(shape.heads, shape.buckets, device="cuda"), bucket).line()

    def forward(self, tiles: Tiles) -> tuple[Tensor, Tensor]:
        given = ([self.qkv.detach()], self.borders, self.seed, self.line)
        return attention.launch_forward(*given, self.shape.longest, self.shape.dropped, tiles)

    def backward(self, seen: tuple[Tensor, Tensor], tiles: Tiles) -> list[Tensor]:
        given = ([self.grad, *seen], [self.qkv.detach()], self.borders, self.seed, self.line)
        options = (self.shape.longest, self.shape.dropped)
        return attention.launch_backward(*given, self.line is not None, options, tiles)

    def flash(self) -> Tensor:
        query, key, value = self.qkv.unbind(1)
        longest = self.shape.longest
        seen = varlen_attn(query, key, value, self.borders, self.borders, longest, longest)
        assert isinstance(seen, Tensor)
        return seen

    def padded(self) -> tuple[Tensor, Tensor]:
        """All sequences as long as the longest, and which keys are there."""
        sizes = (self.shape.sequences, self.shape.longest, 3, self.shape.heads, self.shape.size)
        there = torch.arange(self.shape.longest, device="cuda") < self.lengths[:, None]
        return torch.randn(sizes, dtype=torch.bfloat16, device="cuda", requires_grad=True), there

    def products_ms(self) -> float:
        """What the two products of the forward pass take at 700 TFLOP/s."""
        work = 4 * float(self.lengths.double().square().sum()) * self.shape.heads * self.shape.size
        return work / 700e9


def both_ms(seen: Callable[[], Tensor], given: Tensor) -> tuple[float, float]:
    """Forwards and backwards by autograd."""
    out = seen()
    grad = torch.randn_like(out)
    with torch.no_grad():
        forward = milliseconds(seen)
    return forward, milliseconds(lambda: torch.autograd.grad(out, given, grad, retain_graph=True))


def compile_one(job: tuple[Shape, bool, Tiles]) -> str:
    """Brings a kernel into Triton's cache on disk, by a run over two short sequences."""
    shape, forwards, tiles = job
    case = Case(Shape("", 2, 2, 3, shape.heads, shape.size, shape.dropped, shape.buckets))
    case.shape = shape
    seen = (torch.zeros_like(case.grad), torch.zeros(shape.heads, case.total, device="cuda"))
    try:
        case.forward(tiles) if forwards else case.backward(seen, tiles)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{shape.name} {tiles}: {error}"
    return ""


def kernel_of(shape: Shape, forwards: bool, tiles: Tiles) -> tuple[object, ...]:
    """What a compiled kernel depends on."""
    whole = not forwards and shape.longest <= tiles.keys
    return shape.size, shape.dropped > 0, shape.buckets > 0, forwards, whole, tiles


def compile_all(sweep: bool) -> None:
    """On all cores at once: one after the other takes longer than everything else here."""
    chosen = [(shape, True, forward_of(shape)) for shape in SHAPES + MORE]
    chosen += [(shape, False, backward_of(shape)) for shape in SHAPES + MORE]
    if sweep:
        chosen += [(shape, True, tiles) for shape in SHAPES for tiles in FORWARD]
        chosen += [(shape, False, tiles) for shape in SHAPES for tiles in BACKWARD]
    jobs = {kernel_of(*job): job for job in chosen}.values()
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        for problem in filter(None, pool.imap_unordered(compile_one, jobs)):
            print(problem)


def compare(shape: Shape) -> None:
    case = Case(shape)
    tiles = forward_of(shape)
    seen = case.forward(tiles)
    ours = milliseconds(partial(case.forward, tiles))
    ours_back = milliseconds(partial(case.backward, seen, backward_of(shape)))
    print(f"\n{shape.name}: {case.total:,} wordpieces, {shape.heads} × {shape.size}; products alone "
          f"{case.products_ms():.3f} + {2.5 * case.products_ms():.3f}")  # fmt: skip
    print(f"  ours    {ours:7.3f} + {ours_back:7.3f} ms")
    if shape.dropped:
        return
    flash = both_ms(case.flash, case.qkv)
    print(f"  flash   {flash[0]:7.3f} + {flash[1]:7.3f} ms, {sum(flash) / (ours + ours_back):.2f} times ours")
    given, there = case.padded()
    query, key, value = given.permute(2, 0, 3, 1, 4)
    mask = there[:, None, None]

    def padded() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    taken = both_ms(padded, given)
    print(f"  padded  {taken[0]:7.3f} + {taken[1]:7.3f} ms, {sum(taken) / (ours + ours_back):.2f} times ours")


def sweep(shape: Shape) -> None:
    case = Case(shape)
    seen = case.forward(forward_of(shape))
    print(f"\n{shape.name}")
    rows: list[tuple[str, list[Tiles], Callable[[Tiles], object]]] = [
        ("forward", FORWARD, case.forward),
        ("backward", BACKWARD, partial(case.backward, seen)),
    ]
    for name, choices, work in rows:
        for tiles in choices:
            try:
                print(f"  {name:8} {milliseconds(partial(work, tiles), 6):7.3f} ms  {tiles}")
            except Exception as error:
                print(f"  {name:8} {tiles}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    compile_all(options.sweep)
    print(f"{datetime.date.today()}  {torch.cuda.get_device_name()}  torch {torch.__version__}")
    for shape in SHAPES + MORE:
        compare(shape)
    if options.sweep:
        for shape in SHAPES:
            sweep(shape)


if __name__ == "__main__":
    main()
