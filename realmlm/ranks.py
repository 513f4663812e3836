"""The processes that train together, as torchrun starts them. One alone is the usual case, and costs nothing.

R ranks.
"""

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from realmlm.errors import BadInput, RealmError

# the others wait while one builds an index; that one has died is noticed at once
_PATIENCE = timedelta(hours=12)
_AT_ONCE = 2**26  # numbers that are averaged at a time: what is joined for it takes as much memory again


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together. What is called by one must be called by all, in the same
    order."""

    rank: int = 0
    """The number of this one."""
    count: int = 1
    local: int = 1
    """How many of them are on this machine."""
    place: int = 0
    """The number of this one among those."""

    @classmethod
    def join(cls) -> "Ranks":
        """Meet the others that torchrun has started; without torchrun there are none.

        What lies on a GPU is sent by NCCL where every rank has one of its own, and by gloo where some share
        one; what lies in memory always by gloo.
        """
        count = int(os.environ.get("WORLD_SIZE", 1))
        if count == 1:
            return cls()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if not dist.is_initialized():
            try:
                _meet("cpu:gloo,cuda:nccl" if local <= torch.cuda.device_count() else "gloo")
            except (ValueError, RuntimeError) as error:
                raise BadInput(
                    f"WORLD_SIZE says that {count} processes train together, but they do not meet ({error}); "
                    "start them with torchrun, or leave WORLD_SIZE out"
                ) from error
            atexit.register(dist.destroy_process_group)
        return cls(dist.get_rank(), count, local, int(os.environ.get("LOCAL_RANK", 0)))

    @property
    def first(self) -> bool:
        """Is this the one that writes and speaks?"""
        return self.rank == 0

    def device(self, chosen: torch.device) -> torch.device:
        """The one of this rank: if `cuda` was chosen, the GPUs go round."""
        if self.count == 1 or chosen.type != "cuda":
            return chosen
        mine = self.place % torch.cuda.device_count()
        device = torch.device("cuda", mine if chosen.index is None else chosen.index)
        torch.cuda.set_device(device)
        return device

    def share(self, number: int) -> int:
        """How many of so many examples each rank has."""
        if number % self.count:
            raise BadInput(
                f"{number} examples cannot be shared evenly by {self.count} ranks; choose a batch (and "
                f"`accumulate`) whose parts are a multiple of {self.count}"
            )
        return number // self.count

    def wait(self) -> None:
        """Until all ranks are here."""
        self.numbers()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank does the block before the others: they find what it has written down."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def numbers(self, *mine: int) -> Tensor:
        """Some numbers of all ranks [R, n], in the host's memory."""
        return self.gather(torch.tensor([mine], dtype=torch.int64).view(1, len(mine)))

    def any(self, mine: bool) -> bool:
        """Does it hold for some rank?"""
        return mine if self.count == 1 else bool(self.numbers(mine).any())

    def all(self, mine: bool) -> bool:
        """Does it hold for all ranks?"""
        return mine if self.count == 1 else bool(self.numbers(mine).all())

    def gather(self, mine: Tensor) -> Tensor:
        """The rows of all ranks, one after the other; each has as many. Gradients find their way back."""
        if self.count == 1:
            return mine
        return _Gather.apply(self, mine)

    def sum(self, mine: Tensor) -> Tensor:
        """Summed up over the ranks, in place."""
        if self.count > 1:
            with _others_alive():
                dist.all_reduce(mine)
        return mine

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make each the mean over the ranks, in place. They are sent together, many at a time."""
        if self.count == 1:
            return
        joined: list[Tensor] = []
        for number, tensor in enumerate(tensors):
            joined.append(tensor)
            if sum(map(Tensor.numel, joined)) < _AT_ONCE and number + 1 < len(tensors):
                continue
            flat = self.sum(torch.cat([part.flatten() for part in joined])) / self.count
            for part, mean in zip(joined, flat.split([part.numel() for part in joined]), strict=True):
                part.copy_(mean.view_as(part))
            joined = []

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Make each that of the first rank, in place."""
        if self.count > 1:
            with _others_alive(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)


ALONE = Ranks()


def _meet(backend: str) -> None:
    """As `init_process_group` does by itself, except where torchrun starts ranks anew: there it may find the
    addresses of dead ones, since the store is the same, and wait for them."""
    store, rank, count = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"realmlm-{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_PATIENCE)


class _Gather(torch.autograd.Function):
    """All ranks' rows. A rank's gradient is of its own loss; that of its rows is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, mine: Tensor) -> Tensor:
        ctx.ranks = ranks
        ctx.rows = len(mine)
        home = torch.device("cpu") if dist.get_backend() == "gloo" else mine.device
        sent = mine.to(home).contiguous()
        everyone = sent.new_empty((ranks.count * len(mine), *mine.shape[1:]))
        with _others_alive():
            if everyone.numel():  # as bytes: any type can be sent
                dist.all_gather(list(everyone.view(torch.uint8).chunk(ranks.count)), sent.view(torch.uint8))
            else:
                dist.all_reduce(torch.zeros(1))
        return everyone.to(mine.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        total = ctx.ranks.sum(grad.float().contiguous())
        first = ctx.ranks.rank * ctx.rows
        return None, total[first : first + ctx.rows].to(grad.dtype)


@contextmanager
def _others_alive() -> Iterator[None]:
    """An error that says in plain words that another rank has gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise RealmError(
            f"rank {os.environ.get('RANK')} ends, because another one has: see what that one said "
            f"({str(error).splitlines()[0]})"
        ) from error
