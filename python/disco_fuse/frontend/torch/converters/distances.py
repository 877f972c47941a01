"""Distances between vectors."""

from __future__ import annotations

from tvm import relax

from disco_fuse.frontend.torch.converters.reduction import vector_norm
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


@converts("aten.dist.default")
def dist(node: Node, a: Expr, b: Expr, order: float = 2) -> Expr:
    """The norm of a - b over all axes"""
    return vector_norm(node, node.emit(op.subtract(a, b)), order)


@converts("aten._cdist_forward.default")
def cdist(node: Node, a: Expr, b: Expr, order: float, _mode: int | None) -> Expr:
    """result[..., i, j] is the norm of a[..., i, :] - b[..., j, :], for order 1 or 2"""
    _require_order(order)
    return vector_norm(node, _differences(node, a, b), order, [-1])


@converts("aten._cdist_backward.default")
def cdist_backward(node: Node, grad: Expr, a: Expr, b: Expr, order: float, distances: Expr) -> Expr:
    """The gradient for a: the sum over j of grad times (a - b) / distance, or for order 1 times
    sign(a - b); 0 where the distance is 0
    """
    _require_order(order)
    emit, dtype = node.emit, dtype_of(a)
    differences = _differences(node, a, b)
    if order == 1:
        direction = emit(op.sign(differences))
        weight = grad
    else:
        direction, zero = differences, relax.const(0, dtype)
        apart = emit(op.greater(distances, zero))
        divisor = emit(op.where(apart, distances, relax.const(1, dtype)))
        weight = emit(op.multiply(emit(op.divide(grad, divisor)), cast(node, apart, dtype)))
    column = emit(op.reshape(weight, [*shape_of(weight), 1]))
    product = emit(op.multiply(direction, column))
    return emit(op.sum(product, axis=[len(shape_of(product)) - 2]))


def _differences(node: Node, a: Expr, b: Expr) -> Expr:
    """a[..., i, :] - b[..., j, :], [..., rows of a, rows of b, width]."""
    *batch, width = shape_of(a)
    rows = node.emit(op.reshape(a, [*batch, 1, width]))
    *outer, others, _ = shape_of(b)
    columns = node.emit(op.reshape(b, [*outer, 1, others, width]))
    return node.emit(op.subtract(rows, columns))


def _require_order(order: float) -> None:
    if order not in (1, 2):
        raise Refusal(
            f"pairwise distances are verified for the norms of order 1 and 2, not {order}"
        )
