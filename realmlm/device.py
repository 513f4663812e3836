"""Which device work runs on."""

import gc

import torch

from realmlm.errors import NotEnough


def pick_device(name: str) -> torch.device:
    """The device a setting names, checked; `auto` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NotEnough(f"no device '{name}'; use cpu, cuda or cuda:N") from error
    if device.type not in ("cuda", "cpu"):
        raise NotEnough(f"device '{name}' is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NotEnough(
            f"device '{name}' asked for, but torch finds no GPU here; use cpu, or install torch with CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise NotEnough(
            f"device '{name}' asked for, but there are only {torch.cuda.device_count()} GPUs, counted from "
            "0; use another"
        )
    return device


def cpu_has_bfloat16() -> bool:
    """Does this CPU multiply matrices of bfloat16 natively (AVX-512 BF16, AMX)? Where torch cannot say, it is
    taken not to."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def release_memory() -> None:
    """Give the GPU's memory back that torch keeps for later: another process may want it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
