"""Operations of random programs that reduce, index or sort, and how hypothesis draws them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from rule_operations import pick
from rule_programs import Array, Draw, Operation, Program
from tvm import relax

op = relax.op


def _reduction(relax_op: Any, numpy_op: Any) -> Operation:
    """Settings: the axes, and whether they are kept."""
    return Operation(
        emit=lambda emit, s, x: emit(relax_op(x, list(s[0]), keepdims=s[1])),
        compute=lambda s, x: numpy_op(x, axis=tuple(s[0]), keepdims=s[1]),
    )


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


def _layer_norm(s: tuple[Any, ...], x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(s, keepdims=True)
    return centred / np.sqrt((centred**2).mean(s, keepdims=True) + 0.1) * scale + shift


def _emit_layer_norm(
    emit: Any, s: tuple[Any, ...], x: relax.Expr, scale: relax.Expr, shift: relax.Expr
) -> relax.Expr:
    """TVM's operator, which there is in float32 only, or what it consists of."""
    dtype = str(x.ty.dtype)
    if dtype == "float32":
        return emit(op.nn.layer_norm(x, scale, shift, list(s), epsilon=0.1))
    centred = emit(op.subtract(x, emit(op.mean(x, list(s), keepdims=True))))
    variance = emit(op.mean(emit(op.square(centred)), list(s), keepdims=True))
    deviation = emit(op.sqrt(emit(op.add(variance, relax.const(0.1, dtype)))))
    return emit(op.add(emit(op.multiply(emit(op.divide(centred, deviation)), scale)), shift))


REDUCTIONS = {
    "sum": _reduction(op.sum, np.sum),
    "mean": _reduction(op.mean, np.mean),
    "max": _reduction(op.max, np.max),
    "min": _reduction(op.min, np.min),
    "prod": _reduction(op.prod, np.prod),
    "variance": _reduction(op.variance, np.var),
}
NORMS = {
    "softmax": Operation(
        emit=lambda emit, s, x: emit(op.nn.softmax(x, s[0])),
        compute=lambda s, x: _softmax(x, s[0]),
    ),
    "log_softmax": Operation(
        emit=lambda emit, s, x: emit(op.nn.log_softmax(x, s[0])),
        compute=lambda s, x: np.log(_softmax(x, s[0])),
    ),
    "layer_norm": Operation(
        emit=_emit_layer_norm,
        compute=_layer_norm,
    ),
}
INDEX = {
    "argmax": Operation(
        emit=lambda emit, s, x: emit(op.argmax(x, s[0], s[1])),
        compute=lambda s, x: x.argmax(s[0], keepdims=s[1]),
    ),
    "argmin": Operation(
        emit=lambda emit, s, x: emit(op.argmin(x, s[0], s[1])),
        compute=lambda s, x: x.argmin(s[0], keepdims=s[1]),
    ),
}
MATMUL = {
    "matmul": Operation(
        emit=lambda emit, _, x, y: emit(op.matmul(x, y)), compute=lambda _, x, y: x @ y
    ),
    "swap": Operation(
        emit=lambda emit, s, x: emit(op.permute_dims(x, list(s))),
        compute=lambda s, x: x.transpose(s),
    ),
}


def _scatter_along(s: tuple[Any, ...], x: Array, index: Array, updates: Array) -> Array:
    axis, how = s
    out, places = x.copy(), list(np.indices(index.shape))
    places[axis] = index
    if how == "update":
        out[tuple(places)] = updates
        return out
    function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[how]
    function.at(out, tuple(places), updates)
    return out


def _scatter_rows(s: tuple[Any, ...], x: Array, index: Array, updates: Array) -> Array:
    out = x.copy()
    {"add": np.add, "mul": np.multiply, "max": np.maximum}[s[0]].at(out, index[..., 0], updates)
    return out


GATHER = {
    "take": Operation(
        emit=lambda emit, s, x, i: emit(op.take(x, i, s[0], mode="clip")),
        compute=lambda s, x, i: np.take(x, i, s[0], mode="clip"),
    ),
    "gather_elements": Operation(
        emit=lambda emit, s, x, i: emit(op.gather_elements(x, i, s[0])),
        compute=lambda s, x, i: np.take_along_axis(x, i, s[0]),
    ),
    "gather_nd": Operation(
        emit=lambda emit, _, x, i: emit(op.gather_nd(x, i)),
        compute=lambda _, x, i: x[tuple(np.moveaxis(i, -1, 0))],
    ),
    "one_hot": Operation(
        emit=lambda emit, s, i: emit(
            op.one_hot(i, relax.prim_value(2.0), relax.prim_value(-1.0), s[0], s[1])
        ),
        compute=lambda s, i: np.moveaxis(np.where(np.eye(s[0])[i] == 1, 2.0, -1.0), -1, s[1]),
    ),
}
SCATTER = {
    "scatter_elements": Operation(
        emit=lambda emit, s, x, i, u: emit(op.scatter_elements(x, i, u, s[0], s[1])),
        compute=_scatter_along,
    ),
    "scatter_nd": Operation(
        emit=lambda emit, s, x, i, u: emit(op.scatter_nd(x, i, u, s[0])), compute=_scatter_rows
    ),
}


def _axis(draw: Draw, program: Program, source: int) -> int:
    return draw(st.integers(0, len(program.shape(source)) - 1))


def reduction(draw: Draw, program: Program) -> None:
    """A reduction over any axes."""
    source = pick(draw, program, kinds="fi", axes=1)
    if source is None:
        return
    rank = len(program.shape(source))
    axes = draw(st.sets(st.integers(0, rank - 1), min_size=1))
    dtype, exact = program.dtypes[source], program.exact[source]
    names = ["sum", "max", "min"] if "int" in dtype else list(REDUCTIONS)
    name = draw(st.sampled_from(names))
    if 0 in program.shape(source) and name not in ("sum", "prod"):
        return  # of nothing there is no largest and no mean
    exact = exact and ("int" in dtype or name in ("max", "min"))
    program.add(name, [source], [sorted(axes), draw(st.booleans())], exact=exact)


def position(draw: Draw, program: Program) -> None:
    """Where the largest or smallest is; the first of equal ones."""
    source = pick(draw, program, kinds="fi", exact=True, axes=1)
    if source is None:
        return
    axis = _axis(draw, program, source)
    if program.shape(source)[axis] > 0:
        settings = [axis, draw(st.booleans())]
        name = draw(st.sampled_from(list(INDEX)))
        program.add(name, [source], settings, dtype="int64", exact=True)


def norm(draw: Draw, program: Program) -> None:
    """Softmax over an axis, or layer norm over the last ones."""
    source = pick(draw, program, kinds="f", axes=1)
    if source is None or 0 in program.shape(source):
        return
    name = draw(st.sampled_from(list(NORMS)))
    shape, dtype = program.shape(source), program.dtypes[source]
    if name != "layer_norm":
        program.add(name, [source], [_axis(draw, program, source)])
        return
    first = draw(st.integers(0, len(shape) - 1))
    scale, shift = (program.input(shape[first:], dtype) for _ in range(2))
    program.add(name, [source, scale, shift], range(first, len(shape)))


def matmul(draw: Draw, program: Program) -> None:
    """A product with a new matrix or a batch of them, either side transposed before."""
    source = pick(draw, program, kinds="f", axes=2)
    if source is None:
        return
    *batch, _, inner = program.shape(source)
    width = draw(st.sampled_from([1, 2, 5, 8, 17, 33]))
    thin = batch if draw(st.booleans()) else [1] * len(batch)
    thin = thin[draw(st.integers(0, len(thin))) :]
    turned = draw(st.booleans())
    shape = [*thin, width, inner] if turned else [*thin, inner, width]
    right: int | None = program.input(shape, program.dtypes[source])
    if turned:
        right = swap(program, right)
    if right is None:
        return
    if draw(st.booleans()) or batch:
        program.add("matmul", [source, right])
    else:  # the other way round, both transposed
        left, other = swap(program, right), swap(program, source)
        if left is not None and other is not None:
            program.add("matmul", [left, other])


def swap(program: Program, source: int) -> int | None:
    """The last two axes exchanged."""
    rank = len(program.shape(source))
    order = [*range(rank - 2), rank - 1, rank - 2]
    return program.add("swap", [source], order, exact=program.exact[source])


def gather(draw: Draw, program: Program) -> None:
    """Reads at positions that are read from memory, of either integer type."""
    source = pick(draw, program, axes=1)
    if source is None or 0 in program.shape(source):
        return
    shape, exact = program.shape(source), program.exact[source]
    kind = draw(st.sampled_from(["int64", "int32"]))
    name = draw(st.sampled_from(list(GATHER)))
    axis = _axis(draw, program, source)
    sizes = st.lists(st.sampled_from([1, 2, 5, 17]), min_size=0, max_size=2)
    if name == "one_hot":
        index = program.input(draw(sizes), kind, 0, 5)
        place = draw(st.integers(0, len(program.shape(index))))
        program.add(name, [index], [5, place], dtype="float64", exact=True)
    elif name == "take":
        index = program.input(draw(sizes), kind, 0, shape[axis])
        program.add(name, [source, index], [axis], exact=exact)
    elif name == "gather_nd":
        depth = draw(st.integers(1, len(shape)))
        index = program.input([*draw(sizes), depth], "int64", 0, min(shape[:depth]))
        program.add(name, [source, index], exact=exact)
    else:
        around = [*shape[:axis], draw(st.sampled_from([1, 3, 17])), *shape[axis + 1 :]]
        index = program.input(around, "int64", 0, shape[axis])
        program.add(name, [source, index], [axis], exact=exact)


def scatter(draw: Draw, program: Program) -> None:
    """Writes at positions that are read from memory."""
    source = pick(draw, program, kinds="f", axes=1)
    if source is None or 0 in program.shape(source):
        return
    shape, dtype = program.shape(source), program.dtypes[source]
    axis = _axis(draw, program, source)
    if draw(st.booleans()):
        num = draw(st.sampled_from([1, 2, 9, 17]))
        index = program.input([num, 1], "int64", 0, shape[0])
        updates = program.input([num, *shape[1:]], dtype)
        how = draw(st.sampled_from(["add", "mul", "max"]))
        program.add("scatter_nd", [source, index, updates], [how])
        return
    how = draw(st.sampled_from(["update", "add", "mul", "max", "min"]))
    extent = draw(st.integers(1, shape[axis]))
    around = [*shape[:axis], extent, *shape[axis + 1 :]]
    distinct = 1 + axis if how == "update" else 0  # the order of equal places is not defined
    index = program.input(around, "int64", 0, shape[axis], distinct=distinct)
    program.add("scatter_elements", [source, index, program.input(around, dtype)], [axis, how])
