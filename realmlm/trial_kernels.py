# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator"
"""The smallest kernel there is, in Triton: can one be built here? (realmlm.device)"""

import triton
import triton.language as tl


@triton.jit
def put_one(into):
    tl.store(into, 1)
