"""Matmul and convolution through the libraries that torch brings along.

if library_available():
    module = DispatchMatmul()(module)      # before LegalizeOps
    module = DispatchConvolution()(module)
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
from disco_fuse.kernels.library.convolution_calls import (
    CONVOLUTION_NAME,
    ConvolutionPlan,
    convolution_arguments,
    convolution_facts,
    convolution_plan_of,
    convolution_signature,
    emit_convolution,
    is_library_convolution,
)
from disco_fuse.kernels.library.dispatch import DispatchMatmul
from disco_fuse.kernels.library.dispatch_convolution import DispatchConvolution

__all__ = [
    "CONVOLUTION_NAME",
    "FUNCTION_NAME",
    "ConvolutionPlan",
    "DispatchConvolution",
    "DispatchMatmul",
    "OpFacts",
    "convolution_arguments",
    "convolution_facts",
    "convolution_plan_of",
    "convolution_signature",
    "emit_convolution",
    "find_library",
    "is_library_convolution",
    "is_library_matmul",
    "library_available",
    "load_library",
    "matmul_signature",
    "op_facts",
    "plan_of",
    "random_arguments",
    "set_num_threads",
]
