"""Elementwise operators: arithmetic, activations, comparisons, logic, selection, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    TVM_DTYPES,
    Expr,
    Node,
    Refusal,
    cast,
    converts,
    dtype_of,
)

op = relax.op


def _unary(operator: str, function: Callable[[Expr], Expr], definition: str) -> None:
    def convert(node: Node, x: Expr) -> Expr:
        return node.emit(function(cast(node, x, node.dtype)))

    convert.__doc__ = definition
    converts(operator, broadcasts=True)(convert)


_unary("aten.neg.default", op.negative, "-x")
_unary("aten.exp.default", op.exp, "e ** x")
_unary("aten.log.default", op.log, "natural logarithm of x")
_unary("aten.sqrt.default", op.sqrt, "x ** 0.5")
_unary("aten.rsqrt.default", op.rsqrt, "x ** -0.5")
_unary("aten.erf.default", op.erf, "2 / sqrt(pi) * integral of exp(-t * t) from 0 to x")
_unary("aten.tanh.default", op.tanh, "hyperbolic tangent of x")
_unary("aten.sigmoid.default", op.sigmoid, "1 / (1 + exp(-x))")
_unary("aten.relu.default", op.nn.relu, "max(x, 0)")
_unary("aten.abs.default", op.abs, "|x|")
_unary("aten.sin.default", op.sin, "sine of x")
_unary("aten.cos.default", op.cos, "cosine of x")
_unary("aten.floor.default", op.floor, "the largest whole number not above x")
_unary("aten.sign.default", op.sign, "-1, 0 or 1")


def _arithmetic(operators: tuple[str, ...], function: Callable[..., Expr], sign: str) -> None:
    def convert(node: Node, a: Any, b: Any, *, alpha: Any = 1) -> Expr:
        b = cast(node, b, node.dtype)
        if alpha != 1:
            b = node.emit(op.multiply(b, relax.const(alpha, node.dtype)))
        return node.emit(function(cast(node, a, node.dtype), b))

    convert.__doc__ = f"a {sign} alpha * b, both cast to the dtype of the result"
    converts(*operators, broadcasts=True)(convert)


_arithmetic(("aten.add.Tensor", "aten.add.Scalar"), op.add, "+")
_arithmetic(("aten.sub.Tensor", "aten.sub.Scalar"), op.subtract, "-")


def _binary(operators: tuple[str, ...], function: Callable[..., Expr], definition: str) -> None:
    def convert(node: Node, a: Any, b: Any) -> Expr:
        return node.emit(function(cast(node, a, node.dtype), cast(node, b, node.dtype)))

    convert.__doc__ = definition
    converts(*operators, broadcasts=True)(convert)


_binary(("aten.mul.Tensor", "aten.mul.Scalar"), op.multiply, "a * b in the result's dtype")
_binary(("aten.div.Tensor", "aten.div.Scalar"), op.divide, "true division in the result's dtype")
_binary(("aten.maximum.default",), op.maximum, "the larger of a and b")
_binary(("aten.minimum.default",), op.minimum, "the smaller of a and b")


@converts("aten.reciprocal.default", broadcasts=True)
def reciprocal(node: Node, x: Expr) -> Expr:
    """1 / x in the dtype of the result"""
    return node.emit(op.divide(relax.const(1, node.dtype), cast(node, x, node.dtype)))


@converts("aten.pow.Tensor_Scalar", broadcasts=True)
def pow_scalar(node: Node, x: Expr, exponent: float) -> Expr:
    """x ** exponent; small whole powers as products, which stay exact for negative x"""
    x = cast(node, x, node.dtype)
    if exponent in (2, 3):
        square = node.emit(op.multiply(x, x))
        return square if exponent == 2 else node.emit(op.multiply(square, x))
    return node.emit(op.power(x, relax.const(exponent, node.dtype)))


@converts("aten.gelu.default", broadcasts=True)
def gelu(node: Node, x: Expr, *, approximate: str = "none") -> Expr:
    """x * Phi(x), or with "tanh" 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3)))"""
    return node.emit(op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x))


@converts("aten.clamp.default", broadcasts=True)
def clamp(node: Node, x: Expr, low: Any = None, high: Any = None) -> Expr:
    """min(max(x, low), high); a missing bound does not bound"""
    x = cast(node, x, node.dtype)
    for bound, function in ((low, op.maximum), (high, op.minimum)):
        if bound is not None and not (isinstance(bound, float) and math.isinf(bound)):
            x = node.emit(function(x, relax.const(bound, node.dtype)))
    return x


def _comparison(name: str, function: Callable[..., Expr], sign: str) -> None:
    def convert(node: Node, a: Expr, b: Any) -> Expr:
        common = torch.result_type(node.torch_argument(0), node.torch_argument(1))
        dtype = TVM_DTYPES[common]
        return node.emit(function(cast(node, a, dtype), cast(node, b, dtype)))

    convert.__doc__ = f"a {sign} b, compared in torch's common dtype"
    converts(f"aten.{name}.Tensor", f"aten.{name}.Scalar", broadcasts=True)(convert)


_comparison("eq", op.equal, "==")
_comparison("ne", op.not_equal, "!=")
_comparison("lt", op.less, "<")
_comparison("le", op.less_equal, "<=")
_comparison("gt", op.greater, ">")
_comparison("ge", op.greater_equal, ">=")


def _truth(node: Node, x: Expr) -> Expr:
    if dtype_of(x) == "bool":
        return x
    return node.emit(op.not_equal(x, relax.const(0, dtype_of(x))))


@converts("aten.logical_and.default", broadcasts=True)
def logical_and(node: Node, a: Expr, b: Expr) -> Expr:
    """a != 0 and b != 0"""
    return node.emit(op.logical_and(_truth(node, a), _truth(node, b)))


@converts("aten.logical_or.default", broadcasts=True)
def logical_or(node: Node, a: Expr, b: Expr) -> Expr:
    """a != 0 or b != 0"""
    return node.emit(op.logical_or(_truth(node, a), _truth(node, b)))


@converts("aten.logical_not.default", broadcasts=True)
def logical_not(node: Node, x: Expr) -> Expr:
    """x == 0"""
    return node.emit(op.logical_not(_truth(node, x)))


@converts("aten.bitwise_and.Tensor", broadcasts=True)
def bitwise_and(node: Node, a: Expr, b: Expr) -> Expr:
    """a & b; logical and for bool, the only dtype covered"""
    _require_bool(a, b)
    return node.emit(op.logical_and(a, b))


@converts("aten.bitwise_not.default", broadcasts=True)
def bitwise_not(node: Node, x: Expr) -> Expr:
    """~x; logical not for bool, the only dtype covered"""
    _require_bool(x)
    return node.emit(op.logical_not(x))


def _require_bool(*tensors: Expr) -> None:
    for tensor in tensors:
        if dtype_of(tensor) != "bool":
            raise Refusal(f"bitwise operators are verified for bool only, not {dtype_of(tensor)}")


@converts("aten.where.self", broadcasts=True)
def where(node: Node, condition: Expr, a: Expr, b: Expr) -> Expr:
    """a where the condition holds, b elsewhere, in the dtype of the result"""
    return node.emit(op.where(condition, cast(node, a, node.dtype), cast(node, b, node.dtype)))


@converts("aten._to_copy.default", broadcasts=True)
def to_copy(node: Node, x: Expr, **_keywords: Any) -> Expr:
    """x in the dtype of the result (bool from a number means != 0)"""
    return _truth(node, x) if node.dtype == "bool" else cast(node, x, node.dtype)


@converts("aten.copy.default", broadcasts=True)
def copy(node: Node, _target: Expr, source: Expr) -> Expr:
    """The source in the shape and dtype of the target (what writing to all of it leaves there)"""
    return to_copy(node, source)
