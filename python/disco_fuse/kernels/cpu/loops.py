"""Loops and vectors: the TIR statements around a loop body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind


def int_imm(value: int) -> tirx.IntImm:
    """A 64-bit index constant."""
    return tirx.IntImm("int64", value)


def immediate(dtype: str, value: Any) -> tirx.Expr:
    """A constant of a scalar type."""
    if dtype.startswith(("float", "bfloat")):
        return tirx.FloatImm(dtype, float(value))
    return tirx.IntImm(dtype, int(value))


def on_stack(buffer: tirx.Buffer) -> tirx.Stmt:
    """Allocate a small buffer of constant size on the stack.

    Without the annotation TVM takes it from its workspace pool, whose pointer escapes: LLVM then
    keeps every store to it.
    """
    return tirx.AllocBuffer(buffer, {"disable_lower_builtin": tirx.IntImm("bool", 1)})


def loop(extent: int, body: Callable[[tirx.Expr], Sequence[tirx.Stmt]], kind: int) -> tirx.Stmt:
    """``for i in range(extent): body(i)``."""
    var = tirx.Var("i", "int64")
    return tirx.For(var, int_imm(0), int_imm(extent), kind, sequence(body(var)))


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement out of several."""
    assert statements, "an empty loop body"
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


class Lanes:
    """The vector loop that a scope is the body of.

    Attributes
    ----------
    width
        Elements of the vector, 1 outside a vector loop.
    index
        The lane, ``0 .. width - 1``.
    allocations
        Statements that must come before the vector loop.
    after
        Statements that must follow it.
    """

    def __init__(self, width: int, index: tirx.Expr) -> None:
        self.width = width
        self.index = index
        self.allocations: list[tirx.Stmt] = []
        self.after: list[tirx.Stmt] = []

    def first(self, value: tirx.Expr) -> tirx.Expr:
        """The value that an expression of the lane has in lane 0."""

        def change(found: tirx.Var) -> tirx.Expr:
            return int_imm(0) if found.same_as(self.index) else found

        return tvm_ffi.structural_map(value, [(tirx.Var, change)])


def vector_pieces(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """Cut ``range(extent)`` into ``(start, count, width)``: `count` vectors of `width` elements.

    Full vectors first, then halves down to four elements, then single elements.
    """
    pieces: list[tuple[int, int, int]] = []
    start, width = 0, lanes
    while start < extent:
        if width < 4 and width != 1:
            width = 1
        count = (extent - start) // width
        if count > 0:
            pieces.append((start, count, width))
            start += count * width
        width //= 2
    return pieces


VectorBody = Callable[[tirx.Expr, Lanes], Sequence[tirx.Stmt]]


def vector(first: tirx.Expr | None, width: int, body: VectorBody) -> list[tirx.Stmt]:
    """One vector of `width` elements from `first` (None: 0): ``body(position, lanes)``."""
    if width == 1:
        lanes = Lanes(1, int_imm(0))
        statements = body(int_imm(0) if first is None else first, lanes)
        return [*lanes.allocations, *statements]
    lane = tirx.Var("lane", "int64")
    lanes = Lanes(width, lane)
    inner = sequence(body(lane if first is None else first + lane, lanes))
    vectorized = tirx.For(lane, int_imm(0), int_imm(width), ForKind.VECTORIZED, inner)
    return [*lanes.allocations, vectorized, *lanes.after]


def vectors(
    start: int, count: int, width: int, body: VectorBody, kind: int = ForKind.SERIAL
) -> list[tirx.Stmt]:
    """``count`` vectors of ``width`` elements from `start`, in a loop of the given kind."""
    if count == 1:
        return vector(int_imm(start) if start else None, width, body)

    def step(base: tirx.Expr) -> list[tirx.Stmt]:
        first = base * int_imm(width)
        return vector(first + int_imm(start) if start else first, width, body)

    return [loop(count, step, kind)]


Accumulate = Callable[[tirx.Expr, tirx.Expr, Lanes], Sequence[tirx.Stmt]]


def accumulate(length: int, lanes: int, unroll: int, body: Accumulate) -> list[tirx.Stmt]:
    """Loops over ``range(length)`` that call ``body(position, accumulator slot, lanes)``."""
    chunk = lanes * unroll
    count = length // chunk

    def chunks(base: tirx.Expr) -> list[tirx.Stmt]:
        parts: list[tirx.Stmt] = []
        for step in range(unroll):
            shift = int_imm(step * lanes) if step else None
            first = base * int_imm(chunk)
            parts.extend(vector(shift, lanes, partial(_shifted, body, first)))
        return parts

    statements: list[tirx.Stmt] = []
    if count > 1:
        statements.append(loop(count, chunks, ForKind.SERIAL))
    elif count == 1:
        statements.extend(chunks(int_imm(0)))
    done = count * chunk
    for start, repeats, width in vector_pieces(length - done, lanes):

        def piece(
            base: tirx.Expr, start: int = done + start, width: int = width
        ) -> list[tirx.Stmt]:
            first = base * int_imm(width) + int_imm(start)
            return vector(None, width, partial(_shifted, body, first))

        if repeats > 1:
            statements.append(loop(repeats, piece, ForKind.SERIAL))
        else:
            statements.extend(piece(int_imm(0)))
    return statements


def _shifted(
    body: Accumulate, first: tirx.Expr, slot: tirx.Expr, lanes: Lanes
) -> Sequence[tirx.Stmt]:
    return body(first + slot, slot, lanes)


def fold_lanes(buffer: tirx.Buffer, width: int, combine: Any) -> list[tirx.Stmt]:
    """Combine the lanes of an accumulator into its first one with a TIR class (`Add` ...)."""
    statements: list[tirx.Stmt] = []
    half = width // 2
    while half >= 1:

        def step(lane: tirx.Expr, _lanes: Lanes, half: int = half) -> list[tirx.Stmt]:
            total = combine(
                tirx.BufferLoad(buffer, [lane]), tirx.BufferLoad(buffer, [lane + int_imm(half)])
            )
            return [tirx.BufferStore(buffer, total, [lane])]

        statements.extend(vector(None, half, step))
        half //= 2
    return statements
