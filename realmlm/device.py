"""The device that a model runs on: chosen, tried, its memory freed, and what a process has set of torch
kept."""

import gc
import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from realmlm.errors import NotEnough
from realmlm.log import say

COMPILER = "install a C compiler (on Debian: apt install gcc libc6-dev)"


def pick_device(name: str) -> torch.device:
    """The device that a setting names, if it is there; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NotEnough(f"no device '{name}'; use cpu, cuda or cuda:N") from error
    if device.type not in ("cuda", "cpu"):
        raise NotEnough(f"device '{name}' is not supported; use cpu, cuda or cuda:N")
    asked = f"device '{name}' asked for"
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NotEnough(f"{asked}, but torch finds no GPU here; use cpu, or install torch with CUDA")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = f"there are only {torch.cuda.device_count()} GPUs, counted from 0"
        raise NotEnough(f"{asked}, but {count}; use another")
    return device


def c_compiler() -> str | None:
    """What Triton would build with: at its first use it compiles some C. None: there is none."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def builds_kernels() -> bool:
    """Can kernels be built for the GPU? If Triton is there and cannot, it is said once, and whoever asks goes
    the plain way."""
    return _builds_kernels()


@cache
def _builds_kernels() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        build_one()
    # whatever it is: no compiler, a cache that cannot be written, a driver that is too old
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        cure = f"; {COMPILER}" if c_compiler() is None else ""
        say(f"no kernels can be built for the GPU ({why}): it is used without them, which is slower{cure}")
        return False
    return True


def build_one() -> None:
    from realmlm.trial_kernels import put_one

    number = torch.zeros(1, dtype=torch.int32, device="cuda")
    put_one[(1,)](number)
    assert number.item() == 1


def release_memory() -> None:
    """Give back the GPU memory that torch has cached: another process may want it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """After the block torch's threads and modes, which belong to the whole process, are what they were."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
