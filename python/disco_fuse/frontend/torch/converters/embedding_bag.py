"""Embedding bags: rows of a table, reduced bag by bag, with the backward passes.

    indices [n] -- take --> rows [n, D] -- scatter at the bag of every index --> [B, D]

A bag is a run of indices; offsets say where each begins. What the forward pass keeps for torch's
backward pass is cheap to compute again, except which row won in a maximum.
"""

from __future__ import annotations

import numpy as np
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

_SUM, _MEAN, _MAX = 0, 1, 2


@converts("aten._embedding_bag.default")
def embedding_bag(
    node: Node,
    weight: Expr,
    indices: Expr,
    offsets: Expr,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Expr | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Expr, None, None, Expr | None]:
    """Sum (each row times its sample weight), mean or maximum of weight[indices] in every bag

    Rows at the padding index do not count; an empty bag gives 0. For a maximum also the row that
    each element came from.
    """
    if scale_grad_by_freq or sparse or include_last_offset:
        raise Refusal(
            "embedding bags are verified without scale_grad_by_freq, sparse and include_last_offset"
        )
    bags, count = _bag_of_index(node, indices, offsets), shape_of(offsets)[0]
    counts = _counts(node, indices, padding_idx)
    rows = node.emit(op.take(weight, indices, axis=0))
    if mode == _MAX:
        best, winners = _maximum(node, rows, indices, bags, counts, count)
        return best, None, None, winners
    factors = cast(node, counts, dtype_of(weight))
    if per_sample_weights is not None:
        factors = node.emit(op.multiply(factors, per_sample_weights))
    scaled = node.emit(op.multiply(rows, _as_column(node, factors)))
    total = _add_up(node, scaled, bags, count)
    if mode == _MEAN:
        total = node.emit(op.divide(total, _bag_sizes(node, counts, bags, count, dtype_of(weight))))
    return total, None, None, None


@converts("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    node: Node,
    grad: Expr,
    indices: Expr,
    offsets: Expr,
    _offset_to_bag: None,
    _bag_size: None,
    winners: Expr | None,
    _num_weights: int,
    _scale_grad_by_freq: bool,
    mode: int,
    _sparse: bool,
    per_sample_weights: Expr | None,
    padding_idx: int = -1,
) -> Expr:
    """Every bag's gradient, added to each row in it as much as the row counted"""
    emit, dtype, count = node.emit, dtype_of(grad), shape_of(grad)[0]
    bags, counts = _bag_of_index(node, indices, offsets), _counts(node, indices, padding_idx)
    zeros = emit(op.zeros(node.shape, dtype))
    if mode == _MAX:
        filled = emit(op.greater(_totals(node, counts, bags, count), relax.const(0, "int64")))
        kept = emit(op.multiply(grad, _as_column(node, cast(node, filled, dtype))))
        return emit(op.scatter_elements(zeros, winners, kept, axis=0, reduction="add"))
    if mode == _MEAN:
        grad = emit(op.divide(grad, _bag_sizes(node, counts, bags, count, dtype)))
    factors = cast(node, counts, dtype)
    if per_sample_weights is not None:
        factors = emit(op.multiply(factors, per_sample_weights))
    rows = emit(op.multiply(emit(op.take(grad, bags, axis=0)), _as_column(node, factors)))
    places = _as_column(node, indices)
    return emit(op.scatter_nd(zeros, places, rows, reduction="add"))


@converts("aten._embedding_bag_per_sample_weights_backward.default")
def per_sample_weights_backward(
    node: Node,
    grad: Expr,
    weight: Expr,
    indices: Expr,
    offsets: Expr,
    _offset_to_bag: None,
    _mode: int,
    padding_idx: int = -1,
) -> Expr:
    """For every index the product of its row and its bag's gradient; 0 at the padding index"""
    emit, dtype = node.emit, dtype_of(grad)
    of_bag = emit(op.take(grad, _bag_of_index(node, indices, offsets), axis=0))
    products = emit(op.multiply(of_bag, emit(op.take(weight, indices, axis=0))))
    totals = emit(op.sum(products, axis=[1]))
    return emit(op.multiply(totals, cast(node, _counts(node, indices, padding_idx), dtype)))


def _bag_of_index(node: Node, indices: Expr, offsets: Expr) -> Expr:
    """Number of the bag of every index, int64[n]: how many bags begin at it or before it, less 1"""
    emit, dtype = node.emit, dtype_of(offsets)
    place = relax.const(np.arange(shape_of(indices)[0], dtype=dtype)[:, None], dtype)
    begun = cast(node, emit(op.less_equal(offsets, place)), "int64")
    return emit(op.subtract(emit(op.sum(begun, axis=[1])), relax.const(1, "int64")))


def _counts(node: Node, indices: Expr, padding_idx: int) -> Expr:
    """Whether each index counts, int64[n]."""
    padding = relax.const(padding_idx, dtype_of(indices))
    return cast(node, node.emit(op.not_equal(indices, padding)), "int64")


def _totals(node: Node, counts: Expr, bags: Expr, count: int) -> Expr:
    """How many indices of each bag count, int64[B]."""
    zeros = node.emit(op.zeros([count], "int64"))
    return node.emit(op.scatter_elements(zeros, bags, counts, axis=0, reduction="add"))


def _bag_sizes(node: Node, counts: Expr, bags: Expr, count: int, dtype: str) -> Expr:
    """What the sum of each bag is divided by for its mean: its size, or 1; [B, 1]."""
    total = node.emit(op.maximum(_totals(node, counts, bags, count), relax.const(1, "int64")))
    return _as_column(node, cast(node, total, dtype))


def _as_column(node: Node, values: Expr) -> Expr:
    """[n] as [n, 1]."""
    return node.emit(op.reshape(values, [shape_of(values)[0], 1]))


def _add_up(node: Node, rows: Expr, bags: Expr, count: int) -> Expr:
    """The sum of the rows of every bag, [B, D]."""
    zeros = node.emit(op.zeros([count, shape_of(rows)[1]], dtype_of(rows)))
    return node.emit(op.scatter_nd(zeros, _as_column(node, bags), rows, reduction="add"))


def _maximum(
    node: Node, rows: Expr, indices: Expr, bags: Expr, counts: Expr, count: int
) -> tuple[Expr, Expr]:
    """The largest of every bag and column, and the row of the table it comes from, [B, D] each."""
    emit, dtype, (number, width) = node.emit, dtype_of(rows), shape_of(rows)
    into = emit(op.broadcast_to(_as_column(node, bags), [number, width]))
    lowest = relax.const(-np.inf, dtype)
    counting = _as_column(node, cast(node, counts, "bool"))
    candidates = emit(op.where(counting, rows, lowest))
    start = emit(op.broadcast_to(lowest, [count, width]))  # not full: it fails on infinity
    best = emit(op.scatter_elements(start, into, candidates, axis=0, reduction="max"))
    hit = emit(op.equal(candidates, emit(op.take(best, bags, axis=0))))
    last = relax.const(number - 1, "int64")
    place = relax.const(np.arange(number)[:, None], "int64")
    places = emit(op.where(hit, place, last))
    first = emit(op.full([count, width], last, "int64"))
    first = emit(op.scatter_elements(first, into, places, axis=0, reduction="min"))
    flat = emit(op.reshape(first, [count * width]))
    winners = emit(op.reshape(emit(op.take(indices, flat, axis=0)), [count, width]))
    empty = emit(op.equal(best, lowest))
    return emit(op.where(empty, relax.const(0, dtype), best)), winners
