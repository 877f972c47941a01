"""Transposing a square of vectors in registers.

The lines of the square are interleaved with those half a square below, log2(n) times::

    0 a    0 1 2 3    0 8 1 9      0 4 8 c
    line   4 5 6 7    2 a 3 b  ->  1 5 9 d      (4 by 4: two times)
           8 9 a b    4 c 5 d      2 6 a e
           c d e f    6 e 7 f      3 7 b f
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from .loops import int_imm, on_stack


def square_transpose(
    source: tirx.Buffer,
    lines: Sequence[tirx.Expr],
    sink: tirx.Buffer,
    columns: Sequence[tirx.Expr],
) -> list[tirx.Stmt]:
    """``sink[columns[k] + i] = source[lines[i] + k]`` for all i, k below the number of lines.

    Parameters
    ----------
    lines, columns : sequence of tirx.Expr
        As many of each: a power of two, the elements of a vector.
    """
    size = len(lines)
    values: list[tirx.Expr] = [_vector(source, line, size) for line in lines]
    halves = [
        [index for k in range(start, start + size // 2) for index in (k, k + size)]
        for start in (0, size // 2)
    ]
    indices = [[tirx.IntImm("int32", index) for index in half] for half in halves]
    statements: list[tirx.Stmt] = []
    for _ in range(size.bit_length() - 1):
        values = _kept(values, str(source.ty.dtype), statements)
        pairs = [(values[k], values[k + size // 2]) for k in range(size // 2)]
        values = [tirx.Shuffle(list(pair), half) for pair in pairs for half in indices]
    stores = [
        tirx.BufferStore(sink, value, [_ramp(column, size)])
        for value, column in zip(values, columns, strict=True)
    ]
    return [*statements, *stores]


def _kept(values: Sequence[tirx.Expr], dtype: str, statements: list[tirx.Stmt]) -> list[tirx.Expr]:
    """The vectors in local buffers, which LLVM turns into registers (see `Scope.keep`)."""
    size = len(values)
    kept: list[tirx.Expr] = []
    for value in values:
        buffer = tirx.decl_buffer((int_imm(size),), dtype, name="part", scope="local")
        statements.extend((on_stack(buffer), tirx.BufferStore(buffer, value, [_ramp(0, size)])))
        kept.append(_vector(buffer, 0, size))
    return kept


def _vector(buffer: tirx.Buffer, first: tirx.Expr | int, size: int) -> tirx.Expr:
    return tirx.BufferLoad(buffer, [_ramp(first, size)])


def _ramp(first: tirx.Expr | int, size: int) -> tirx.Expr:
    start = int_imm(first) if isinstance(first, int) else first
    return tirx.Ramp(start, int_imm(1), size)
