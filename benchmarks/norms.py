"""How long does LayerNorm over a sum with dropout take on a GPU? `python benchmarks/norms.py [--sweep]`

Milliseconds forwards and backwards of ours (`realmlm.model.norms`), of torch and of torch.compile, for the
sizes that training has, and how many bytes a second that is of those that must be read and written. `--sweep`
tries other tiles too, which is how those in `forward_tiles` and `backward_tiles` are chosen.
"""

import argparse
import datetime
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch._functorch.config
import torch.nn.functional as F
from kernel_timing import milliseconds
from torch import Tensor

from realmlm.model import norms
from realmlm.model.norms import Tiles, add_norm, backward_tiles, forward_tiles

WORKERS = 14
EPS = 1e-12
CHOICES = {
    384: [
        *(Tiles(4, 128, 4, stages, programs) for stages in (1, 2, 3) for programs in (4, 5, 6, 8)),
        *(Tiles(8, 128, 8, stages, programs) for stages in (1, 2) for programs in (2, 3)),
        *(Tiles(8, 128, 4, stages, 3, 168) for stages in (1, 2)),
        *(Tiles(2, 256, 4, stages, 7) for stages in (1, 2)),
        *(Tiles(1, 128, 1, 1, programs) for programs in (16, 24, 32)),
    ],
    768: [
        *(Tiles(4, 256, 4, stages, 3, 168) for stages in (1, 2, 3)),
        *(Tiles(4, 256, 4, stages, 4, 128) for stages in (1, 2)),
        *(Tiles(4, 256, 4, stages, 2) for stages in (1, 2, 3)),
        *(Tiles(4, 256, 8, stages, programs) for stages in (1, 2) for programs in (2, 3)),
        *(Tiles(8, 256, 8, stages, 1) for stages in (1, 2, 3)),
        Tiles(1, 256, 1, 1, 12),
    ],
}


@dataclass(frozen=True)
class Shape:
    total: int
    size: int
    dropped: float


SHAPES = [
    Shape(total, size, dropped)
    for total, size in ((168_000, 384), (100_000, 384), (180_000, 768))
    for dropped in (0.0, 0.1)
]
SWEPT = [SHAPES[1], SHAPES[-1]]


class Case:
    """The tensors of a shape, and what is measured on them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        sizes = (shape.total, shape.size)
        new, old, self.grad = (torch.randn(sizes, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        self.given = [new, old, torch.rand(shape.size, device="cuda"), torch.rand(shape.size, device="cuda")]
        self.seed = torch.ones(1, dtype=torch.int32, device="cuda") if shape.dropped else None

    def forward(self, tiles: Tiles, learns: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        return norms.launch_forward(self.given, self.seed, EPS, self.shape.dropped, learns, tiles)

    def backward(self, kept: list[Tensor], tiles: Tiles) -> list[Tensor]:
        given = ([self.grad, *kept], self.given[2], self.seed, self.shape.dropped)
        return norms.launch_backward(*given, True, tiles)

    def rate(self, tables: int, ms: float) -> str:
        """Of so many tables that are read or written."""
        return f"{tables * self.grad.numel() * 2 / ms / 1e6:5.0f} GB/s"

    def backward_tables(self) -> int:
        return 4 if self.shape.dropped else 3


def by_torch(dropped: float, new: Tensor, old: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    sums = F.dropout(new, dropped) + old
    return F.layer_norm(sums, sums.shape[1:], weight.to(sums.dtype), bias.to(sums.dtype), EPS)


def compare(shape: Shape) -> None:
    """Each way as a part of autograd, all that it launches included."""
    torch._functorch.config.donated_buffer = False  # gradients are asked for more than once
    case = Case(shape)
    print(f"\n{shape.total:,} × {shape.size}, dropout {shape.dropped}")
    given = [part.requires_grad_() for part in case.given]
    for part in given[:2]:
        torch._dynamo.maybe_mark_dynamic(part, 0)
    plain = partial(by_torch, shape.dropped)
    ways: dict[str, Callable[..., Tensor]] = {
        "ours": partial(add_norm, eps=EPS, dropped=shape.dropped),
        "compiled": torch.compile(lambda *parts: plain(*parts)),
        "torch": plain,
    }
    for name, way in ways.items():
        out = way(*given)
        there = milliseconds(partial(way, *given))
        back = milliseconds(partial(torch.autograd.grad, out, given, case.grad, retain_graph=True))
        with torch.no_grad():
            alone = milliseconds(partial(way, *given))
        print(f"  {name:8} {there:6.3f} + {back:6.3f} ms, without gradients {alone:6.3f} ms", end="")
        if name == "ours":
            rates = [case.rate(4, there), case.rate(case.backward_tables(), back), case.rate(3, alone)]
            print(";", ", ".join(rates), end="")
        print()


def sweep(shape: Shape) -> None:
    case = Case(shape)
    _, *kept = case.forward(forward_tiles(shape.size))
    print(f"\n{shape}")
    rows: list[tuple[str, Tiles, int, Callable[[Tiles], object]]] = [
        ("forward", forward_tiles(shape.size), 4, case.forward),
        ("alone", forward_tiles(shape.size), 3, partial(case.forward, learns=False)),
        ("backward", backward_tiles(shape.size), case.backward_tables(), partial(case.backward, kept)),
    ]
    for name, chosen, tables, work in rows:
        found = []
        for tiles in dict.fromkeys([chosen, *CHOICES[shape.size]]):
            try:
                found.append((milliseconds(partial(work, tiles), 8), tiles))
            except Exception as error:
                print(f"  {name:8} {tiles}: {error}")
        for ms, tiles in sorted(found, key=lambda pair: pair[0]):
            mark = " (chosen)" if tiles == chosen else ""
            print(f"  {name:8} {ms:6.3f} ms {case.rate(tables, ms)}  {tiles}{mark}")


def compile_one(job: tuple[Shape, Tiles, Tiles]) -> str:
    """Brings kernels into Triton's cache on disk, by a run over a few rows."""
    shape, there, back = job
    try:
        case = Case(replace(shape, total=8))
        _, *kept = case.forward(there)
        case.forward(there, learns=False)
        case.backward(kept, back)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{shape} {there} {back}: {error}"
    return ""


def compile_all(swept: bool) -> None:
    """On all cores at once: one after the other takes longer than everything else here."""
    shapes = {(shape.size, shape.dropped): shape for shape in SHAPES}.values()
    chosen = [(shape, forward_tiles(shape.size), backward_tiles(shape.size)) for shape in shapes]
    if swept:  # the number of programs is no part of a kernel
        tried = {replace(tiles, programs=1): shape for shape in SWEPT for tiles in CHOICES[shape.size]}
        chosen += [(shape, tiles, tiles) for tiles, shape in tried.items()]
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        for problem in filter(None, pool.imap_unordered(compile_one, chosen)):
            print(problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    compile_all(options.sweep)
    print(f"{datetime.date.today()}  {torch.cuda.get_device_name()}  torch {torch.__version__}")
    for shape in SHAPES:
        compare(shape)
    if options.sweep:
        for shape in SWEPT:
            sweep(shape)


if __name__ == "__main__":
    main()
