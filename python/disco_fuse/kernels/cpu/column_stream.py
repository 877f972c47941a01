"""Rule `columns` for more data than a cache holds: rows are read whole, in the order of memory.

A block of columns in registers (see `columns`) touches a few lines of every row, and the processor
prefetches nothing across pages. Here the accumulators of a long block of columns lie in the first
cache, and a few rows are added to them at once::

    for block of columns:                 # at most 16 KiB of accumulators
        for 512 rows:                     # a partial sum, which is then added to the total
            for rows in range(0, 512, R):
                for c in vectors(block): acc[c] += x[rows, c] + .. + x[rows + R - 1, c]
            total[block] += acc
        out[block] = total

Several reductions of the same elements share the loops; and so does what is elementwise and
summed up, as a gradient behind a relu, which is stored on the way (see `shared`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import element_bytes
from .affine import Axis, extent_of
from .context import Kernel, loaded_buffers, reachable
from .loops import Lanes, immediate, int_imm, loop, on_stack, vector_pieces, vectors
from .resolve import Root
from .scope import Scope, nested

MIN_BYTES = 1 << 20
"""Less than this is read from a core's own cache, where registers are better (Zen 5: 1 MiB)."""
BLOCK_BYTES = 16 * 1024
MAX_ROWS, MAX_NODES = 8, 128
PARTIAL_ROWS, MIN_PARTIAL_ROWS = 512, 64
"""Rows of a partial sum: one long sum of 2**20 float32 rows would be off by 1e-4."""

Finish = Callable[[Scope, tirx.Expr, tirx.Expr, Lanes], Sequence[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Reductions over `reduce` to `columns`, inside `scope`, which read the same elements.

    Attributes
    ----------
    roots
        The reductions, with what writes the results of each:
        ``finish(scope, column, value, lanes)``.
    stores
        Elementwise roots that are computed on the way, and stored if they are needed.
    span
        The half-open range of columns.
    """

    kernel: Kernel
    roots: Mapping[Root, Finish]
    stores: tuple[Root, ...] = ()
    columns: tuple[Axis, ...]
    span: tuple[int, int]
    reduce: tuple[tuple[Axis, ...], ...]
    lanes: int


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
    first, last = stream.span
    element = max(element_bytes(root.buffer) for root in stream.roots)
    size = min(last - first, BLOCK_BYTES // element // len(stream.roots))
    full, rest = divmod(last - first, size)

    def block(base: tirx.Expr) -> list[tirx.Stmt]:
        return _block(stream, scope, base * int_imm(size) + int_imm(first), size)

    statements = [loop(full, block, ForKind.SERIAL)] if full > 1 else block(int_imm(0))
    if rest:
        statements.extend(_block(stream, scope, int_imm(first + full * size), rest))
    return statements


Accumulators = Mapping[Root, tirx.Buffer]


def _accumulators(stream: Stream, size: int) -> Accumulators:
    """A buffer of `size` columns for each reduction."""
    return {
        root: tirx.decl_buffer((int_imm(size),), root.dtype, name="acc", scope="local")
        for root in stream.roots
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """`size` columns from `first`."""

    stream: Stream
    first: tirx.Expr
    size: int

    def each(self, body: Finish, around: Scope) -> list[tirx.Stmt]:
        """Vectors over the block: ``body(around, column, accumulator slot, lanes)``."""

        def at(slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
            return body(around, self.first + slot, slot, lanes)

        return [
            statement
            for start, count, width in vector_pieces(self.size, self.stream.lanes)
            for statement in vectors(start, count, width, at)
        ]

    def clear(self, buffers: Accumulators, scope: Scope) -> list[tirx.Stmt]:
        """Every accumulator is the identity of its reduction."""

        def body(_s: Scope, _c: tirx.Expr, slot: tirx.Expr, _l: Lanes) -> Sequence[tirx.Stmt]:
            return [
                tirx.BufferStore(acc, immediate(root.dtype, root.identity.value), [slot])
                for root, acc in buffers.items()
            ]

        return self.each(body, scope)

    def fold(self, parts: Accumulators, totals: Accumulators, scope: Scope) -> list[tirx.Stmt]:
        """Combine partial results with the results so far."""

        def body(_s: Scope, _c: tirx.Expr, slot: tirx.Expr, _l: Lanes) -> Sequence[tirx.Stmt]:
            return [
                tirx.BufferStore(
                    total,
                    root.stage.combine(
                        tirx.BufferLoad(total, [slot]), tirx.BufferLoad(parts[root], [slot])
                    ),
                    [slot],
                )
                for root, total in totals.items()
            ]

        return self.each(body, scope)


def _block(stream: Stream, scope: Scope, first: tirx.Expr, size: int) -> list[tirx.Stmt]:
    """`size` columns from `first`."""
    block = _Block(stream=stream, first=first, size=size)
    parts, totals = _accumulators(stream, size), _accumulators(stream, size)
    # Partial sums go over the innermost loops that have rows enough.
    split = len(stream.reduce) - 1
    while split > 0 and extent_of(_joined(stream.reduce[split:])) < MIN_PARTIAL_ROWS:
        split -= 1
    last = stream.reduce[-1]
    chunks = -(-extent_of(last) // PARTIAL_ROWS) if split == len(stream.reduce) - 1 else 1

    def partial(around: Scope, rows: Callable[[Scope], list[tirx.Stmt]]) -> list[tirx.Stmt]:
        inside = nested(around, stream.reduce[split:-1], rows)
        return [*block.clear(parts, around), *inside, *block.fold(parts, totals, around)]

    def rows(start: tirx.Expr, count: int) -> Callable[[Scope], list[tirx.Stmt]]:
        return lambda around: _rows(block, last, around, parts, start, count)

    def chunked(around: Scope) -> list[tirx.Stmt]:
        size = extent_of(last) if chunks == 1 else PARTIAL_ROWS
        full, rest = divmod(extent_of(last), size)

        def chunk(base: tirx.Expr) -> list[tirx.Stmt]:
            return partial(around, rows(base * int_imm(size), size))

        statements = [loop(full, chunk, ForKind.SERIAL)] if full > 1 else chunk(int_imm(0))
        if rest:
            statements.extend(partial(around, rows(int_imm(full * size), rest)))
        return statements

    def finish(s: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
        return [
            statement
            for root, write in stream.roots.items()
            for statement in write(s, column, tirx.BufferLoad(totals[root], [slot]), lanes)
        ]

    return [
        *map(on_stack, (*parts.values(), *totals.values())),
        *block.clear(totals, scope),
        *nested(scope, stream.reduce[:split], chunked),
        *block.each(finish, scope),
    ]


def _joined(groups: Sequence[tuple[Axis, ...]]) -> list[Axis]:
    return [axis for group in groups for axis in group]


def _rows(
    block: _Block,
    group: tuple[Axis, ...],
    around: Scope,
    parts: Accumulators,
    start: tirx.Expr,
    count: int,
) -> list[tirx.Stmt]:
    """Add `count` rows of the innermost reduce loop from `start`, several at once."""
    stream = block.stream
    nodes = len(reachable(root.node for root in (*stream.roots, *stream.stores)))
    together = max(1, min(MAX_ROWS, MAX_NODES // nodes, count))
    full, rest = divmod(count, together)

    def several(first: tirx.Expr, number: int) -> list[tirx.Stmt]:
        rows = [Scope(around, group, start + first + int_imm(r)) for r in range(number)]

        def add(_s: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
            return _add(stream, rows, parts, column, slot, lanes)

        loops = block.each(add, around)
        return [*(s for row in rows for s in row.statements), *loops]

    statements: list[tirx.Stmt] = []
    if full > 1:
        statements.append(loop(full, lambda b: several(b * int_imm(together), together), 0))
    else:
        statements.extend(several(int_imm(0), together))
    if rest:
        statements.extend(several(int_imm(full * together), rest))
    return statements


def _add(
    stream: Stream,
    rows: Sequence[Scope],
    parts: Accumulators,
    column: tirx.Expr,
    slot: tirx.Expr,
    lanes: Lanes,
) -> list[tirx.Stmt]:
    """One vector of every row: every load comes before the first store, as in `row_loops`."""
    before: list[tirx.Stmt] = []
    stores: list[tirx.Stmt] = []
    totals: dict[Root, tirx.Expr] = {
        root: tirx.BufferLoad(acc, [slot]) for root, acc in parts.items()
    }
    for row in rows:
        inner = Scope(row, stream.columns, column, lanes)
        for root in stream.stores:
            value = inner.keep("e", inner.value(root.node))
            inner.values[root.result] = value
            if root.buffer in stream.kernel.needed:
                offset = inner.offset(root.offset)
                stores.append(stream.kernel.store(root.buffer, offset, value, lanes))
        for root, total in totals.items():
            totals[root] = root.stage.combine(total, inner.value(root.node))
        before.extend(inner.statements)
    stores.extend(tirx.BufferStore(parts[root], total, [slot]) for root, total in totals.items())
    return [*before, *stores]
