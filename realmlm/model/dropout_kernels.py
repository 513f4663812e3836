# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator"
# Kernels are written in Triton, which has no types of Python.
"""What is dropped, as every kernel draws it: from a seed and places alone, so that nothing is kept for
gradients."""

import triton
import triton.language as tl


@triton.jit
def _mixed(number):
    """Numbers of 32 bits that look drawn: each bit of the input moves each of the output."""
    number = (number ^ (number >> 16)) * 0x6A09E667
    number = (number ^ (number >> 15)) * 0xB7E15163
    return number ^ (number >> 16)


@triton.jit
def table_key(Seed, table):
    """What a table brings into the draw: the seed and its number."""
    return _mixed(tl.load(Seed).to(tl.uint32) + tl.cast(table, tl.uint32) * 0x9E3779B1)


@triton.jit
def row_keys(table_key, rows):
    return _mixed(table_key ^ (rows.to(tl.uint32) * 0x9E3779B1))


@triton.jit
def column_keys(columns):
    return _mixed(columns.to(tl.uint32) + 0x9E3779B1)


@triton.jit
def stay(row_keys, column_keys, border):
    """Which numbers are not dropped: all of the draw that is done for each of them is these lines."""
    drawn = (row_keys ^ column_keys) * 0x6A09E667
    drawn = (drawn ^ (drawn >> 15)) * 0xB7E15163
    return drawn.to(tl.int32, bitcast=True) >= border
