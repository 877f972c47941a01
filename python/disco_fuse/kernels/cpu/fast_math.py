"""float32 exp, tanh, sigmoid and erf that LLVM can keep in vector registers.

LLVM turns a vector ``exp`` into one libm call per lane.  The forms here are straight-line
arithmetic.  Largest relative errors over the whole range, measured against float64 by
tests/python/numeric/test_cpu_fast_math.py:

========  =========  ==============================================================
function  rel error  method
========  =========  ==============================================================
exp       2e-7       ``2**n * (1 + r + r*r*q(r))`` with ``x = n*ln2 + r``
tanh      4e-7       ``e / (e + 2)`` with ``e = expm1(2x)`` from the same ``q``
sigmoid   3e-7       ``1 / (1 + exp(-x))``
erf       5e-7       ``x * P(x*x) / Q(x*x)`` on ``|x| < 3.95``, 1 beyond
========  =========  ==============================================================

Results below the smallest normal float32 may be flushed or rounded coarsely; NaN gives NaN.
float64 keeps libm's functions: training checks in float64 must be exact.

How the coefficients were made: ``q(r) = (exp(r) - 1 - r) / r**2`` was interpolated by a polynomial
of degree 4 at the 5 Chebyshev nodes of ``|r| <= 0.3475`` in float64 and rounded to float32. ``P/Q``
(degrees 5 and 5 in ``x*x``) was fitted to ``erf(x)/x`` (`scipy.special.erf`) on 4000 points of
``0 < x <= 3.95`` by iterated linear least squares ``P - f*Q``, each point weighted by
``1/(f*Q)`` of the previous round and by its last relative error (Lawson's weights), which
approaches the smallest maximum relative error: 2e-8 before rounding.
The split ``ln2 = 0.693359375 - 2.12194440e-4`` and the rounding by adding ``1.5 * 2**23`` are
Cody and Waite's ("Software Manual for the Elementary Functions", 1980, chapter 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.ir import prim

from .scalar import Node

Bind = Callable[[str, tirx.Expr], tirx.Var]

_Q = (
    0.5,
    0.16666576266288757,
    0.04166655242443085,
    0.008363333530724049,
    0.001392637612298131,
)
_ERF_P = (1.12837914, 0.19154028, 0.052873893, 0.00380766896, 0.000284666613, 2.02585609e-06)
_ERF_Q = (1.0, 0.503080832, 0.114555273, 0.015054111, 0.0011705875, 3.78301509e-05)
_ERF_LIMIT = 3.95
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
_ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
_ROUND_BITS = 0x4B400000
_EXP_RANGE = (-104.0, 89.0)  # beyond: 0 and infinity in float32
_TANH_LIMIT = 9.1  # tanh is 1 in float32


def _f32(value: float) -> tirx.FloatImm:
    return tirx.FloatImm("float32", value)


def _i32(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def _clamp(x: tirx.Expr, low: float, high: float) -> tirx.Expr:
    """`x` limited to a range, NaN kept (a comparison with NaN is false)."""
    capped = prim.Select(prim.GT(x, _f32(high)), _f32(high), x)
    return prim.Select(prim.LT(x, _f32(low)), _f32(low), capped)


def _polynomial(x: tirx.Expr, coefficients: Sequence[float]) -> tirx.Expr:
    """Horner's scheme, lowest coefficient first."""
    total: tirx.Expr = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = prim.Add(prim.Mul(total, x), _f32(coefficient))
    return total


def _power_of_two(exponent: tirx.Expr) -> tirx.Expr:
    """``2.0**exponent`` for an int32 in -126 .. 127."""
    bits = tirx.shift_left(exponent + _i32(127), _i32(23))
    return tvm.ir.Call("tirx.reinterpret", [bits], ret_ty="float32")


def _reduce_exponent(x: tirx.Expr, bind: Bind) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """``(n, r, r*r*q(r))`` with ``x = n*ln2 + r``, n an int32."""
    rounded = bind("t", prim.Add(prim.Mul(x, _f32(_LOG2_E)), _f32(_ROUND)))
    bits = tvm.ir.Call("tirx.reinterpret", [rounded], ret_ty="int32")
    n = bind("n", prim.Sub(bits, _i32(_ROUND_BITS)))
    whole = bind("w", prim.Cast("float32", n))  # t - _ROUND would be simplified to x * log2(e)
    high = prim.Sub(x, prim.Mul(whole, _f32(_LN2_HIGH)))
    r = bind("r", prim.Sub(high, prim.Mul(whole, _f32(_LN2_LOW))))
    tail = prim.Mul(prim.Mul(r, r), _polynomial(r, _Q))
    return n, r, tail


def _exp(x: tirx.Expr, bind: Bind) -> tirx.Expr:
    x = bind("x", _clamp(x, *_EXP_RANGE))
    n, r, tail = _reduce_exponent(x, bind)
    mantissa = prim.Add(prim.Add(tail, r), _f32(1.0))
    # Two factors: n reaches 128 and -150, beyond what one float32 exponent holds.
    half = bind("h", tirx.shift_right(n, _i32(1)))
    return prim.Mul(prim.Mul(mantissa, _power_of_two(half)), _power_of_two(prim.Sub(n, half)))


def _tanh(x: tirx.Expr, bind: Bind) -> tirx.Expr:
    x = bind("x", _clamp(x, -_TANH_LIMIT, _TANH_LIMIT))
    n, r, tail = _reduce_exponent(prim.Mul(x, _f32(2.0)), bind)
    scale = bind("s", _power_of_two(n))
    # expm1 without cancellation: 2**n - 1 is exact, and 0 where |x| is small.
    small = prim.Mul(scale, prim.Add(tail, r))
    e = bind("e", prim.Add(prim.Sub(scale, _f32(1.0)), small))
    return prim.Div(e, prim.Add(e, _f32(2.0)))


def _sigmoid(x: tirx.Expr, bind: Bind) -> tirx.Expr:
    return prim.Div(_f32(1.0), prim.Add(_f32(1.0), _exp(prim.Mul(x, _f32(-1.0)), bind)))


def _erf(x: tirx.Expr, bind: Bind) -> tirx.Expr:
    x = bind("x", _clamp(x, -_ERF_LIMIT, _ERF_LIMIT))
    t = bind("t", prim.Mul(x, x))
    top = prim.Mul(x, _polynomial(t, _ERF_P))
    ratio = bind("e", prim.Div(top, _polynomial(t, _ERF_Q)))
    return _clamp(ratio, -1.0, 1.0)


_FAST: dict[str, Callable[[tirx.Expr, Bind], tirx.Expr]] = {
    "exp": _exp,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
}
_MAX_POWER = 4


def _constant_power(name: str, args: Sequence[tirx.Expr]) -> int:
    """The exponent of ``pow(x, 1 .. 4)``, 0 for any other call."""
    if name != "pow" or not isinstance(args[1], tirx.FloatImm):
        return 0
    exponent = float(args[1].value)
    return int(exponent) if exponent in range(1, _MAX_POWER + 1) else 0


def has_fast_call(node: Node) -> bool:
    """Whether `fast_call` replaces this call."""
    name = node.payload.name.rpartition(".")[2]
    if name == "pow":
        exponent = node.args[1]
        return exponent.kind == "const" and exponent.payload in range(1, _MAX_POWER + 1)
    return node.dtype == "float32" and name in _FAST


def fast_call(name: str, dtype: str, args: Sequence[tirx.Expr], bind: Bind) -> tirx.Expr | None:
    """An expression to use instead of a call.

    Parameters
    ----------
    name
        Function without its dialect: ``"exp"``.
    dtype
        Type of the result.
    args
        Operands.
    bind
        Names a value in front of the expression.

    Returns
    -------
    tirx.Expr or None
        None when the call should stay. Powers with exponents 1 to 4 become products in every
        type; the other functions only in float32.
    """
    power = _constant_power(name, args)
    if power:
        x = bind("x", args[0])
        total: tirx.Expr = x
        for _ in range(power - 1):
            total = prim.Mul(total, x)
        return total
    if dtype != "float32" or name not in _FAST:
        return None
    return _FAST[name](args[0], bind)
