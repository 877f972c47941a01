"""Operators that read or write at positions held in tensors.

Several index tensors are one: the indexed axes move to the front and become a single axis, and
every tuple of positions becomes a position on it.

    x[:, i, :, j]   x [A, B, C, D] -> [B * D, A * C],  i * D + j  -> take, scatter along axis 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@converts("aten.embedding.default")
def embedding(node: Node, weight: Expr, indices: Expr, *_gradient_options: object) -> Expr:
    """weight[indices]: one row per index; the options only concern torch's own backward"""
    return _take(node, weight, indices, axis=0)


@converts("aten.index_select.default")
def index_select(node: Node, x: Expr, dim: int, index: Expr) -> Expr:
    """x[..., index, ...] for a vector of positions along one axis"""
    return _take(node, x, index, axis_of(dim, len(shape_of(x))))


def _take(node: Node, x: Expr, index: Expr, axis: int) -> Expr:
    """x at the positions along an axis; a negative position counts from the end, as in torch."""
    rank = len(shape_of(index))
    if rank != 1:
        index = node.emit(op.reshape(index, [math.prod(shape_of(index))]))
    taken = node.emit(op.take(x, index, axis=axis, mode="wrap"))
    return taken if rank == 1 else node.emit(op.reshape(taken, node.shape))


@converts("aten.index.Tensor")
def index_tensor(node: Node, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """x[index, ...] with integer tensors that broadcast together, None standing for a whole axis

    The broadcast shape stands where the indexed axes were if they are neighbours, else in front.
    """
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index) == "bool" for _, index in given):
        raise Refusal("reading with a mask gives a shape that depends on data")
    if len(given) == 1:
        return _take(node, x, given[0][1], given[0][0])
    places = _Places.of(node, x, given)
    rows = node.emit(op.take(places.as_rows(node, x), places.positions, axis=0, mode="wrap"))
    ahead = node.emit(op.reshape(rows, [*places.shape, *places.rest(shape_of(x))]))
    return places.move_back(node, ahead)


@dataclass(frozen=True)
class _Places:
    """Positions on the merged axis, for index tensors that broadcast to `shape`.

    Parameters
    ----------
    axes : list of int
        The indexed axes, ascending.
    shape : list of int
        What the index tensors broadcast to.
    positions : relax.Expr
        Not negative; [prod(shape)].
    """

    axes: list[int]
    shape: list[int]
    positions: Expr

    @staticmethod
    def of(node: Node, x: Expr, given: Sequence[tuple[int, Expr]]) -> _Places:
        """The sum of the index tensors, each times the extents of the indexed axes behind it."""
        axes = [axis for axis, _ in given]
        shape = list(np.broadcast_shapes(*(tuple(shape_of(index)) for _, index in given)))
        total = None
        for number, (axis, index) in enumerate(given):
            # Negative positions count from the end.
            extent = relax.const(shape_of(x)[axis], "int64")
            term = node.emit(op.floor_mod(cast(node, index, "int64"), extent))
            stride = math.prod(shape_of(x)[later] for later in axes[number + 1 :])
            if stride != 1:
                term = node.emit(op.multiply(term, relax.const(stride, "int64")))
            total = term if total is None else node.emit(op.add(total, term))
        if shape_of(total) != shape:
            total = node.emit(op.broadcast_to(total, shape))
        return _Places(axes, shape, node.emit(op.reshape(total, [math.prod(shape)])))

    def rest(self, shape: Sequence[int]) -> list[int]:
        """Extents of the axes that are not indexed."""
        return [extent for axis, extent in enumerate(shape) if axis not in self.axes]

    def as_rows(self, node: Node, x: Expr) -> Expr:
        """x with the indexed axes merged in front: [prod(indexed), *rest]."""
        shape = shape_of(x)
        order = self.axes + [axis for axis in range(len(shape)) if axis not in self.axes]
        merged = math.prod(shape[axis] for axis in self.axes)
        return node.emit(op.reshape(_permute(node, x, order), [merged, *self.rest(shape)]))

    def from_rows(self, node: Node, rows: Expr, shape: Sequence[int]) -> Expr:
        """The inverse of :meth:`as_rows` for a tensor of the given shape."""
        order = self.axes + [axis for axis in range(len(shape)) if axis not in self.axes]
        ahead = node.emit(op.reshape(rows, [shape[axis] for axis in order]))
        return _permute(node, ahead, [order.index(axis) for axis in range(len(shape))])

    def _order(self, rank: int) -> list[int]:
        """For what was selected: axes of [*shape, *rest] in the order in which torch has them."""
        count = len(self.shape)
        neighbours = self.axes[-1] - self.axes[0] == len(self.axes) - 1
        before = self.axes[0] if neighbours else 0
        return [
            *range(count, count + before),
            *range(count),
            *range(count + before, count + rank),
        ]

    def move_back(self, node: Node, ahead: Expr) -> Expr:
        """[*shape, *rest] in torch's order of axes."""
        return _permute(node, ahead, self._order(len(shape_of(ahead)) - len(self.shape)))

    def move_ahead(self, node: Node, selected: Expr) -> Expr:
        """The inverse of :meth:`move_back`."""
        order = self._order(len(shape_of(selected)) - len(self.shape))
        return _permute(node, selected, [order.index(axis) for axis in range(len(order))])

    def selected_shape(self, shape: Sequence[int]) -> list[int]:
        """Shape of what indexing selects from a tensor of the given shape."""
        rest = self.rest(shape)
        ahead = [*self.shape, *rest]
        return [ahead[axis] for axis in self._order(len(rest))]


def _permute(node: Node, x: Expr, order: list[int]) -> Expr:
    return x if order == sorted(order) else node.emit(op.permute_dims(x, order))


@converts("aten.index_put.default")
def index_put(
    node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False
) -> Expr:
    """x with x[index, ...] replaced by the values, or the values added to it; see index.Tensor

    Added values may meet at one position. Where new ones meet, any may stay, as in torch.
    """
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index) == "bool" for _, index in given):
        return _put_by_mask(node, x, indices, values, accumulate)
    places, shape = _Places.of(node, x, given), shape_of(x)
    selected = places.selected_shape(shape)
    if shape_of(values) != selected:
        values = node.emit(op.broadcast_to(values, selected))
    updates = places.move_ahead(node, values)
    count = math.prod(places.shape)
    updates = node.emit(op.reshape(updates, [count, *places.rest(shape)]))
    rows, positions = places.as_rows(node, x), node.emit(op.reshape(places.positions, [count, 1]))
    how = "add" if accumulate else "update"
    result = node.emit(op.scatter_nd(rows, positions, updates, reduction=how))
    return places.from_rows(node, result, shape)


def _put_by_mask(
    node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool
) -> Expr:
    """The value where the mask holds; other values than one have a shape that depends on data."""
    rank = len(shape_of(x))
    axis, mask = next((i, index) for i, index in enumerate(indices) if index is not None)
    covered = shape_of(mask)
    one_per_rest = len(shape_of(values)) <= rank - axis - len(covered)
    if sum(index is not None for index in indices) > 1 or not (
        math.prod(shape_of(values)) == 1 or one_per_rest
    ):
        raise Refusal(
            "writing with a mask is verified for one mask and values that broadcast to all of "
            f"its positions, not for values of shape {shape_of(values)}"
        )
    if math.prod(shape_of(values)) == 1:
        values = node.emit(op.reshape(values, []))
    line = [1] * axis + covered + [1] * (rank - axis - len(covered))
    where = node.emit(op.reshape(mask, line)) if line != covered else mask
    new = node.emit(op.add(x, values)) if accumulate else values
    return node.emit(op.where(where, new, x))
