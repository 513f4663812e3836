"""AdamW as the stages use it: its parameter groups, its rates over the steps, its state in a checkpoint."""

from typing import Any

import torch
from torch import Tensor

from realmlm.model.cut import cut_like, is_cut, whole
from realmlm.settings import Optim
from realmlm.train.objective import Group


def learning_rate(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Linear rise, then linear fall to zero."""
    rising = max(1, round(warmup * steps))
    return peak * min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))


def make_optimizer(
    groups: dict[str, Group], optim: Optim, *, recorded: bool = False, cut: bool = False
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; a pair of its parameter groups for each of ours.

    For steps that are recorded the rate is a tensor: a number would be recorded too. Where some parameters
    are cut, each moves by itself: torch moves none together with others that are not.
    """
    parts: list[dict[str, Any]] = []
    for name, group in groups.items():
        trained = [parameter for parameter in group.parameters if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim > 1]
        rest = [parameter for parameter in trained if parameter.ndim <= 1]
        of = {"name": name, "peak": group.lr}
        parts.append({"params": matrices, "weight_decay": optim.weight_decay, **of})
        parts.append({"params": rest, "weight_decay": 0.0, **of})
    # 0.98 is RoBERTa's choice, where BERT and REALM have 0.999: it suits short runs with large batches
    device = next(parameter.device for part in parts for parameter in part["params"])
    if recorded:
        parts = [{**part, "lr": torch.tensor(optim.lr, device=device)} for part in parts]
    how = {"fused": True, "capturable": recorded} if device.type == "cuda" else {}
    how = {"foreach": False} if cut else how
    return torch.optim.AdamW(parts, lr=optim.lr, betas=(0.9, 0.98), eps=1e-6, **how)


def to_device(groups: dict[str, Group], device: torch.device) -> None:
    """Bring what learns to a device, an objective's own parameters with it; they stay the same objects."""
    for parameter in (parameter for group in groups.values() for parameter in group.parameters):
        parameter.data = parameter.data.to(device)


def make_room(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter that has no moments yet moments of zero, as its first step would.

    A captured step (`realmlm.train.recorded`) that did so itself, for a retriever that was frozen until then
    for instance, would set them to zero again at every replay.
    """
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All of the optimizer's state, one tensor after the other in the host's memory where they are cut."""
    state = optimizer.state_dict()["state"]
    named = {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}
    return {name: whole(value).cpu() if is_cut(value) else value for name, value in named.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = cut_like(parameters[int(number)], tensor)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def set_rates(optimizer: torch.optim.Optimizer, optim: Optim, step: int, slowed: dict[str, float]) -> None:
    """The rates of a step; `slowed` is a factor for some groups by name."""
    for group in optimizer.param_groups:
        peak = group["peak"] * slowed.get(group["name"], 1.0)
        rate = learning_rate(step, steps=optim.steps, warmup=optim.warmup, peak=peak)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
