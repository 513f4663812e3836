"""Products in bfloat16 where that is faster, for training and for embedding meanwhile. Weights and losses
stay in float32."""

import torch
from torch import nn

from realmlm.errors import BadInput

WIDE = 192  # hidden size from which on it is worth it on a CPU (docs/speed.md)


def check_trainable(model: nn.Module) -> None:
    """Raise if weights are not in float32: fewer bits do not tell apart what a step of training changes."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            cure = "train model.float(); --loop.bf16 computes in half precision where it is safe"
            raise BadInput(f"the model's weights are in {kind} ({name}), too coarse to learn; {cure}")


def half_precision(
    device: torch.device, hidden: int, *, wanted: bool = True, cache_enabled: bool = True
) -> torch.autocast:
    """While it is entered, encoders of this size compute their products in bfloat16: on a GPU, and on a CPU
    that computes it itself, if they are wide enough."""
    worth_it = device.type == "cuda" or (hidden >= WIDE and cpu_has_bfloat16())
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=wanted and worth_it, cache_enabled=cache_enabled
    )


def cpu_has_bfloat16() -> bool:
    """Does this CPU have instructions for it? What it has does not change from one process of a run to the
    next, as what was timed might."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # torch has no public name for it
    return known is not None and bool(known())
