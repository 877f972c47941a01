"""Rule `columns` for more data than a cache holds: rows are read whole, in the order of memory.

A block of columns in registers (see `columns`) touches a few lines of every row, and the processor
prefetches nothing across pages. Here the accumulators of a long block of columns lie in the first
cache, and a few rows are added to them at once::

    for block of columns:                 # at most 16 KiB of accumulators
        acc[block] = 0
        for rows in range(0, K, R):
            for c in vectors(block): acc[c] += x[rows, c] + .. + x[rows + R - 1, c]
        out[block] = acc
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import element_bytes
from .affine import Axis, extent_of
from .context import loaded_buffers, reachable
from .loops import Lanes, immediate, int_imm, loop, on_stack, vector_pieces, vectors
from .resolve import Root
from .scope import Scope, nested

MIN_BYTES = 1 << 20
"""Less than this is read from a core's own cache, where registers are better (Zen 5: 1 MiB)."""
BLOCK_BYTES = 16 * 1024
MAX_ROWS, MAX_NODES = 8, 128

Finish = Callable[[Scope, tirx.Expr, tirx.Expr, Lanes], Sequence[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """A reduction over `reduce` to `columns`, inside `scope`.

    `finish` writes the results: ``finish(scope, column, accumulator slot, lanes)``.
    """

    root: Root
    columns: tuple[Axis, ...]
    reduce: tuple[tuple[Axis, ...], ...]
    lanes: int
    finish: Finish


def is_worth_it(root: Root, columns: Sequence[Axis], reduce: Sequence[tuple[Axis, ...]]) -> bool:
    """Whether a reduction reads more than a core's cache, in several lines of each row."""
    loaded = loaded_buffers(reachable([root.node]))
    if not loaded:
        return False
    size = max(element_bytes(buffer) for buffer in loaded)
    trips = extent_of(columns) * extent_of([axis for group in reduce for axis in group])
    return trips * size >= MIN_BYTES


def emit(stream: Stream, scope: Scope) -> list[tirx.Stmt]:
    """The statements for all columns."""
    total = extent_of(stream.columns)
    size = min(total, BLOCK_BYTES // element_bytes(stream.root.buffer))
    full, rest = divmod(total, size)

    def block(base: tirx.Expr) -> list[tirx.Stmt]:
        return _block(stream, scope, base * int_imm(size), size)

    statements = [loop(full, block, ForKind.SERIAL)] if full > 1 else block(int_imm(0))
    if rest:
        statements.extend(_block(stream, scope, int_imm(full * size), rest))
    return statements


def _block(stream: Stream, scope: Scope, first: tirx.Expr, size: int) -> list[tirx.Stmt]:
    """`size` columns from `first`."""
    root = stream.root
    acc = tirx.decl_buffer((int_imm(size),), root.dtype, name="acc", scope="local")
    identity = immediate(root.dtype, root.identity.value)

    def each(body: Finish, around: Scope) -> list[tirx.Stmt]:
        statements: list[tirx.Stmt] = []
        for start, count, width in vector_pieces(size, stream.lanes):

            def at(slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
                return body(around, first + slot, slot, lanes)

            statements.extend(vectors(start, count, width, at))
        return statements

    def clear(_s: Scope, _c: tirx.Expr, slot: tirx.Expr, _l: Lanes) -> Sequence[tirx.Stmt]:
        return [tirx.BufferStore(acc, identity, [slot])]

    def rows(around: Scope) -> list[tirx.Stmt]:
        return _rows(stream, stream.reduce[-1], around, acc, each)

    def finish(s: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
        value = tirx.BufferLoad(acc, [slot])
        return stream.finish(s, column, value, lanes)

    return [
        on_stack(acc),
        *each(clear, scope),
        *nested(scope, stream.reduce[:-1], rows),
        *each(finish, scope),
    ]


def _rows(
    stream: Stream,
    group: tuple[Axis, ...],
    around: Scope,
    acc: tirx.Buffer,
    each: Callable[[Finish, Scope], list[tirx.Stmt]],
) -> list[tirx.Stmt]:
    """Add the rows of the innermost reduce loop, several at once."""
    nodes = len(reachable([stream.root.node]))
    together = max(1, min(MAX_ROWS, MAX_NODES // nodes, extent_of(group)))
    full, rest = divmod(extent_of(group), together)

    def several(first: tirx.Expr, count: int) -> list[tirx.Stmt]:
        rows = [Scope(around, group, first + int_imm(r)) for r in range(count)]

        def add(_s: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
            before: list[tirx.Stmt] = []
            total: tirx.Expr = tirx.BufferLoad(acc, [slot])
            for row in rows:
                inner = Scope(row, stream.columns, column, lanes)
                value = inner.value(stream.root.node)
                total = stream.root.stage.combine(total, value)
                before.extend(inner.statements)
            return [*before, tirx.BufferStore(acc, total, [slot])]

        loops = each(add, around)
        return [*(s for row in rows for s in row.statements), *loops]

    statements: list[tirx.Stmt] = []
    if full > 1:
        statements.append(loop(full, lambda b: several(b * int_imm(together), together), 0))
    else:
        statements.extend(several(int_imm(0), together))
    if rest:
        statements.extend(several(int_imm(full * together), rest))
    return statements
