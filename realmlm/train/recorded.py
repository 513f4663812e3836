"""CUDA graphs: a training step is captured once per tensor shape and replayed, so that the GPU need not wait
for Python."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from realmlm.log import say
from realmlm.train.objective import Staged

Work = Callable[[Staged], dict[str, Tensor]]
"""Something done by tensors alone, a whole step of training for instance; gives tensors."""


class Recorded:
    """Work with a CUDA graph for each combination of shapes it is called with. The tensors it returns are
    overwritten by the next call.

    The first call of each `Staged.way` is not captured: it may compile, which a graph cannot contain. If a
    capture fails (an objective of one's own that reads a number from the GPU, too little memory), that call
    and all later ones run without graphs.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self._work = work
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._recorded: dict[object, tuple[torch.cuda.CUDAGraph, Staged, dict[str, Tensor]]] = {}
        self._begun: set[object] = set()  # the ways that have run once, without a graph
        self._records = True

    def __call__(self, staged: Staged) -> dict[str, Tensor]:
        """Run the work on what was staged: by its graph, where there is one."""
        with torch.cuda.device(self._device):  # streams and graphs are those of the current GPU
            return self._do(staged)

    def _do(self, staged: Staged) -> dict[str, Tensor]:
        shapes = tuple((name, tensor.shape) for name, tensor in staged.tensors.items())
        key = (staged.way, staged.sizes, shapes)
        if staged.way in self._begun and self._records and key not in self._recorded:
            self._record(key, staged)
        self._begun.add(staged.way)
        if key not in self._recorded:
            return self._beside(lambda: self._work(staged))
        graph, inputs, numbers = self._recorded[key]
        for name, tensor in staged.tensors.items():
            inputs.tensors[name].copy_(tensor, non_blocking=True)
        graph.replay()
        return numbers

    def _beside(self, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """On the stream that records: what autograd sets up belongs to one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            numbers = make()
        torch.cuda.current_stream().wait_stream(self._stream)
        return numbers

    def _record(self, key: object, staged: Staged) -> None:
        inputs = replace(staged, tensors={name: tensor.clone() for name, tensor in staged.tensors.items()})
        graph = torch.cuda.CUDAGraph()
        pool = next((recorded[0].pool() for recorded in self._recorded.values()), None)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                numbers = self._work(inputs)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            say(f"not recorded, which is slower: {str(error).splitlines()[0]}")
            self._records = False
            self._recorded.clear()
            _release_generator()
            torch.cuda.empty_cache()
            return
        self._recorded[key] = (graph, inputs, numbers)


def _release_generator() -> None:
    """A recording that failed leaves dropout's generator waiting for its end: an equal one replaces it."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
