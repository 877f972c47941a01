"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    accumulator_of,
    cast,
    converts,
    shape_of,
)

op = relax.op


@converts("aten.mm.default", "aten.bmm.default")
def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """Matrix product over the last two axes; bmm for every entry of one leading batch axis"""
    product = node.emit(op.matmul(a, b, out_dtype=accumulator_of(node.dtype)))
    return cast(node, product, node.dtype)


@converts("aten.addmm.default")
def addmm(node: Node, bias: Expr, a: Expr, b: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * bias + alpha * (a @ b)"""
    dtype = accumulator_of(node.dtype)
    product, bias = node.emit(op.matmul(a, b, out_dtype=dtype)), cast(node, bias, dtype)
    if alpha != 1:
        product = node.emit(op.multiply(product, relax.const(alpha, dtype)))
    if beta != 1:
        bias = node.emit(op.multiply(bias, relax.const(beta, dtype)))
    return cast(node, node.emit(op.add(product, bias)), node.dtype)


@converts("aten.addmv.default")
def addmv(node: Node, x: Expr, a: Expr, v: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * x + alpha * (a @ v) for a matrix and a vector"""
    return addmm(node, x, a, v, beta=beta, alpha=alpha)


@converts("aten.addbmm.default")
def addbmm(node: Node, x: Expr, a: Expr, b: Expr, *, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * x + alpha * (sum over the batch of a[i] @ b[i]), as one product of longer rows"""
    batch, rows, inner = shape_of(a)
    turned = node.emit(op.permute_dims(a, [1, 0, 2]))
    wide = node.emit(op.reshape(turned, [rows, batch * inner]))
    tall = node.emit(op.reshape(b, [batch * inner, shape_of(b)[2]]))
    return addmm(node, x, wide, tall, beta=beta, alpha=alpha)


@converts("aten._trilinear.default")
def trilinear(
    node: Node,
    a: Expr,
    b: Expr,
    c: Expr,
    new_in_a: Sequence[int],
    new_in_b: Sequence[int],
    new_in_c: Sequence[int],
    summed: Sequence[int],
    _unrolled: int = 1,
) -> Expr:
    """sum of a * b * c over the summed axes, after each got new axes of extent 1 where it says"""
    emit = node.emit
    spread = [
        emit(op.expand_dims(x, sorted(axes))) if axes else x
        for x, axes in ((a, new_in_a), (b, new_in_b), (c, new_in_c))
    ]
    product = emit(op.multiply(emit(op.multiply(spread[0], spread[1])), spread[2]))
    return emit(op.sum(product, axis=sorted(summed))) if summed else product
