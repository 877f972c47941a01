"""Matmul through the BLAS library that torch brings along.

if library_available():
    module = DispatchMatmul()(module)      # before LegalizeOps
...
load_library()                             # in every process that runs the result
"""

from __future__ import annotations

from disco_fuse.kernels.library.blas import (
    find_library,
    library_available,
    load_library,
    set_num_threads,
)
from disco_fuse.kernels.library.calls import (
    FUNCTION_NAME,
    OpFacts,
    is_library_matmul,
    matmul_signature,
    op_facts,
    plan_of,
    random_arguments,
)
from disco_fuse.kernels.library.dispatch import DispatchMatmul

__all__ = [
    "FUNCTION_NAME",
    "DispatchMatmul",
    "OpFacts",
    "find_library",
    "is_library_matmul",
    "library_available",
    "load_library",
    "matmul_signature",
    "op_facts",
    "plan_of",
    "random_arguments",
    "set_num_threads",
]
