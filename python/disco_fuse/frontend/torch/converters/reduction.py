"""Reductions and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    cast,
    converts,
    dtype_of,
    shape_of,
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
    return node.emit(op.sum(cast(node, x, node.dtype), axis=axes, keepdims=keepdim))


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
    return node.emit(op.mean(cast(node, x, node.dtype), axis=axes, keepdims=keepdim))


@converts("aten.amax.default")
def amax(node: Node, x: Expr, dims: Any = None, keepdim: bool = False) -> Expr:
    """Maximum over the given axes"""
    return node.emit(op.max(x, axis=_axes(dims, x), keepdims=keepdim))


@converts("aten.any.dim")
def any_dim(node: Node, x: Expr, dim: int, keepdim: bool = False) -> Expr:
    """Whether any element along the axis is true; as a maximum of int8, TVM has none of bool"""
    if dtype_of(x) != "bool":
        raise Refusal(f"any is verified for bool only, not {dtype_of(x)}")
    number = node.emit(op.astype(x, "int8"))
    largest = node.emit(op.max(number, axis=_axes(dim, x), keepdims=keepdim))
    return node.emit(op.astype(largest, "bool"))


@converts("aten._softmax.default")
def softmax(node: Node, x: Expr, dim: int, half_to_float: bool) -> Expr:
    """exp(x - max) / sum(exp(x - max)) along the axis"""
    _require_same_dtype(half_to_float)
    return node.emit(op.nn.softmax(x, axis=dim))


@converts("aten._log_softmax.default")
def log_softmax(node: Node, x: Expr, dim: int, half_to_float: bool) -> Expr:
    """x - max - log(sum(exp(x - max))) along the axis"""
    _require_same_dtype(half_to_float)
    return node.emit(op.nn.log_softmax(x, axis=dim))


def _require_same_dtype(half_to_float: bool) -> None:
    if half_to_float:
        raise Refusal("softmax that converts float16 to float32 is not verified")
