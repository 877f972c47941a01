"""Operations of random programs on elements, positions and axes, and how hypothesis draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from rule_programs import Array, Draw, Operation, Program
from tvm import relax

op = relax.op
_erf = np.vectorize(math.erf, otypes=["float64"])


def _call(function: Any) -> Any:
    """A Relax op of all sources, whose settings are none."""
    return lambda emit, _settings, *values: emit(function(*values))


def _elementwise(relax_op: Any, numpy_op: Any) -> Operation:
    return Operation(emit=_call(relax_op), compute=lambda _settings, *arrays: numpy_op(*arrays))


def _away(emit: Any, x: relax.Expr) -> relax.Expr:
    """``abs(x) + 0.5``, so that it can be a divisor."""
    return emit(op.add(emit(op.abs(x)), relax.const(0.5, x.ty.dtype)))


def _divisor(emit: Any, x: relax.Expr) -> relax.Expr:
    return emit(op.add(emit(op.abs(x)), relax.const(1, x.ty.dtype)))


UNARY = {
    "double": _elementwise(lambda x: op.add(x, x), lambda x: x + x if x.dtype != bool else x | x),
    "negative": _elementwise(op.negative, np.negative),
    "abs": _elementwise(op.abs, np.abs),
    "square": _elementwise(op.square, np.square),
    "relu": _elementwise(op.nn.relu, lambda x: np.maximum(x, 0)),
    "tanh": _elementwise(op.tanh, np.tanh),
    "sigmoid": _elementwise(op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "erf": _elementwise(op.erf, _erf),
    "gelu": _elementwise(op.nn.gelu, lambda x: x / 2 * (1 + _erf(x / math.sqrt(2)))),
    "exp": Operation(
        emit=lambda emit, _, x: emit(op.exp(emit(op.clip(x, -3, 3)))),
        compute=lambda _, x: np.exp(np.clip(x, -3, 3)),
    ),
    "log": Operation(
        emit=lambda emit, _, x: emit(op.log(_away(emit, x))),
        compute=lambda _, x: np.log(np.abs(x) + 0.5),
    ),
    "rsqrt": Operation(
        emit=lambda emit, _, x: emit(op.rsqrt(_away(emit, x))),
        compute=lambda _, x: 1 / np.sqrt(np.abs(x) + 0.5),
    ),
    "power": Operation(
        emit=lambda emit, s, x: emit(op.power(x, relax.const(float(s[0]), x.ty.dtype))),
        compute=lambda s, x: x ** s[0],
    ),
}
STEPS = {  # not continuous
    "floor": _elementwise(op.floor, np.floor),
    "ceil": _elementwise(op.ceil, np.ceil),
    "trunc": _elementwise(op.trunc, np.trunc),
    "sign": _elementwise(op.sign, np.sign),
}
BINARY = {
    "add": _elementwise(op.add, np.add),
    "subtract": _elementwise(op.subtract, np.subtract),
    "multiply": _elementwise(op.multiply, np.multiply),
    "maximum": _elementwise(op.maximum, np.maximum),
    "minimum": _elementwise(op.minimum, np.minimum),
}
DIVIDE = {
    "divide": Operation(
        emit=lambda emit, _, x, y: emit(op.divide(x, _away(emit, y))),
        compute=lambda _, x, y: x / (np.abs(y) + 0.5),
    )
}
WHOLE = {
    "floor_divide": Operation(
        emit=lambda emit, _, x, y: emit(op.floor_divide(x, _divisor(emit, y))),
        compute=lambda _, x, y: x // (np.abs(y) + 1),
    ),
    "floor_mod": Operation(
        emit=lambda emit, _, x, y: emit(op.floor_mod(x, _divisor(emit, y))),
        compute=lambda _, x, y: x % (np.abs(y) + 1),
    ),
    "bitwise_and": _elementwise(op.bitwise_and, np.bitwise_and),
    "bitwise_or": _elementwise(op.bitwise_or, np.bitwise_or),
    "bitwise_xor": _elementwise(op.bitwise_xor, np.bitwise_xor),
}
LOGIC = {
    "logical_and": _elementwise(op.logical_and, np.logical_and),
    "logical_or": _elementwise(op.logical_or, np.logical_or),
    "logical_xor": _elementwise(op.logical_xor, np.logical_xor),
}
COMPARE = {
    "less": _elementwise(op.less, np.less),
    "less_equal": _elementwise(op.less_equal, np.less_equal),
    "equal": _elementwise(op.equal, np.equal),
    "greater": _elementwise(op.greater, np.greater),
}
OTHERS = {
    "logical_not": _elementwise(op.logical_not, np.logical_not),
    "where": _elementwise(op.where, np.where),
    "cast": Operation(
        emit=lambda emit, s, x: emit(op.astype(x, s[0])),
        compute=lambda s, x: x.astype("float64" if "float" in s[0] else s[0]),
    ),
}


def _slice(s: tuple[Any, ...], x: Array) -> Array:
    return x[tuple(slice(*part) for part in s)]


MOVES = {
    "permute": Operation(
        emit=lambda emit, s, x: emit(op.permute_dims(x, list(s))),
        compute=lambda s, x: x.transpose(s),
    ),
    "reshape": Operation(
        emit=lambda emit, s, x: emit(op.reshape(x, list(s))), compute=lambda s, x: x.reshape(s)
    ),
    "slice": Operation(
        emit=lambda emit, s, x: emit(
            op.strided_slice(x, list(range(len(s))), *([part[k] for part in s] for k in range(3)))
        ),
        compute=_slice,
    ),
    "flip": Operation(
        emit=lambda emit, s, x: emit(op.flip(x, s[0])), compute=lambda s, x: np.flip(x, s[0])
    ),
    "concat": Operation(
        emit=lambda emit, s, *parts: emit(op.concat(list(parts), s[0])),
        compute=lambda s, *parts: np.concatenate(parts, s[0]),
    ),
    "stack": Operation(
        emit=lambda emit, s, *parts: emit(op.stack(list(parts), s[0])),
        compute=lambda s, *parts: np.stack(parts, s[0]),
    ),
    "pad": Operation(
        emit=lambda emit, s, x: emit(op.nn.pad(x, [n for pair in s for n in pair])),
        compute=lambda s, x: np.pad(x, s),
    ),
    "broadcast": Operation(
        emit=lambda emit, s, x: emit(op.broadcast_to(x, list(s))),
        compute=lambda s, x: np.broadcast_to(x, s),
    ),
    "repeat": Operation(
        emit=lambda emit, s, x: emit(op.repeat(x, s[0], s[1])),
        compute=lambda s, x: np.repeat(x, s[0], s[1]),
    ),
    "tile": Operation(
        emit=lambda emit, s, x: emit(op.tile(x, list(s))), compute=lambda s, x: np.tile(x, s)
    ),
    "piece": Operation(
        emit=lambda emit, s, x: emit(relax.TupleGetItem(emit(op.split(x, s[0], s[1])), s[2])),
        compute=lambda s, x: np.split(x, s[0], s[1])[s[2]],
    ),
}
POINTWISE = UNARY | STEPS | BINARY | DIVIDE | WHOLE | LOGIC | COMPARE | OTHERS | MOVES


def pick(
    draw: Draw, program: Program, *, kinds: str = "fib", exact: bool = False, axes: int = 0
) -> int | None:
    """A value of a kind (float, int, bool), later ones more often; None where there is none.

    It has at least ``axes`` axes, and no rounding if ``exact``.
    """
    found = [
        i
        for i, dtype in enumerate(program.dtypes)
        if dtype.lstrip("b")[0].replace("o", "b") in kinds
        and (program.exact[i] or not exact)
        and len(program.shape(i)) >= axes
    ]
    return draw(st.sampled_from(found + found[-2:])) if found else None


def unary(draw: Draw, program: Program) -> None:
    """A function of every element."""
    source = pick(draw, program)
    if source is None:
        return
    dtype, exact = program.dtypes[source], program.exact[source]
    if dtype == "bool":
        program.add("logical_not", [source], exact=exact)
    elif "int" in dtype:
        program.add(draw(st.sampled_from(["negative", "abs", "double"])), [source], exact=exact)
    elif exact and draw(st.booleans()):
        name = draw(st.sampled_from([*STEPS, "negative", "abs", "relu"]))
        program.add(name, [source], exact=True)
    else:
        name = draw(st.sampled_from(list(UNARY)))
        program.add(name, [source], [draw(st.integers(1, 4))] if name == "power" else [])


def partner(draw: Draw, program: Program, source: int) -> int:
    """A value of the same type that broadcasts to ``source``: an earlier one or a new input."""
    shape, dtype = program.shape(source), program.dtypes[source]
    same = [i for i in range(len(program.steps)) if program.dtypes[i] == dtype]
    same = [i for i in same if program.shape(i) == shape]
    if draw(st.booleans()):
        return draw(st.sampled_from(same))
    flags = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    thin = [extent if flag else min(extent, 1) for extent, flag in zip(shape, flags, strict=True)]
    return program.input(thin[draw(st.integers(0, len(shape))) :], dtype)


def binary(draw: Draw, program: Program) -> None:
    """Arithmetic or logic of two values, one of which may be broadcast."""
    left = pick(draw, program)
    if left is None:
        return
    right = partner(draw, program, left)
    dtype = program.dtypes[left]
    names = [*BINARY, *DIVIDE] if "float" in dtype else [*BINARY, *WHOLE]
    names = list(LOGIC) if dtype == "bool" else names
    name = draw(st.sampled_from(names))
    exact = program.exact[left] and program.exact[right]
    keeps = "float" not in dtype or name in ("maximum", "minimum")
    program.add(name, [left, right], exact=exact and keeps)


def comparison(draw: Draw, program: Program) -> None:
    """A comparison of what is exact, or a choice between two values."""
    source = pick(draw, program, kinds="fi", exact=True)
    if source is None:
        return
    other = partner(draw, program, source)
    if not program.exact[other]:
        return
    condition = program.add(
        draw(st.sampled_from(list(COMPARE))), [source, other], dtype="bool", exact=True
    )
    if condition is not None and draw(st.booleans()):
        chosen = partner(draw, program, source)
        exact = program.exact[chosen]
        dtype = program.dtypes[source]
        program.add("where", [condition, source, chosen], dtype=dtype, exact=exact)


def conversion(draw: Draw, program: Program) -> None:
    """Another type; a float that may be off by a rounding becomes no integer."""
    source = pick(draw, program)
    if source is None:
        return
    old, exact = program.dtypes[source], program.exact[source]
    targets = {"bool", "int32", "int64", "float32", "float64"} if exact else {"float32", "float64"}
    new = draw(st.sampled_from(sorted(targets - {old})))
    narrow = old == "float64" and new == "float32"
    program.add("cast", [source], [new], dtype=new, exact=exact and not narrow)


def move(draw: Draw, program: Program) -> None:
    """The same numbers at other positions."""
    source = pick(draw, program)
    if source is None:
        return
    shape = program.shape(source)
    exact = program.exact[source]
    axis = draw(st.integers(0, max(0, len(shape) - 1)))
    names = ["reshape", "stack"] if not shape else list(MOVES)
    name = draw(st.sampled_from(names))
    sources, settings = [source], _settings(draw, name, shape, axis)
    if name in ("concat", "stack"):
        same = [i for i in range(len(program.steps)) if program.dtypes[i] == program.dtypes[source]]
        same = [i for i in same if program.shape(i) == shape]
        sources += draw(st.lists(st.sampled_from(same), min_size=1, max_size=2))
        exact = all(program.exact[i] for i in sources)
    if name == "piece" and (shape[axis] % 2 or not shape[axis]):
        return
    if len(shape) < 5 or name not in ("stack", "broadcast", "reshape"):
        program.add(name, sources, settings, exact=exact)


def _settings(draw: Draw, name: str, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    """Random settings of a move."""
    small = st.integers(0, 3)
    if name == "permute":
        return tuple(draw(st.permutations(range(len(shape)))))
    if name == "reshape":
        return _other_shape(draw, shape)
    if name == "slice":
        parts = []
        for extent in shape:
            begin = draw(st.integers(0, max(0, extent - 1)))
            parts.append(
                (begin, draw(st.integers(min(begin + 1, extent), extent)), draw(small) + 1)
            )
        return tuple(parts)
    if name == "pad":
        return tuple((draw(small), draw(small)) for _ in shape)
    if name == "broadcast":
        return (draw(st.integers(1, 3)), *(e if e != 1 else draw(st.integers(1, 9)) for e in shape))
    if name == "repeat":
        return draw(st.integers(1, 3)), axis
    if name == "tile":
        return tuple(draw(st.integers(1, 2)) for _ in shape)
    if name == "piece":
        return 2, axis, draw(st.integers(0, 1))
    return (axis,)


def _other_shape(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """As many elements in other rows: neighbours merged, or one axis split in two."""
    if not shape:
        return (1,)
    axis = draw(st.integers(0, len(shape) - 1))
    divisors = [d for d in range(1, shape[axis] + 1) if shape[axis] % d == 0]
    if len(shape) > 1 and axis + 1 < len(shape) and draw(st.booleans()):
        merged = shape[axis] * shape[axis + 1]
        return (*shape[:axis], merged, *shape[axis + 2 :])
    first = draw(st.sampled_from(divisors)) if divisors else 0
    rest = shape[axis] // first if first else 1
    return (*shape[:axis], first, rest, *shape[axis + 1 :])
