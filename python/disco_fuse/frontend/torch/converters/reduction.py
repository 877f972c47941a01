"""Reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    accumulator_of,
    axis_of,
    cast,
    converts,
    dtype_of,
    shape_of,
    without_bool,
)

op = relax.op


def _axes(dims: int | Sequence[int] | None, x: Expr) -> list[int]:
    """torch's dims as axes; both None and the empty list mean all of them."""
    if isinstance(dims, int):
        dims = [dims]
    rank = len(shape_of(x))
    return sorted(d % rank for d in dims) if dims and rank else list(range(rank))


@converts("aten.sum.dim_IntList")
def sum_dims(
    node: Node, x: Expr, dims: Any = None, keepdim: bool = False, **_keywords: Any
) -> Expr:
    """Sum over the given axes, accumulated in the dtype of the result (int64 for integers)"""
    axes = _axes(dims, x)
    x = cast(node, x, accumulator_of(node.dtype))
    return cast(node, node.emit(op.sum(x, axis=axes, keepdims=keepdim)), node.dtype)


@converts("aten.mean.default")
def mean_all(node: Node, x: Expr, **_keywords: Any) -> Expr:
    """Mean over all axes"""
    return mean_dims(node, x, None)


@converts("aten.mean.dim")
def mean_dims(
    node: Node, x: Expr, dims: Any = None, keepdim: bool = False, **_keywords: Any
) -> Expr:
    """Mean over the given axes, in the dtype of the result"""
    axes = _axes(dims, x)
    x = cast(node, x, accumulator_of(node.dtype))
    return cast(node, node.emit(op.mean(x, axis=axes, keepdims=keepdim)), node.dtype)


@converts("aten.amax.default")
def amax(node: Node, x: Expr, dims: Any = None, keepdim: bool = False) -> Expr:
    """Maximum over the given axes"""
    largest = op.max(without_bool(node, x), axis=_axes(dims, x), keepdims=keepdim)
    return cast(node, node.emit(largest), dtype_of(x))


@converts("aten.amin.default")
def amin(node: Node, x: Expr, dims: Any = None, keepdim: bool = False) -> Expr:
    """Minimum over the given axes"""
    smallest = op.min(without_bool(node, x), axis=_axes(dims, x), keepdims=keepdim)
    return cast(node, node.emit(smallest), dtype_of(x))


@converts("aten.max.default")
def max_all(node: Node, x: Expr) -> Expr:
    """Maximum of all elements"""
    return amax(node, x)


@converts("aten.min.default")
def min_all(node: Node, x: Expr) -> Expr:
    """Minimum of all elements"""
    return amin(node, x)


@converts("aten.prod.default", "aten.prod.dim_int")
def prod(node: Node, x: Expr, dim: Any = None, keepdim: bool = False, **_keywords: Any) -> Expr:
    """Product over one axis or all, in the dtype of the result (int64 for integers)"""
    return node.emit(op.prod(cast(node, x, node.dtype), axis=_axes(dim, x), keepdims=keepdim))


@converts("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_of(node: Node, x: Expr, dims: Any = None, keepdim: bool = False) -> Expr:
    """Whether any element is not 0; as a maximum of int8, TVM has none of bool"""
    if dtype_of(x) != "bool":
        x = node.emit(op.not_equal(x, relax.const(0, dtype_of(x))))
    number = node.emit(op.astype(x, "int8"))
    largest = node.emit(op.max(number, axis=_axes(dims, x), keepdims=keepdim))
    return node.emit(op.astype(largest, "bool"))


@converts("aten.var.correction")
def var(
    node: Node, x: Expr, dims: Any = None, *, correction: float = 1, keepdim: bool = False
) -> Expr:
    """Sum of (x - mean) ** 2 over the axes, divided by count - correction"""
    return _variance(node, x, dims, correction, keepdim)[0]


@converts("aten.var_mean.correction")
def var_mean(
    node: Node, x: Expr, dims: Any = None, *, correction: float = 1, keepdim: bool = False
) -> tuple[Expr, Expr]:
    """The variance as above, and the mean"""
    return _variance(node, x, dims, correction, keepdim)


def _variance(
    node: Node, x: Expr, dims: Any, correction: float | None, keepdim: bool
) -> tuple[Expr, Expr]:
    axes, emit = _axes(dims, x), node.emit
    divisor = math.prod(shape_of(x)[axis] for axis in axes) - (
        1 if correction is None else correction
    )
    if divisor <= 0:
        raise Refusal(f"the variance over axes {axes} of {shape_of(x)} has no degree of freedom")
    mean = emit(op.mean(x, axis=axes, keepdims=True))
    centred = emit(op.subtract(x, mean))
    total = emit(op.sum(emit(op.multiply(centred, centred)), axis=axes, keepdims=keepdim))
    if not keepdim:
        kept = [extent for axis, extent in enumerate(shape_of(x)) if axis not in axes]
        mean = emit(op.reshape(mean, kept))
    return emit(op.divide(total, relax.const(divisor, dtype_of(x)))), mean


@converts("aten.linalg_vector_norm.default")
def vector_norm(
    node: Node, x: Expr, order: float = 2, dims: Any = None, keepdim: bool = False, **_dtype: Any
) -> Expr:
    """(sum of |x| ** order) ** (1 / order) over the axes; the largest |x| for infinity"""
    axes, emit = _axes(dims, x), node.emit
    size = emit(op.abs(cast(node, x, node.dtype)))
    if math.isinf(order):
        function = op.max if order > 0 else op.min
        return emit(function(size, axis=axes, keepdims=keepdim))
    if order <= 0:
        raise Refusal(f"the norm of order {order} is not verified")
    if order == 1:
        return emit(op.sum(size, axis=axes, keepdims=keepdim))
    if order == 2:
        squares = emit(op.multiply(size, size))
        return emit(op.sqrt(emit(op.sum(squares, axis=axes, keepdims=keepdim))))
    powers = emit(op.power(size, relax.const(order, node.dtype)))
    total = emit(op.sum(powers, axis=axes, keepdims=keepdim))
    return emit(op.power(total, relax.const(1 / order, node.dtype)))


@converts("aten.cumsum.default")
def cumsum(node: Node, x: Expr, dim: int, **_keywords: Any) -> Expr:
    """Running sum along an axis, in the dtype of the result (int64 for bool and integers)"""
    return _running(node, x, dim, op.cumsum)


@converts("aten.cumprod.default")
def cumprod(node: Node, x: Expr, dim: int, **_keywords: Any) -> Expr:
    """Running product along an axis, in the dtype of the result (int64 for bool and integers)"""
    return _running(node, x, dim, op.cumprod)


def _running(node: Node, x: Expr, dim: int, function: Callable[..., Expr]) -> Expr:
    x = cast(node, x, node.dtype)
    if not shape_of(x):
        return x
    return node.emit(function(x, axis=axis_of(dim, len(shape_of(x))), dtype=node.dtype))


@converts("aten._softmax.default")
def softmax(node: Node, x: Expr, dim: int, _half_to_float: bool) -> Expr:
    """exp(x - max) / sum(exp(x - max)) along the axis, in the dtype of the result"""
    x = cast(node, x, accumulator_of(node.dtype))
    return cast(node, node.emit(op.nn.softmax(x, axis=dim)), node.dtype)


@converts("aten._log_softmax.default")
def log_softmax(node: Node, x: Expr, dim: int, _half_to_float: bool) -> Expr:
    """x - max - log(sum(exp(x - max))) along the axis, in the dtype of the result"""
    x = cast(node, x, accumulator_of(node.dtype))
    return cast(node, node.emit(op.nn.log_softmax(x, axis=dim)), node.dtype)
