"""The device that a model runs on: chosen, its memory freed, and what a process has set of torch kept."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from realmlm.errors import NotEnough


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
