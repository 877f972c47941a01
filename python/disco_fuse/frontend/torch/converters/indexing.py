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
    return _take(node, weight, indices, axis=0)


@converts("aten.index_select.default")
def index_select(node: Node, x: Expr, dim: int, index: Expr) -> Expr:
    """x[..., index, ...] for a vector of positions along one axis"""
    return _take(node, x, index, axis_of(dim, len(shape_of(x))))


@converts("aten.index.Tensor")
def index_tensor(node: Node, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """x[:, ..., index, ...] for one integer tensor on one axis"""
    axis, index = _single_index(indices)
    return _take(node, x, index, axis)


def _single_index(indices: Sequence[Expr | None]) -> tuple[int, Expr]:
    """The axis that the only index is for, and the index."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or dtype_of(given[0][1]) == "bool":
        raise Refusal("indexing is verified for one integer tensor only")
    return given[0]


def _take(node: Node, x: Expr, index: Expr, axis: int) -> Expr:
    """x at the positions along an axis; a negative position counts from the end, as in torch."""
    rank = len(shape_of(index))
    if rank != 1:
        index = node.emit(op.reshape(index, [math.prod(shape_of(index))]))
    taken = node.emit(op.take(x, index, axis=axis, mode="wrap"))
    return taken if rank == 1 else node.emit(op.reshape(taken, node.shape))


@converts("aten.index_put.default")
def index_put(
    node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False
) -> Expr:
    """x with values added at the positions of one integer tensor on one axis; they may repeat"""
    axis, index = _single_index(indices)
    if not accumulate:
        raise Refusal("index_put is verified with accumulate=True only")
    shape, count = shape_of(x), math.prod(shape_of(index))
    selected = [*shape[:axis], *shape_of(index), *shape[axis + 1 :]]
    if shape_of(values) != selected:
        values = node.emit(op.broadcast_to(values, selected))
    updates = node.emit(op.reshape(values, [*shape[:axis], count, *shape[axis + 1 :]]))
    # Negative positions count from the end; scatter_nd would write in front of the tensor.
    inside = node.emit(op.floor_mod(index, relax.const(shape[axis], dtype_of(index))))
    positions = node.emit(op.reshape(inside, [count, 1]))
    if axis == 0:
        return node.emit(op.scatter_nd(x, positions, updates, reduction="add"))
    swapped = list(range(len(shape)))
    swapped[0], swapped[axis] = axis, 0
    x, updates = (node.emit(op.permute_dims(tensor, swapped)) for tensor in (x, updates))
    result = node.emit(op.scatter_nd(x, positions, updates, reduction="add"))
    return node.emit(op.permute_dims(result, swapped))


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
