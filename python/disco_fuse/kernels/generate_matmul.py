"""GenerateMatmul: chosen library calls become generated kernels of the same plan.

    y = call_dps_packed("disco_fuse.kernels.matmul", (a, b, plan))   ->   y = call_tir(gemm, (a, b))

A dispatched matmul has two candidates: the BLAS that torch brings along, and a kernel of our own
with the same strides. Which is faster depends on the processor and the shape, so it is measured
(:func:`disco_fuse.profile.choose_generated`), not decided here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from disco_fuse.kernels.cpu.gemm import generate_gemm
from disco_fuse.kernels.library import is_library_matmul, matmul_signature, plan_of
from disco_fuse.kernels.replace_calls import replace_calls


def GenerateMatmul(  # noqa: N802 - the name of a pass
    signatures: Collection[str] | None, target: Target
) -> tvm.transform.Pass:
    """Pass that replaces library matmuls of main by generated kernels.

    Parameters
    ----------
    signatures : collection of str or None
        Which ones, as :func:`disco_fuse.kernels.library.matmul_signature` names them; None: all.
    target : Target
        An llvm target.
    """

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return _generate(mod, signatures, target)

    return tvm.transform.module_pass(transform, opt_level=0, name="GenerateMatmul")


def generated_kernel(call: Any, target: Target) -> tirx.PrimFunc:
    """The kernel that replaces the library call ``call``: ``(a, b, out)``."""
    a, b, _ = call.args[1].fields
    result = call.ty
    shapes = [[int(d) for d in ty.shape.values] for ty in (a.ty, b.ty, result)]
    return generate_gemm(plan_of(call), str(result.dtype.dtype), shapes, target)


def _generate(
    mod: tvm.IRModule, signatures: Collection[str] | None, target: Target
) -> tvm.IRModule:
    def kernel_of(call: Any) -> tuple[str, tirx.PrimFunc] | None:
        if not is_library_matmul(call):
            return None
        if signatures is not None and matmul_signature(call) not in signatures:
            return None
        return "matmul", generated_kernel(call, target)

    return replace_calls(mod, kernel_of)
