"""Encoders that do not fit on one device: their layers are cut over the ranks (FSDP2).

A rank holds 1/R of a layer's weights, gradients and moments. When the layer is called, and again on the way
back, all ranks gather its weights for as long as that takes: so all must call the same layers. What one rank
does with the model by itself, it does while the layers are `whole`.

R ranks.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from realmlm.ranks import Ranks

# torch's part for it is imported where something is cut: who asks a question need not wait for it


class CutLayers:
    """The layers of some encoders, cut. Embeddings and heads stay whole on every rank: the reader predicts
    with the word embeddings outside of any layer."""

    def __init__(self, stacks: Sequence[nn.ModuleList], ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._stacks = stacks
        device = next(weight for layers in stacks for weight in layers.parameters()).device
        mesh = init_device_mesh(device.type, (ranks.count,))
        self._moulds = [[copy.deepcopy(layer).to("meta") for layer in layers] for layers in stacks]
        for layer in (layer for layers in stacks for layer in layers):
            fully_shard(layer, mesh=mesh)
        self._cut = [list(layers) for layers in stacks]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """While the block runs, the encoders have layers with whole weights, which are not to be trained. All
        ranks must come here; what they do inside is their own affair."""
        self.join()
        try:
            yield
        finally:
            self._put(self._cut)

    def join(self) -> None:
        """Give the encoders layers with whole weights, as if they had never been cut."""
        self._put([list(map(_cast, *pair)) for pair in zip(self._moulds, self._cut, strict=True)])

    def _put(self, layers: Sequence[Sequence[nn.Module]]) -> None:
        for stack, several in zip(self._stacks, layers, strict=True):
            for number, layer in enumerate(several):
                stack[number] = layer


def _cast(mould: nn.Module, cut: nn.Module) -> nn.Module:
    """A layer of its own with the weights of one that is cut."""
    device = next(cut.parameters()).device
    layer = copy.deepcopy(mould).to_empty(device=device).train(cut.training)
    with torch.no_grad():
        for name, parameter in cut.named_parameters():
            layer.get_parameter(name).copy_(whole(parameter))
        for name, buffer in cut.named_buffers():
            layer.get_buffer(name).copy_(buffer)
    return layer


def is_cut(tensor: Tensor) -> bool:
    """Has this rank only a part of it?"""
    return hasattr(tensor, "full_tensor")  # as DTensor has, and Tensor has not


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be cut; then all ranks must come here."""
    return tensor.full_tensor() if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def cut_like(parameter: Tensor, given: Tensor) -> Tensor:
    """This rank's part of a tensor, if that of the parameter is all it has; every rank is given the same."""
    if not is_cut(parameter) or given.shape != parameter.shape:
        return given
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    here = given.to(parameter.device)
    return distribute_tensor(here, parameter.device_mesh, parameter.placements, src_data_rank=None)


def clip_norm(parameters: Iterable[nn.Parameter], most: float) -> None:
    """`torch.nn.utils.clip_grad_norm_`, of parameters of which some are cut."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not any(map(is_cut, gradients)):
        nn.utils.clip_grad_norm_(parameters, most)
        return
    norms = [whole(torch.linalg.vector_norm(gradient)) for gradient in gradients]
    factor = most / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    for gradient in gradients:
        gradient.mul_(factor.clamp(max=1.0))
