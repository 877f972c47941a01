"""Operators that draw random numbers; the numbers are ours (frontend/random.py)."""

from __future__ import annotations

from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import Expr, Node, converts

op = relax.op


@converts("aten.native_dropout.default")
def native_dropout(
    node: Node, x: Expr, probability: float, train: bool | None
) -> tuple[Expr, Expr]:
    """x * mask / (1 - p), and the mask: true with probability 1 - p, drawn once for both passes"""
    shape, dtype = [int(extent) for extent in node.value[0].shape], str(x.ty.dtype.dtype)
    if train is False or probability == 0:
        return x, node.emit(op.full(shape, relax.const(True, "bool")))
    mask = node.random.keep_mask(shape, probability)
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    factor = node.emit(op.multiply(op.astype(mask, dtype), relax.const(scale, dtype)))
    return node.emit(op.multiply(x, factor)), mask


@converts("aten.bernoulli.p")
def bernoulli(node: Node, _like: Expr, probability: float = 0.5) -> Expr:
    """1 with the given probability, else 0, in the shape and dtype of the result"""
    mask = node.random.keep_mask(node.shape, 1.0 - probability)
    return node.emit(op.astype(mask, node.dtype))


@converts("aten.rand.default", "aten.rand_like.default")
def rand(node: Node, _size_or_like: Any, **_keywords: Any) -> Expr:
    """uniform in [0, 1)"""
    return node.random.uniform(node.shape, node.dtype)
