"""Functions of one tensor, element by element: powers, exponentials, trigonometry, activations."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import Expr, Node, cast, converts

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
_unary("aten.sign.default", op.sign, "-1, 0 or 1")
_unary("aten.ceil.default", op.ceil, "the smallest whole number >= x")
_unary("aten.floor.default", op.floor, "the largest whole number <= x")
_unary("aten.trunc.default", op.trunc, "x without what is behind the point")
_unary("aten.sin.default", op.sin, "sine of x")
_unary("aten.cos.default", op.cos, "cosine of x")
_unary("aten.tan.default", op.tan, "tangent of x")
_unary("aten.sinh.default", op.sinh, "(exp(x) - exp(-x)) / 2")
_unary("aten.cosh.default", op.cosh, "(exp(x) + exp(-x)) / 2")
_unary("aten.asin.default", op.asin, "inverse of the sine on [-pi / 2, pi / 2]")
_unary("aten.acos.default", op.acos, "inverse of the cosine on [0, pi]")
_unary("aten.atan.default", op.atan, "inverse of the tangent on (-pi / 2, pi / 2)")
_unary("aten.asinh.default", op.asinh, "inverse of the hyperbolic sine")
_unary("aten.acosh.default", op.acosh, "inverse of the hyperbolic cosine for x >= 1")
_unary("aten.atanh.default", op.atanh, "inverse of the hyperbolic tangent")


@converts("aten.round.default", broadcasts=True)
def round_half_to_even(node: Node, x: Expr) -> Expr:
    """The nearest whole number, of two the even one (TVM's round takes the one farther from 0)"""
    emit, dtype = node.emit, node.dtype
    below = emit(op.floor(x))
    rest = emit(op.subtract(x, below))
    is_odd = emit(
        op.not_equal(emit(op.floor_mod(below, relax.const(2, dtype))), relax.const(0, dtype))
    )
    half = relax.const(0.5, dtype)
    tie = emit(op.logical_and(emit(op.equal(rest, half)), is_odd))
    up = emit(op.logical_or(emit(op.greater(rest, half)), tie))
    return emit(op.add(below, cast(node, up, dtype)))


def _logarithm(operator: str, base: float) -> None:
    def convert(node: Node, x: Expr) -> Expr:
        natural = node.emit(op.log(cast(node, x, node.dtype)))
        return node.emit(op.multiply(natural, relax.const(1 / math.log(base), node.dtype)))

    convert.__doc__ = f"log(x) / log({base})"
    converts(operator, broadcasts=True)(convert)


_logarithm("aten.log2.default", 2)
_logarithm("aten.log10.default", 10)


@converts("aten.log1p.default", broadcasts=True)
def log1p(node: Node, x: Expr) -> Expr:
    """log(1 + x), exact for small x: with u = 1 + x rounded, log(u) * x / (u - 1), or x if u = 1

    Source: the HP-15C Advanced Functions Handbook (1982); the errors of u cancel in the quotient.
    """
    emit, x = node.emit, cast(node, x, node.dtype)
    one = relax.const(1, node.dtype)
    u = emit(op.add(x, one))
    rest = emit(op.subtract(u, one))
    is_one = emit(op.equal(u, one))
    divisor = emit(op.where(is_one, one, rest))
    value = emit(op.multiply(emit(op.log(u)), emit(op.divide(x, divisor))))
    value = emit(op.where(is_one, x, value))
    infinite = emit(op.equal(x, relax.const(math.inf, node.dtype)))  # there inf / inf
    return emit(op.where(infinite, x, value))


@converts("aten.expm1.default", broadcasts=True)
def expm1(node: Node, x: Expr) -> Expr:
    """exp(x) - 1, exact for small x: tanh(x / 2) * (exp(x) + 1)"""
    emit, x = node.emit, cast(node, x, node.dtype)
    half = emit(op.tanh(emit(op.multiply(x, relax.const(0.5, node.dtype)))))
    return emit(op.multiply(half, emit(op.add(emit(op.exp(x)), relax.const(1, node.dtype)))))


@converts("aten.isnan.default", broadcasts=True)
def isnan(node: Node, x: Expr) -> Expr:
    """Whether x is no number (x != x would do, but TVM simplifies it to false)"""
    return node.emit(op.isnan(x))


@converts("aten.isinf.default", broadcasts=True)
def isinf(node: Node, x: Expr) -> Expr:
    """|x| is infinite"""
    return node.emit(op.isinf(x))


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


@converts("aten.elu.default", broadcasts=True)
def elu(node: Node, x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    """scale * x for x > 0, else scale * alpha * (exp(input_scale * x) - 1)"""

    def times(tensor: Expr, factor: float) -> Expr:
        same = factor == 1
        return tensor if same else node.emit(op.multiply(tensor, relax.const(factor, node.dtype)))

    # The branch that is not taken must not overflow.
    below = node.emit(op.minimum(x, relax.const(0, node.dtype)))
    negative = times(expm1(node, times(below, input_scale)), alpha * scale)
    positive = node.emit(op.greater(x, relax.const(0, node.dtype)))
    return node.emit(op.where(positive, times(x, scale), negative))


@converts("aten.leaky_relu.default", broadcasts=True)
def leaky_relu(node: Node, x: Expr, slope: float = 0.01) -> Expr:
    """x for x > 0, else slope * x"""
    below = node.emit(op.multiply(x, relax.const(slope, node.dtype)))
    return node.emit(op.where(node.emit(op.greater(x, relax.const(0, node.dtype))), x, below))


@converts("aten.hardtanh.default", broadcasts=True)
def hardtanh(node: Node, x: Expr, low: float = -1, high: float = 1) -> Expr:
    """min(max(x, low), high)"""
    above = node.emit(op.maximum(x, relax.const(low, node.dtype)))
    return node.emit(op.minimum(above, relax.const(high, node.dtype)))


@converts("aten.exp2.default", broadcasts=True)
def exp2(node: Node, x: Expr) -> Expr:
    """2 ** x"""
    return node.emit(op.power(relax.const(2, node.dtype), cast(node, x, node.dtype)))
