"""Reading a dispatched matmul call: its plan, its cost facts, and arguments to time it with."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm_ffi import Shape

from disco_fuse.bindings import is_packed_call
from disco_fuse.kernels.library.plan import GemmPlan, Operand

FUNCTION_NAME = "disco_fuse.kernels.matmul"
_ITEM_BYTES = {"float32": 4, "float64": 8}


class OpFacts(NamedTuple):
    """What the cost model needs to know of an op."""

    flops: float
    bytes_read: int
    bytes_written: int


def emit_call(a: Any, b: Any, plan: GemmPlan, out_ty: Any) -> Any:
    """The Relax call of a plan on tensors `a` and `b`."""
    arguments = relax.Tuple([a, b, relax.ShapeExpr(list(plan.to_ints()))])
    return relax.op.call_dps_packed(FUNCTION_NAME, arguments, out_ty=out_ty)


def is_library_matmul(expr: Any) -> bool:
    """Whether an expression is a matmul that :func:`DispatchMatmul` dispatched."""
    return is_packed_call(expr, FUNCTION_NAME)


def plan_of(call: Any) -> GemmPlan:
    """The plan inside a dispatched call.

    Raises
    ------
    ValueError
        If `call` is not a dispatched matmul.
    """
    if not is_library_matmul(call):
        raise ValueError(f"expected a call of {FUNCTION_NAME}, got {call}")
    return GemmPlan.from_ints([int(value) for value in call.args[1].fields[2].values])


def op_facts(call: Any) -> OpFacts:
    """Floating-point operations, and bytes read and written, of a dispatched call.

    A matrix that repeats over the batch is read once.
    """
    plan = plan_of(call)
    item = _ITEM_BYTES[_dtype(call.ty)]
    num_read = _num_distinct(plan, plan.a, plan.m * plan.k)
    num_read += _num_distinct(plan, plan.b, plan.k * plan.n)
    return OpFacts(
        flops=2.0 * plan.num_matrices * plan.m * plan.n * plan.k,
        bytes_read=num_read * item,
        bytes_written=plan.num_matrices * plan.m * plan.n * item,
    )


def matmul_signature(call: Any) -> str:
    """Text that is equal exactly for calls that do the same work: dtype, shapes, and the plan."""
    plan = plan_of(call)
    a, b, _ = call.args[1].fields
    shapes = "/".join("x".join(map(str, static_shape(ty) or ())) for ty in (a.ty, b.ty, call.ty))
    return f"matmul/{_dtype(call.ty)}/{shapes}/{','.join(map(str, plan.to_ints()))}"


def random_arguments(call: Any, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Arguments for ``disco_fuse.kernels.matmul`` with which to time a dispatched call.

    Returns
    -------
    tuple
        (a, b, ints, out): two tensors of normal numbers, the plan, and an empty tensor.
    """
    plan = plan_of(call)
    rng = np.random.default_rng(seed)
    dtype = _dtype(call.ty)

    def tensor(ty: Any) -> Any:
        shape = static_shape(ty)
        assert shape is not None, "only static shapes are dispatched"
        return tvm.runtime.tensor(rng.standard_normal(shape).astype(dtype))

    a, b, _ = call.args[1].fields
    return tensor(a.ty), tensor(b.ty), Shape(plan.to_ints()), tensor(call.ty)


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """The shape of a tensor type as integers, or None if it is not a tensor of known shape."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    sizes = list(ty.shape.values)
    if not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
        return None
    return tuple(int(size) for size in sizes)


def _dtype(ty: Any) -> str:
    return str(ty.dtype)


def _num_distinct(plan: GemmPlan, operand: Operand, num_elements: int) -> int:
    """Elements of an operand, where batch dimensions of stride 0 count once."""
    batch = zip(plan.batch_shape, operand.batch_strides, strict=True)
    return num_elements * math.prod(size for size, stride in batch if stride != 0)
