"""The device that a model runs on: chosen, and its memory freed."""

import gc

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
