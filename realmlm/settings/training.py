"""Settings that the stages share: how weights move, what happens around steps, how the index follows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from realmlm.defaults import ENGINE
from realmlm.settings.base import Positional, Settings, arg, ensure, optional


@dataclass(frozen=True, kw_only=True)
class Optim(Settings):
    """How the weights move."""

    steps: int = 1000
    """Training steps."""
    batch: int = 32
    """Examples per step."""
    accumulate: int = 1
    """Parts to process a step's batch in, to fit memory; the gradient is the same up to rounding and dropout,
    but where passages are told from the others of their part, which are fewer (ICT, recurring spans, towers
    and --in-batch)."""
    lr: float = 1e-4
    """Peak learning rate; when reader and retriever learn together, the reader's."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises linearly; then it falls linearly to zero."""
    weight_decay: float = 0.01
    """AdamW's weight decay, on matrices only."""
    clip: float = 1.0
    """Largest gradient norm, for retriever and reader separately."""

    def check(self) -> None:
        self.at_least(0, "steps", "weight_decay")
        self.at_least(1, "batch")
        self.above_zero("lr", "clip")
        self.between(0, 1, "warmup")
        equal = self.accumulate >= 1 and self.batch % self.accumulate == 0
        ensure(equal, f"batch {self.batch} cannot be cut into {self.accumulate} equal parts")


@dataclass(frozen=True, kw_only=True)
class JointOptim(Optim):
    """How the weights move when reader and retriever learn together."""

    retriever_lr: float = 3e-5
    """Peak learning rate of the retriever. The higher it is, the more fragile joint training becomes."""

    def check(self) -> None:
        super().check()
        rate = self.retriever_lr
        ensure(rate >= 0, f"retriever-lr must be 0 (the retriever does not change) or more, not {rate}")


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
    """bfloat16 autocast on a GPU, and on a CPU that computes it itself, for encoders 192 wide or wider."""
    threads: int = 0
    """CPU threads for training; 0 leaves it to torch, less one when a refresher runs alongside on the CPU.
    After the stage the process has as many as before."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes that prepare batches ahead of time; default: some with a GPU, none on a CPU."""
    compile: bool = False
    """Fuse the encoders' layers (torch.compile) and record whole steps: takes a minute once, then steps on a
    GPU are faster."""
    shard: bool = False
    """Under torchrun, cut the encoders' layers with their gradients and moments over the ranks (FSDP2), for
    encoders that do not fit on one GPU: slower. Not for finetune."""
    deterministic: bool = False
    """Use only algorithms that give the same bits every time, and swap new indexes in at fixed steps."""

    def check(self) -> None:
        self.at_least(1, "log_every", "checkpoint_every", within="loop.")
        self.at_least(0, "seed", "workers", within="loop.")
        ensure(not (self.shard and self.compile), "--loop.shard does not go with --loop.compile")
        ensure(self.threads >= 0, f"loop.threads must be 0 (torch's choice) or more, not {self.threads}")


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
    engine: Literal["local", "ray"] = ENGINE
    """local: one process; ray: also on the Ray cluster at RAY_ADDRESS, or one started here, a refresher for
    each of its GPUs or, if this one embeds on a CPU, cores; it must see the folders of run and corpus."""

    def check(self) -> None:
        self.at_least(1, "shard", within="refresh.")
        self.at_least(0, "every_steps", within="refresh.")
        after = self.swap_after
        in_time = after is None or 1 <= after <= max(self.every_steps, 1)
        ensure(in_time, f"refresh.swap-after must be between 1 and refresh.every-steps, not {after}")
        beside = self.engine == "local" or (self.process and self.every_steps > 0)
        ensure(beside, "--refresh.engine ray helps a refresher beside training: give --refresh.every-steps")


@dataclass(frozen=True, kw_only=True)
class TrainObjective(Settings):
    """Train an objective of one's own (`realmlm.train.stages.train_objective`); it names its rates itself."""

    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)


@dataclass(frozen=True, kw_only=True)
class JoinRun(Settings):
    """Help a running training to refresh its index, from any machine that sees its folder; ends with it."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of a `pretrain` or `finetune` that is running, its --out."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus of the run, if it has another path on this machine."""
    device: str = "auto"
    """Where passages are embedded; must be of the kind that the run's own refresher uses."""
