"""Operators that read or write at positions held in a tensor."""

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
    converts,
    dtype_of,
    shape_of,
)

op = relax.op


@converts("aten.embedding.default")
def embedding(node: Node, weight: Expr, indices: Expr, *_gradient_options: Any) -> Expr:
    """weight[indices]: one row per index; the options only concern torch's own backward"""
    return _take_rows(node, weight, indices)


@converts("aten.index_select.default")
def index_select(node: Node, x: Expr, dim: int, index: Expr) -> Expr:
    """x[..., index, ...] for a vector of positions along one axis"""
    return node.emit(op.take(x, index, axis=axis_of(dim, len(shape_of(x)))))


@converts("aten.index.Tensor")
def index_tensor(node: Node, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """x[index] for one integer tensor that indexes the first axis"""
    return _take_rows(node, x, _single_index(indices))


def _single_index(indices: Sequence[Expr | None]) -> Expr:
    if len(indices) != 1 or indices[0] is None or dtype_of(indices[0]) == "bool":
        raise Refusal("indexing is verified for one integer tensor on the first axis only")
    return indices[0]


def _take_rows(node: Node, x: Expr, indices: Expr) -> Expr:
    """Rows of x; a negative index counts from the end, as in torch."""
    shape = shape_of(indices)
    flat = indices if len(shape) == 1 else node.emit(op.reshape(indices, [math.prod(shape)]))
    rows = node.emit(op.take(x, flat, axis=0, mode="wrap"))
    return rows if len(shape) == 1 else node.emit(op.reshape(rows, node.shape))


@converts("aten.index_put.default")
def index_put(
    node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False
) -> Expr:
    """x with values added to the rows that one integer tensor names; rows may repeat"""
    index = _single_index(indices)
    if not accumulate:
        raise Refusal("index_put is verified with accumulate=True only")
    count, row = math.prod(shape_of(index)), shape_of(x)[1:]
    if shape_of(values) != shape_of(index) + row:
        values = node.emit(op.broadcast_to(values, shape_of(index) + row))
    positions = node.emit(op.reshape(index, [count, 1]))
    updates = node.emit(op.reshape(values, [count, *row]))
    return node.emit(op.scatter_nd(x, positions, updates, reduction="add"))


@converts("aten.gather.default")
def gather(node: Node, x: Expr, dim: int, index: Expr, **_keywords: Any) -> Expr:
    """result[i][j][k] = x[index[i][j][k]][j][k] for dim 0, and likewise for the others"""
    return node.emit(op.gather_elements(x, index, axis=axis_of(dim, len(shape_of(x)))))


@converts("aten.scatter.value")
def scatter_value(node: Node, x: Expr, dim: int, index: Expr, value: float) -> Expr:
    """x with x[index[i][j][k]][j][k] = value for dim 0, and likewise for the others

    One position per line of x (what cross entropy's gradient does) is written as a comparison
    with the positions, which fuses with its neighbours; a scatter would not.
    """
    shape, axis = shape_of(x), axis_of(dim, len(shape_of(x)))
    if shape_of(index) != [1 if i == axis else extent for i, extent in enumerate(shape)]:
        raise Refusal(
            f"scatter of a value is verified for one position along the axis, not for an index of "
            f"shape {shape_of(index)} into {shape} along {axis}"
        )
    line = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    positions = np.arange(shape[axis], dtype=dtype_of(index)).reshape(line)
    hit = node.emit(op.equal(index, relax.const(positions)))
    return node.emit(op.where(hit, relax.const(value, dtype_of(x)), x))


@converts("aten.scatter_add.default")
def scatter_add(node: Node, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    """x with source[i][j][k] added to x[index[i][j][k]][j][k] for dim 0, and likewise"""
    if shape_of(source) != shape_of(index):
        raise Refusal(
            f"scatter_add is verified for a source of the index's shape {shape_of(index)}, "
            f"not {shape_of(source)}"
        )
    axis = axis_of(dim, len(shape_of(x)))
    return node.emit(op.scatter_elements(x, index, source, axis=axis, reduction="add"))
