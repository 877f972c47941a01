"""Convolutions as library calls: the plan inside a call, its cost facts, arguments to time it with.

One relation of three tensors holds a convolution, both its gradients and its transpose::

    small[n, a, i] = sum over b, p of weight[a, b, p] * large[n, g * B + b, i * s + p * d - pad]

Each is computed from the two others: ``small`` by a convolution, ``large`` by the transposed
convolution, which is the input gradient, and ``weight`` by the weight gradient. A call reads the
two in the order large, small, weight. See ``src/kernels/convolution.h``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax
from tvm_ffi import Shape

from disco_fuse.bindings import is_packed_call
from disco_fuse.kernels.library.calls import OpFacts, static_shape

CONVOLUTION_NAME = "disco_fuse.kernels.convolution"
Result = Literal["small", "large", "weight"]
_RESULTS: tuple[Result, ...] = ("small", "large", "weight")
_ITEM_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True, kw_only=True)
class ConvolutionPlan:
    """Which tensor a call computes, and how the window moves: an entry per spatial axis.

    Attributes
    ----------
    result : str
        "small", "large" or "weight".
    groups : int
    stride, padding, dilation : tuple of int
        As in torch; padding is that of both sides.
    """

    result: Result
    groups: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def to_ints(self) -> tuple[int, ...]:
        """The form in which the call carries it."""
        head = (_RESULTS.index(self.result), self.groups, len(self.stride))
        return (*head, *self.stride, *self.padding, *self.dilation)

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> ConvolutionPlan:
        """The inverse of :meth:`to_ints`."""
        result, groups, rank, *window = ints
        return ConvolutionPlan(
            result=_RESULTS[result],
            groups=groups,
            stride=tuple(window[:rank]),
            padding=tuple(window[rank : 2 * rank]),
            dilation=tuple(window[2 * rank :]),
        )


def emit_convolution(a: Any, b: Any, plan: ConvolutionPlan, out_ty: Any) -> Any:
    """The Relax call of a plan on the two tensors that it reads."""
    arguments = relax.Tuple([a, b, relax.ShapeExpr(list(plan.to_ints()))])
    return relax.op.call_dps_packed(CONVOLUTION_NAME, arguments, out_ty=out_ty)


def is_library_convolution(expr: Any) -> bool:
    """Whether an expression is a convolution, or a gradient of one, that is a library call."""
    return is_packed_call(expr, CONVOLUTION_NAME)


def convolution_plan_of(call: Any) -> ConvolutionPlan:
    """The plan inside a call.

    Raises
    ------
    ValueError
        If `call` is not a library convolution.
    """
    if not is_library_convolution(call):
        raise ValueError(f"expected a call of {CONVOLUTION_NAME}, got {call}")
    return ConvolutionPlan.from_ints(tuple(int(v) for v in call.args[1].fields[2].values))


def convolution_facts(call: Any) -> OpFacts:
    """Operations that the definition asks for, and bytes read and written.

    Every element of ``small`` meets each tap of each channel of its group once; a product and its
    sum are two operations, and zeros of the padding count as elements.
    """
    shapes = dict(zip(_order(call), _shapes(call), strict=True))
    item = _ITEM_BYTES[_dtype(call)]
    *read, written = (math.prod(shape) * item for shape in _shapes(call))
    return OpFacts(
        flops=2.0 * math.prod(shapes["small"]) * math.prod(shapes["weight"][1:]),
        bytes_read=sum(read),
        bytes_written=written,
    )


def convolution_signature(call: Any) -> str:
    """Text that is equal exactly for calls that do the same work: dtype, shapes, and the plan."""
    shapes = "/".join("x".join(map(str, shape)) for shape in _shapes(call))
    ints = ",".join(map(str, convolution_plan_of(call).to_ints()))
    return f"convolution/{_dtype(call)}/{shapes}/{ints}"


def convolution_arguments(call: Any, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Arguments to time a call with: two tensors of normal numbers, the plan, an empty one."""
    rng = np.random.default_rng(seed)
    a, b, out = (
        tvm.runtime.tensor(rng.standard_normal(shape).astype(_dtype(call)))
        for shape in _shapes(call)
    )
    return a, b, Shape(convolution_plan_of(call).to_ints()), out


def _order(call: Any) -> tuple[Result, ...]:
    """Roles of the two operands and the result."""
    result = convolution_plan_of(call).result
    return (*(role for role in _RESULTS if role != result), result)


def _shapes(call: Any) -> list[tuple[int, ...]]:
    """Shapes of the two operands and the result."""
    a, b, _ = call.args[1].fields
    shapes = [static_shape(ty) for ty in (a.ty, b.ty, call.ty)]
    assert None not in shapes, "only static shapes are dispatched"
    return [shape for shape in shapes if shape is not None]


def _dtype(call: Any) -> str:
    return str(call.ty.dtype)
