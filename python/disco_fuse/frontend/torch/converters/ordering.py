"""Operators that compare elements along an axis to find positions: topk, sort, argmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tvm import relax

from disco_fuse.frontend.torch.converters.reduction import amax, amin
from disco_fuse.frontend.torch.converters.registry import (
    TVM_DTYPES,
    Expr,
    Node,
    Refusal,
    axis_of,
    cast,
    converts,
    shape_of,
    without_bool,
)

op = relax.op


@converts("aten.topk.default")
def topk(
    node: Node,
    x: Expr,
    k: int,
    dim: int = -1,
    largest: bool = True,
    _sorted: bool = True,
) -> tuple[Expr, Expr]:
    """The k largest (or smallest) along the axis in order, and their positions

    Torch leaves open which of equal elements is taken; here it is the first.
    """
    return _sorted_part(node, x, dim, largest, k)


@converts("aten.sort.default", "aten.sort.stable")
def sort(
    node: Node, x: Expr, dim: int = -1, descending: bool = False, **_keywords: bool
) -> tuple[Expr, Expr]:
    """The elements along the axis in order, and their positions; equal ones keep their order"""
    return _sorted_part(node, x, dim, descending, shape_of(x)[dim] if shape_of(x) else 1)


def _sorted_part(node: Node, x: Expr, dim: int, descending: bool, k: int) -> tuple[Expr, Expr]:
    """The first k elements of the sorted axis, and where they were."""
    shape = shape_of(x)
    if not shape:
        x = node.emit(op.reshape(x, [1]))
    axis = axis_of(dim, max(len(shape), 1))
    order = node.emit(op.argsort(x, axis=axis, descending=descending, dtype="int64"))
    if shape and k != shape[axis]:
        order = node.emit(op.strided_slice(order, [axis], [0], [k]))
    values = node.emit(op.gather_elements(x, order, axis=axis))
    if shape:
        return values, order
    return node.emit(op.reshape(values, [])), node.emit(op.reshape(order, []))


@converts("aten.argmax.default")
def argmax(node: Node, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    """Position of the largest element along the axis (the first of equals), or of all elements"""
    return _extreme(node, x, dim, keepdim, op.argmax)


@converts("aten.argmin.default")
def argmin(node: Node, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    """Position of the smallest element along the axis (the first of equals), or of all elements"""
    return _extreme(node, x, dim, keepdim, op.argmin)


@converts("aten.max.dim")
def max_dim(node: Node, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The largest along the axis, and its position (the first of equals)"""
    return amax(node, x, dim, keepdim), argmax(node, x, dim, keepdim)


@converts("aten.min.dim")
def min_dim(node: Node, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The smallest along the axis, and its position (the first of equals)"""
    return amin(node, x, dim, keepdim), argmin(node, x, dim, keepdim)


def _extreme(
    node: Node, x: Expr, dim: int | None, keepdim: bool, function: Callable[..., Expr]
) -> Expr:
    rank, x = len(shape_of(x)), without_bool(node, x)
    if dim is None or rank == 0:
        flat = node.emit(op.reshape(x, [math.prod(shape_of(x))]))
        position = node.emit(function(flat, axis=0, keepdims=False))
        return node.emit(op.reshape(position, [1] * rank)) if keepdim and rank else position
    return node.emit(function(x, axis=axis_of(dim, rank), keepdims=keepdim))


@converts("aten.kthvalue.default")
def kthvalue(
    node: Node, x: Expr, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Expr, Expr]:
    """The k-th smallest along the axis, counted from 1, and its position"""
    return _kth(node, x, k, dim, keepdim)


@converts("aten.median.dim")
def median(node: Node, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The middle one of the ordered elements along the axis (of two the smaller), its position"""
    count = shape_of(x)[dim] if shape_of(x) else 1
    return _kth(node, x, (count + 1) // 2, dim, keepdim)


def _kth(node: Node, x: Expr, k: int, dim: int, keepdim: bool) -> tuple[Expr, Expr]:
    if not shape_of(x):
        return _sorted_part(node, x, dim, False, 1)
    axis = axis_of(dim, len(shape_of(x)))
    ordered = _sorted_part(node, x, dim, False, shape_of(x)[axis])
    shape = [int(extent) for extent in node.value[0].shape]
    parts = (node.emit(op.strided_slice(part, [axis], [k - 1], [k])) for part in ordered)
    value, position = (part if keepdim else node.emit(op.reshape(part, shape)) for part in parts)
    return value, position


@converts("aten.median.default")
def median_of_all(node: Node, x: Expr) -> Expr:
    """The middle one of all elements in order (of two the smaller)"""
    size = math.prod(shape_of(x))
    ordered, _ = _sorted_part(node, node.emit(op.reshape(x, [size])), 0, False, size)
    middle = node.emit(op.strided_slice(ordered, [0], [(size - 1) // 2], [(size + 1) // 2]))
    return node.emit(op.reshape(middle, []))


@converts("aten.bucketize.Tensor")
def bucketize(
    node: Node, x: Expr, boundaries: Expr, *, out_int32: bool = False, right: bool = False
) -> Expr:
    """How many of the ordered boundaries are below each element (right: or equal to it)"""
    return _count_below(node, boundaries, x, out_int32, right)


@converts("aten.searchsorted.Tensor")
def searchsorted(
    node: Node,
    ordered: Expr,
    x: Expr,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Expr | None = None,
) -> Expr:
    """As bucketize; boundaries of several rows belong to the rows of x, element by element"""
    if sorter is not None:
        raise Refusal("searchsorted is verified without a sorter")
    return _count_below(node, ordered, x, out_int32, right or side == "right")


def _count_below(node: Node, ordered: Expr, x: Expr, out_int32: bool, right: bool) -> Expr:
    emit, dtype = node.emit, "int32" if out_int32 else "int64"
    common = torch.promote_types(*(node.torch_argument(index).dtype for index in (0, 1)))
    ordered, x = (cast(node, tensor, TVM_DTYPES[common]) for tensor in (ordered, x))
    if len(shape_of(ordered)) > 1:
        *rows, count = shape_of(ordered)
        ordered = emit(op.reshape(ordered, [*rows, 1, count]))
    value = emit(op.reshape(x, [*shape_of(x), 1]))
    below = emit(op.less_equal(ordered, value) if right else op.less(ordered, value))
    return emit(op.sum(cast(node, below, dtype), axis=[len(shape_of(below)) - 1]))
