"""GenerateConvolution: chosen library calls of convolutions become generated kernels.

    y = call_dps_packed("disco_fuse.kernels.convolution", (x, w, plan))
    ->  y = call_tir(convolution, (x, w))

As with matmul, a dispatched convolution has two candidates: the library inside torch, and a kernel
of our own (:mod:`disco_fuse.kernels.cpu.correlation`). Which is faster is measured
(:func:`disco_fuse.profile.choose_generated`), not decided here. Where torch is absent, all are
generated: neither dispatching nor this pass needs it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from disco_fuse.bindings import static_shape
from disco_fuse.graph import OpClass, OpPattern
from disco_fuse.kernels.correlation import correlation
from disco_fuse.kernels.cpu.correlation import generate_correlation
from disco_fuse.kernels.cpu.gemm import FLOPS_ATTR
from disco_fuse.kernels.library import (
    convolution_facts,
    convolution_plan_of,
    convolution_signature,
    is_library_convolution,
)
from disco_fuse.kernels.op_class import OP_CLASS_ATTR
from disco_fuse.kernels.replace_calls import replace_calls

_NAMES = {"small": "convolution", "large": "input_gradient", "weight": "weight_gradient"}


def GenerateConvolution(  # noqa: N802 - the name of a pass
    signatures: Collection[str] | None, target: Target
) -> tvm.transform.Pass:
    """Pass that replaces library convolutions of main by generated kernels.

    Those with an empty operand or result stay calls, which do nothing.

    Parameters
    ----------
    signatures : collection of str or None
        Which ones, as :func:`disco_fuse.kernels.library.convolution_signature` names them; None:
        all.
    target : Target
        An llvm target.
    """

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return _generate(mod, signatures, target)

    return tvm.transform.module_pass(transform, opt_level=0, name="GenerateConvolution")


def can_generate(call: Any) -> bool:
    """Whether a library convolution has a generated candidate: no tensor of it is empty."""
    a, b, _ = call.args[1].fields
    return all(math.prod(static_shape(ty)) > 0 for ty in (a.ty, b.ty, call.ty))


def generated_convolution(call: Any, target: Target) -> tirx.PrimFunc:
    """The kernel that replaces the library call ``call``: ``(a, b, out)``."""
    plan = convolution_plan_of(call)
    a, b, _ = call.args[1].fields
    operands = (static_shape(a.ty), static_shape(b.ty))
    result = static_shape(call.ty)
    # A call reads two of (large, small, weight) in this order and writes the third.
    large, small, weight = {
        "small": (operands[0], result, operands[1]),
        "large": (result, *operands),
        "weight": (*operands, result),
    }[plan.result]
    kernel = generate_correlation(
        correlation(plan, large, small, weight),
        str(call.ty.dtype.dtype),
        (*operands, result),
        target,
    )
    return kernel.with_attrs(
        {
            "op_pattern": int(OpPattern.OPAQUE),
            FLOPS_ATTR: convolution_facts(call).flops,
            OP_CLASS_ATTR: str(OpClass.CONVOLUTION),
        }
    )


def _generate(
    mod: tvm.IRModule, signatures: Collection[str] | None, target: Target
) -> tvm.IRModule:
    def kernel_of(call: Any) -> tuple[str, tirx.PrimFunc] | None:
        if not is_library_convolution(call) or not can_generate(call):
            return None
        if signatures is not None and convolution_signature(call) not in signatures:
            return None
        name = _NAMES[convolution_plan_of(call).result]
        return name, generated_convolution(call, target)

    return replace_calls(mod, kernel_of)
