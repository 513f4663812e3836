"""Settings that the training stages share: how weights move, what happens around the steps, how the index
follows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from realmlm.settings.base import Settings, ensure, optional


@dataclass(frozen=True, kw_only=True)
class Optim(Settings):
    """How the weights move."""

    steps: int = 1000
    """Training steps."""
    batch: int = 32
    """Examples per step."""
    accumulate: int = 1
    """Parts to process a step's batch in, to fit memory; the gradient is the same up to rounding (ICT: fewer
    negatives)."""
    lr: float = 1e-4
    """Peak learning rate; when reader and retriever learn together, the reader's."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises linearly; then it falls linearly to zero."""
    weight_decay: float = 0.01
    """AdamW's weight decay, on matrices only."""
    clip: float = 1.0
    """Largest gradient norm, for retriever and reader separately."""

    def check(self) -> None:
        ensure(self.steps >= 0, f"steps must be 0 or more, not {self.steps}")
        ensure(self.batch >= 1, f"batch must be 1 or more, not {self.batch}")
        ensure(
            self.accumulate >= 1 and self.batch % self.accumulate == 0,
            f"batch {self.batch} cannot be cut into {self.accumulate} equal parts",
        )
        ensure(self.lr > 0, f"lr must be more than 0, not {self.lr}")
        ensure(self.weight_decay >= 0, f"weight-decay must be 0 or more, not {self.weight_decay}")
        ensure(self.clip > 0, f"clip must be more than 0, not {self.clip}")
        ensure(0 <= self.warmup <= 1, f"warmup must be between 0 and 1, not {self.warmup}")


@dataclass(frozen=True, kw_only=True)
class JointOptim(Optim):
    """How the weights move when reader and retriever learn together."""

    retriever_lr: float = 3e-5
    """Peak learning rate of the retriever. The higher it is, the more fragile joint training becomes."""

    def check(self) -> None:
        super().check()
        ensure(
            self.retriever_lr >= 0,
            f"retriever-lr must be 0 (the retriever does not change) or more, not {self.retriever_lr}",
        )


@dataclass(frozen=True, kw_only=True)
class Loop(Settings):
    """What happens around the steps."""

    log_every: int = 10
    """Steps between rows of metrics."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """Seed for every random choice in the run."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto takes a GPU if there is one."""
    bf16: bool = True
    """bfloat16 autocast on a GPU."""
    threads: int = 0
    """CPU threads for training; 0 leaves it to torch, less one when a refresher runs alongside on the CPU."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes that prepare batches ahead of time; default: some with a GPU, none on a CPU."""
    compile: bool = False
    """Fuse the encoders' layers (torch.compile): takes a minute once, then steps on a GPU are faster."""
    deterministic: bool = False
    """Use only algorithms that give the same bits every time, and swap new indexes in at fixed steps."""

    def check(self) -> None:
        ensure(self.log_every >= 1, f"loop.log-every must be 1 or more, not {self.log_every}")
        ensure(
            self.checkpoint_every >= 1,
            f"loop.checkpoint-every must be 1 or more, not {self.checkpoint_every}",
        )
        ensure(self.seed >= 0, f"loop.seed must be 0 or more, not {self.seed}")
        ensure(self.threads >= 0, f"loop.threads must be 0 (torch's choice) or more, not {self.threads}")
        ensure(
            self.workers is None or self.workers >= 0, f"loop.workers must be 0 or more, not {self.workers}"
        )


@dataclass(frozen=True, kw_only=True)
class Refresh(Settings):
    """How the index keeps up with the document tower."""

    every_steps: int = 500
    """Training steps between snapshots handed to the refresher; 0 leaves the index as it is."""
    process: bool = True
    """Re-embed in a separate process while training continues; otherwise training waits for it."""
    swap_after: Annotated[int | None, optional("N")] = None
    """Swap the new index in exactly this many steps after its snapshot, waiting if it is late; default: as
    soon as it is ready."""
    device: str = "auto"
    """Where the refresher embeds; auto takes the last GPU if there are several, else the trainer's device."""
    dtype: Literal["float16", "float32"] = "float16"
    """Type of the stored vectors."""
    shard: int = 65_536
    """Passages embedded between writes to disk: the most that a killed refresher has to redo."""

    def check(self) -> None:
        ensure(self.shard >= 1, f"refresh.shard must be 1 or more, not {self.shard}")
        ensure(self.every_steps >= 0, f"refresh.every-steps must be 0 or more, not {self.every_steps}")
        late = self.swap_after is not None and not 1 <= self.swap_after <= max(self.every_steps, 1)
        ensure(
            not late, f"refresh.swap-after must be between 1 and refresh.every-steps, not {self.swap_after}"
        )


@dataclass(frozen=True, kw_only=True)
class TrainObjective(Settings):
    """Train an objective of one's own (`realmlm.train.stages.train_objective`); it names its rates itself."""

    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)
