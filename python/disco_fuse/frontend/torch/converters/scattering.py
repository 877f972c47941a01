"""Operators that gather from or scatter to one position along one axis, given per element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    axis_of,
    cast,
    converts,
    dtype_of,
    shape_of,
)

op = relax.op


@converts("aten.gather.default")
def gather(node: Node, x: Expr, dim: int, index: Expr, **_keywords: Any) -> Expr:
    """result[i][j][k] = x[index[i][j][k]][j][k] for dim 0, and likewise for the others"""
    if not shape_of(x):  # there is one element, and the index can only be 0
        return node.emit(op.broadcast_to(x, shape_of(index)))
    return node.emit(op.gather_elements(x, index, axis=axis_of(dim, len(shape_of(x)))))


@converts("aten.scatter.value")
def scatter_value(node: Node, x: Expr, dim: int, index: Expr, value: float) -> Expr:
    """x with x[index[i][j][k]][j][k] = value for dim 0, and likewise for the others

    One position per line of x (what cross entropy's gradient does) is written as a comparison
    with the positions, which fuses with its neighbours; a scatter would not.
    """
    shape, axis = shape_of(x), axis_of(dim, len(shape_of(x)))
    number = relax.const(value, dtype_of(x))
    one_per_line = [1 if i == axis else extent for i, extent in enumerate(shape)]
    if not shape or shape_of(index) != one_per_line:
        source = node.emit(op.full(shape_of(index), number, dtype_of(x)))
        return _scatter(node, x, axis, index, source, "update")
    line = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    positions = np.arange(shape[axis], dtype=dtype_of(index)).reshape(line)
    hit = node.emit(op.equal(index, relax.const(positions)))
    return node.emit(op.where(hit, number, x))


@converts("aten.scatter.src")
def scatter_source(node: Node, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    """x with x[index[i][j][k]][j][k] = source[i][j][k] for dim 0, and likewise for the others"""
    return _scatter(node, x, dim, index, source, "update")


@converts("aten.scatter_add.default")
def scatter_add(node: Node, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    """x with source[i][j][k] added to x[index[i][j][k]][j][k] for dim 0, and likewise"""
    return _scatter(node, x, dim, index, source, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@converts("aten.scatter_reduce.two")
def scatter_reduce(
    node: Node,
    x: Expr,
    dim: int,
    index: Expr,
    source: Expr,
    reduce: str,
    *,
    include_self: bool = True,
) -> Expr:
    """As scatter_add, with a sum, product, maximum or minimum that counts the old value of x in"""
    if reduce not in _REDUCTIONS or not include_self:
        raise Refusal(
            f"scatter_reduce is verified for {sorted(_REDUCTIONS)} with include_self=True, not "
            f"for {reduce!r} with include_self={include_self}"
        )
    return _scatter(node, x, dim, index, source, _REDUCTIONS[reduce])


def _scatter(node: Node, x: Expr, dim: int, index: Expr, source: Expr, reduction: str) -> Expr:
    """The part of the source that has an index, scattered; axes without elements leave x alone."""
    rank, shape = len(shape_of(x)), shape_of(index)
    if rank == 0:
        x, index, source = (node.emit(op.reshape(tensor, [1])) for tensor in (x, index, source))
        result = _scatter(node, x, 0, index, source, reduction)
        return node.emit(op.reshape(result, []))
    if shape_of(source) != shape:
        axes = list(range(rank))
        source = node.emit(op.strided_slice(source, axes, [0] * rank, shape))
    axis = axis_of(dim, rank)
    source = cast(node, source, dtype_of(x))
    return node.emit(op.scatter_elements(x, index, source, axis=axis, reduction=reduction))


@converts("aten.put.default")
def put(node: Node, x: Expr, index: Expr, source: Expr, accumulate: bool = False) -> Expr:
    """x with the source written, or added, at row-major positions; negative ones from the end"""
    emit, size, count = node.emit, math.prod(shape_of(x)), math.prod(shape_of(index))
    places = emit(op.floor_mod(index, relax.const(size, dtype_of(index))))
    places, values = (emit(op.reshape(tensor, [count])) for tensor in (places, source))
    flat, how = emit(op.reshape(x, [size])), "add" if accumulate else "update"
    flat = emit(op.scatter_elements(flat, places, values, axis=0, reduction=how))
    return emit(op.reshape(flat, shape_of(x)))


@converts("aten.masked_scatter.default", broadcasts=True)
def masked_scatter(node: Node, x: Expr, mask: Expr, source: Expr) -> Expr:
    """x where the mask does not hold; where it holds, the source's elements one after the other"""
    emit, size = node.emit, math.prod(shape_of(source))
    x, mask = (_expanded(node, tensor, node.shape) for tensor in (x, mask))
    turn = _turns(node, mask, size)
    taken = emit(op.take(emit(op.reshape(source, [size])), turn, axis=0))
    return emit(op.where(mask, emit(op.reshape(taken, node.shape)), x))


@converts("aten.masked_scatter_backward.default")
def masked_scatter_backward(node: Node, grad: Expr, mask: Expr, _sizes: Sequence[int]) -> Expr:
    """The gradient's elements where the mask holds, one after the other; zeros behind them"""
    emit, size = node.emit, math.prod(node.shape)
    mask = _expanded(node, mask, shape_of(grad))
    turn = _turns(node, mask, size)
    count, dtype = math.prod(shape_of(grad)), dtype_of(grad)
    kept = emit(op.where(mask, grad, relax.const(0, dtype)))
    zeros, kept = emit(op.zeros([size], dtype)), emit(op.reshape(kept, [count]))
    flat = emit(op.scatter_elements(zeros, turn, kept, axis=0, reduction="add"))
    return emit(op.reshape(flat, node.shape))


def _expanded(node: Node, x: Expr, shape: Sequence[int]) -> Expr:
    return x if shape_of(x) == list(shape) else node.emit(op.broadcast_to(x, list(shape)))


def _turns(node: Node, mask: Expr, size: int) -> Expr:
    """For each element of the mask how many before it hold, at most size - 1; [elements]."""
    emit = node.emit
    flat = cast(node, emit(op.reshape(mask, [math.prod(shape_of(mask))])), "int64")
    until = emit(op.cumsum(flat, axis=0, dtype="int64"))
    return emit(op.minimum(emit(op.subtract(until, flat)), relax.const(size - 1, "int64")))
