"""Elementwise operators: arithmetic, comparisons, logic, selection, casts."""

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


def _arithmetic(operators: tuple[str, ...], function: Callable[..., Expr], sign: str) -> None:
    def convert(node: Node, a: Any, b: Any, *, alpha: Any = 1) -> Expr:
        b = cast(node, b, node.dtype)
        if node.dtype == "bool":  # torch subtracts no booleans
            return node.emit(op.logical_or(cast(node, a, "bool"), b))
        if alpha != 1:
            b = node.emit(op.multiply(b, relax.const(alpha, node.dtype)))
        return node.emit(function(cast(node, a, node.dtype), b))

    convert.__doc__ = f"a {sign} alpha * b, both cast to the dtype of the result"
    converts(*operators, broadcasts=True)(convert)


_arithmetic(("aten.add.Tensor", "aten.add.Scalar"), op.add, "+")
_arithmetic(("aten.sub.Tensor", "aten.sub.Scalar"), op.subtract, "-")


def _binary(
    operators: tuple[str, ...],
    function: Callable[..., Expr],
    definition: str,
    of_bool: Callable[..., Expr] | None = None,
) -> None:
    def convert(node: Node, a: Any, b: Any) -> Expr:
        if node.dtype == "bool" and of_bool is not None:  # TVM has no arithmetic of booleans
            return node.emit(of_bool(cast(node, a, "bool"), cast(node, b, "bool")))
        return node.emit(function(cast(node, a, node.dtype), cast(node, b, node.dtype)))

    convert.__doc__ = definition
    converts(*operators, broadcasts=True)(convert)


_binary(
    ("aten.mul.Tensor", "aten.mul.Scalar"),
    op.multiply,
    "a * b in the result's dtype",
    op.logical_and,
)
_binary(("aten.div.Tensor", "aten.div.Scalar"), op.divide, "true division in the result's dtype")
_binary(("aten.maximum.default",), op.maximum, "the larger of a and b", op.logical_or)
_binary(("aten.minimum.default",), op.minimum, "the smaller of a and b", op.logical_and)
_binary(("aten.atan2.default",), op.atan2, "the angle of the point (b, a)")
_binary(("aten.pow.Tensor_Tensor", "aten.pow.Scalar"), op.power, "a ** b")


def _remainder(name: str, function: Callable[..., Expr], definition: str) -> None:
    def convert(node: Node, a: Any, b: Any) -> Expr:
        _require_integers(node)
        return node.emit(function(cast(node, a, node.dtype), cast(node, b, node.dtype)))

    convert.__doc__ = definition
    converts(f"aten.{name}.Tensor", f"aten.{name}.Scalar", broadcasts=True)(convert)


_remainder("remainder", op.floor_mod, "a - b * floor(a / b) of integers, with the sign of b")
_remainder("fmod", op.mod, "a - b * trunc(a / b) of integers, with the sign of a")


def _require_integers(node: Node) -> None:
    """0.5 // 0.1 is 4, but a division rounded to float64 gives 5; TVM has no exact remainder."""
    if not node.dtype.startswith(("int", "uint")):
        raise Refusal(f"remainders and floor division are verified for integers, not {node.dtype}")


@converts("aten.clamp.default", "aten.clamp.Tensor", broadcasts=True)
def clamp(node: Node, x: Expr, low: Any = None, high: Any = None) -> Expr:
    """min(max(x, low), high); a missing bound does not bound"""
    x = cast(node, x, node.dtype)
    for bound, function in ((low, op.maximum), (high, op.minimum)):
        if bound is not None and not (isinstance(bound, float) and math.isinf(bound)):
            x = node.emit(function(x, cast(node, bound, node.dtype)))
    return x


@converts("aten.div.Tensor_mode", broadcasts=True)
def divide_and_round(node: Node, a: Expr, b: Any, *, rounding_mode: str | None) -> Expr:
    """a / b rounded down ("floor", of integers) or towards zero ("trunc")"""
    a, b = cast(node, a, node.dtype), cast(node, b, node.dtype)
    if rounding_mode == "floor":
        _require_integers(node)
        return node.emit(op.floor_divide(a, b))
    quotient = node.emit(op.divide(a, b))
    is_whole = rounding_mode is None or node.dtype.startswith(("int", "uint"))
    return quotient if is_whole else node.emit(op.trunc(quotient))


def _comparison(name: str, function: Callable[..., Expr], sign: str) -> None:
    def convert(node: Node, a: Expr, b: Any) -> Expr:
        common = torch.result_type(node.torch_argument(0), node.torch_argument(1))
        dtype = "int8" if common is torch.bool else TVM_DTYPES[common]
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


def _exactly_one(a: Expr, b: Expr) -> Expr:
    return op.logical_and(op.logical_or(a, b), op.logical_not(op.logical_and(a, b)))


def _bitwise(
    name: str, of_bool: Callable[..., Expr], of_int: Callable[..., Expr], definition: str
) -> None:
    def convert(node: Node, a: Expr, b: Any) -> Expr:
        function = of_bool if node.dtype == "bool" else of_int
        return node.emit(function(cast(node, a, node.dtype), cast(node, b, node.dtype)))

    convert.__doc__ = definition
    converts(f"aten.{name}.Tensor", f"aten.{name}.Scalar", broadcasts=True)(convert)


_bitwise("bitwise_and", op.logical_and, op.bitwise_and, "a & b, per bit of integers")
_bitwise("bitwise_or", op.logical_or, op.bitwise_or, "a | b, per bit of integers")
_bitwise("bitwise_xor", _exactly_one, op.bitwise_xor, "a ^ b, per bit of integers")


@converts("aten.bitwise_not.default", broadcasts=True)
def bitwise_not(node: Node, x: Expr) -> Expr:
    """~x, per bit of integers"""
    return node.emit(op.logical_not(x) if node.dtype == "bool" else op.bitwise_not(x))


@converts("aten.logical_xor.default", broadcasts=True)
def logical_xor(node: Node, a: Expr, b: Expr) -> Expr:
    """Exactly one of a != 0 and b != 0"""
    return node.emit(_exactly_one(_truth(node, a), _truth(node, b)))


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


def _ignoring_nan(name: str, function: Callable[..., Expr], which: str) -> None:
    def convert(node: Node, a: Expr, b: Expr) -> Expr:
        a, b = cast(node, a, node.dtype), cast(node, b, node.dtype)
        chosen = node.emit(function(a, b))
        if not node.dtype.startswith(("float", "bfloat")):
            return chosen
        chosen = node.emit(op.where(node.emit(op.isnan(b)), a, chosen))
        return node.emit(op.where(node.emit(op.isnan(a)), b, chosen))

    convert.__doc__ = f"the {which} of a and b, or the other one where one is no number"
    converts(f"aten.{name}.default", broadcasts=True)(convert)


_ignoring_nan("fmax", op.maximum, "larger")
_ignoring_nan("fmin", op.minimum, "smaller")
