"""Matrix products."""

from __future__ import annotations

from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    accumulator_of,
    cast,
    converts,
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
