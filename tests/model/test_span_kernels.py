"""The span head's kernel against the head by its definition: on a GPU, or in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from realmlm.model import attention
from realmlm.model.encoders import SpanHead
from realmlm.model.packed_heads import score_spans

GPU = torch.cuda.is_available() and not attention.INTERPRETED
DEVICE = "cuda" if GPU else "cpu"
needs_kernels = pytest.mark.skipif(
    not (GPU or attention.INTERPRETED), reason="neither a GPU nor TRITON_INTERPRET=1 with Triton"
)


def test_the_kernel_in_tritons_interpreter() -> None:
    if GPU or attention.INTERPRETED or importlib.util.find_spec("triton") is None:
        pytest.skip("tested as it is, or no Triton here")
    again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(again, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@needs_kernels
@pytest.mark.parametrize("length", [1, 3, 130])
@pytest.mark.parametrize(("size", "widths"), [(16, 3), (24, 10), (256, 10)])
def test_spans_are_scored_as_by_definition(length: int, size: int, widths: int) -> None:
    torch.manual_seed(0)
    head = SpanHead(32, width=size, max_width=widths)
    for part in (head.norm.weight, head.norm.bias):
        torch.nn.init.normal_(part, mean=0.5)
    dtype = torch.bfloat16 if GPU else torch.float32
    hidden_TH = torch.randn(length, 32).to(dtype)
    with torch.no_grad():
        truth_TW = head.double()(hidden_TH.double()[None])[0]
    ours_TW = score_spans(head.float().to(DEVICE), hidden_TH.to(DEVICE)).cpu()
    columns_T1 = torch.arange(length)[:, None]
    inside_TW = columns_T1 + torch.arange(widths) < length  # past the end it means nothing
    room = 0.03 if GPU else 1e-5
    assert ours_TW.shape == truth_TW.shape
    assert (ours_TW - truth_TW)[inside_TW].abs().max() < room * max(1.0, float(truth_TW.abs().max()))
