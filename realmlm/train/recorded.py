"""Steps of training that are recorded once and played back: the GPU need not wait for the program."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from realmlm.log import say
from realmlm.train.objective import Staged

Step = Callable[[Staged], dict[str, Tensor]]
"""Gradients, clipping and the optimizer's step, by tensors alone; gives numbers for the row."""


class RecordedSteps:
    """A CUDA graph for each kind of sizes that steps come in.

    The first step of all is made as it is: it compiles, and the optimizer makes room for its moments. If a
    step cannot be recorded (an objective of one's own that asks the device for a number, too little memory),
    this and all that follow are made as they are.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._stream = torch.cuda.Stream()
        self._recorded: dict[object, tuple[torch.cuda.CUDAGraph, Staged, dict[str, Tensor]]] = {}
        self._begun = False
        self._records = True

    def __call__(self, staged: Staged) -> dict[str, Tensor]:
        """Make a step."""
        key = (staged.sizes, tuple((name, tensor.shape) for name, tensor in staged.tensors.items()))
        if self._begun and self._records and key not in self._recorded:
            self._record(key, staged)
        self._begun = True
        if key not in self._recorded:
            return self._beside(lambda: self._step(staged))
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
                numbers = self._step(inputs)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            say(f"steps are not recorded, which is slower: {str(error).splitlines()[0]}")
            self._records = False
            self._recorded.clear()
            torch.cuda.empty_cache()
            return
        self._recorded[key] = (graph, inputs, numbers)
