"""Rule `columns`: a reduction whose results lie next to each other in memory.

The sum over the rows of a matrix (a bias gradient) reads whole lines of memory when a block of
columns is kept in vector registers while the rows go by::

    for block of columns:
        acc[0:C] = 0                      # C vectors
        for row in range(K):
            acc[c] += x[row, block, c]    # unrolled over c
        out[block] = acc
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.tirx import ForKind

from . import column_stream
from .affine import Affine, Axis, extent_of, merged_coefficient, merged_groups
from .context import DeclinedError, Kernel, affine_values, reachable, vectorizes
from .loops import Lanes, immediate, int_imm, loop, on_stack, vector, vector_pieces
from .operators import rereads
from .resolve import Root
from .scalar import Node
from .scope import Scope, count_uses, nested

WIDE_REGISTERS, NARROW_REGISTERS = 16, 8  # accumulators of 512-bit vectors, of shorter ones
MAX_UNROLLED_NODES = 256
TILE_VECTORS = 4


Element = Callable[[Scope, tirx.Expr, tirx.Expr, Lanes], Sequence[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnNest:
    """A reduction over `reduce`, vectorised over `columns`, for each element of `outer`.

    `epilogue` holds elementwise roots on the result. `tile` is a spatial axis of which several
    positions are computed together, because they share what is read.
    """

    root: Root
    epilogue: tuple[Root, ...]
    outer: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduce: tuple[tuple[Axis, ...], ...]
    tile: Axis | None


def plan(root: Root, epilogue: Sequence[Root]) -> ColumnNest:
    """The nest of a reduction with its elementwise followers.

    Raises
    ------
    DeclinedError
        When the innermost spatial axis is not the contiguous one of what is read.
    """
    check(root, reachable([root.node]))
    outer, columns = split(root.axes, [root, *epilogue])
    tile = outer[-1] if outer and rereads(root.stage) else None
    return ColumnNest(
        root=root,
        epilogue=tuple(epilogue),
        outer=outer[:-1] if tile is not None else outer,
        columns=columns,
        reduce=merged_groups(root.reduce_axes, affine_values(reachable([root.node]))),
        tile=tile,
    )


def check(root: Root, nodes: Sequence[Node], stores: Sequence[Affine] = ()) -> None:
    """`DeclinedError` where a reduction is not contiguous along its results.

    What counts is what `nodes` read and `stores` write, apart from reads that are the same for all
    that is summed up: these happen once per result.
    """
    if root.stage.combine is None or not root.axes or not root.reduce_axes:
        raise DeclinedError("not a reduction to more than one element")
    last, inner = root.axes[-1], root.reduce_axes[-1]
    summed = [node for node in nodes if not _is_same_for_all(node, root.reduce_axes)]
    values = [*affine_values(summed), *stores]
    along = sum(1 for v in values if v.coefficient(last) == 1)
    across = sum(1 for v in values if v.coefficient(inner) == 1)
    if along == 0 or (across > along and not rereads(root.stage)):
        raise DeclinedError("what is read is not contiguous along the results")


def _is_same_for_all(node: Node, axes: Sequence[Axis]) -> bool:
    if node.kind != "load" or node.args:
        return False
    return all(node.payload[1].coefficient(axis) == 0 for axis in axes)


def split(
    axes: tuple[Axis, ...], roots: Sequence[Root]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The axes of a reduction's results as loops around it, and columns.

    As many axes are columns as are one linear walk through all that the roots read and write.
    """
    values = [*affine_values(reachable(r.node for r in roots)), *(r.offset for r in roots)]
    keep = 0
    while keep < len(axes) - 1 and any(
        merged_coefficient(value, axes[keep:]) is None for value in values
    ):
        keep += 1
    return axes[:keep], axes[keep:]


def emit(nest: ColumnNest, kernel: Kernel) -> list[tirx.Stmt]:
    """The statements of a nest."""
    uses = count_uses([nest.root.node, *(r.node for r in nest.epilogue)])
    top = Scope(None, buffers=kernel.buffers, uses=uses)
    if not nest.outer:
        blocks = _blocks(nest, kernel, top)
        return [*top.statements, *blocks]

    def body(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        scope = Scope(top, nest.outer, position)
        statements = _blocks(nest, kernel, scope)
        return [*scope.statements, *statements]

    work = extent_of((*nest.root.axes, *nest.root.reduce_axes))
    outer = loop(extent_of(nest.outer), body, kernel.loop_kind(work))
    return [*top.statements, outer]


def _blocks(nest: ColumnNest, kernel: Kernel, scope: Scope) -> list[tirx.Stmt]:
    """Loops over tiles, and in each over blocks of columns."""
    nodes = reachable([nest.root.node])
    lanes = 1
    if all(vectorizes(node, nest.columns) for node in nodes):
        lanes = kernel.machine.lanes(nodes, [nest.root.dtype])
    registers = WIDE_REGISTERS if kernel.machine.vector_bits >= 512 else NARROW_REGISTERS
    registers = max(1, min(registers, MAX_UNROLLED_NODES // max(1, len(nodes))))
    if nest.tile is None:
        if lanes > 1 and column_stream.is_worth_it(nest.root, nest.columns, nest.reduce):
            return _stream(nest, kernel, scope, lanes)
        return _columns(nest, kernel, scope, _Tile(lanes=lanes, vectors=registers))
    count = -(-extent_of(nest.columns) // lanes)
    vectors = min(TILE_VECTORS, count, registers)
    rows = max(r for r in range(1, registers // vectors + 1) if nest.tile.extent % r == 0)

    def body(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        first = position * int_imm(rows)
        tile = _Tile(lanes=lanes, vectors=vectors, rows=rows, first_row=first)
        return _columns(nest, kernel, scope, tile)

    return [loop(nest.tile.extent // rows, body, ForKind.SERIAL)]


def _stream(nest: ColumnNest, kernel: Kernel, scope: Scope, lanes: int) -> list[tirx.Stmt]:
    """All columns, row by row (see `column_stream`)."""
    stream = column_stream.Stream(
        kernel=kernel,
        roots={nest.root: partial(finish, nest.root, nest.epilogue, nest.columns, kernel)},
        columns=nest.columns,
        span=(0, extent_of(nest.columns)),
        reduce=nest.reduce,
        lanes=lanes,
    )
    return column_stream.emit(stream, scope)


def finish(
    root: Root,
    epilogue: Sequence[Root],
    columns: Sequence[Axis],
    kernel: Kernel,
    around: Scope,
    column: tirx.Expr,
    total: tirx.Expr,
    lanes: Lanes,
) -> list[tirx.Stmt]:
    """Store a result, and what the elementwise followers make of it."""
    inner = Scope(around, columns, column, lanes)
    value = inner.bind("s", total)
    inner.values[root.result] = value
    stores: list[tirx.Stmt] = []
    if root.buffer in kernel.needed:
        stores.append(kernel.store(root.buffer, inner.offset(root.offset), value))
    for other in epilogue:
        value = inner.keep("e", inner.value(other.node))
        inner.values[other.result] = value
        stores.append(kernel.store(other.buffer, inner.offset(other.offset), value))
    return [*inner.statements, *stores]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tile:
    """What is kept in registers: `rows` positions of the tile axis times `vectors` of `lanes`."""

    lanes: int
    vectors: int
    rows: int = 1
    first_row: tirx.Expr | None = None


def _columns(nest: ColumnNest, kernel: Kernel, scope: Scope, tile: _Tile) -> list[tirx.Stmt]:
    """Loops over blocks of columns."""
    statements: list[tirx.Stmt] = []
    for start, count, width in vector_pieces(extent_of(nest.columns), tile.lanes):
        full, rest = divmod(count, tile.vectors)
        size = tile.vectors * width
        piece = replace(tile, lanes=width)

        def block(
            base: tirx.Expr, start: int = start, size: int = size, piece: _Tile = piece
        ) -> list[tirx.Stmt]:
            first = base * int_imm(size) + int_imm(start)
            return _block(nest, kernel, scope, first, piece)

        if full == 1:
            statements.extend(block(int_imm(0)))
        elif full > 1:
            statements.append(loop(full, block, ForKind.SERIAL))
        if rest:
            first = int_imm(start + full * size)
            last = replace(piece, vectors=rest)
            statements.extend(_block(nest, kernel, scope, first, last))
    return statements


def _block(
    nest: ColumnNest, kernel: Kernel, scope: Scope, first: tirx.Expr, tile: _Tile
) -> list[tirx.Stmt]:
    """One block of columns from `first`, for the rows of the tile."""
    root = nest.root
    width, vectors = tile.lanes, tile.vectors
    size = tile.rows * vectors * width
    acc = tirx.decl_buffer((int_imm(size),), root.dtype, name="acc", scope="local")
    identity = immediate(root.dtype, root.identity.value)

    def each(around: Scope, body: Element) -> list[tirx.Stmt]:
        """Unrolled over the block: ``body(scope of the row, column, accumulator slot, lanes)``."""

        def row(r: tirx.Expr) -> list[tirx.Stmt]:
            base = r * int_imm(vectors * width)
            inside = around
            if nest.tile is not None and tile.first_row is not None:
                inside = Scope(around, (nest.tile,), tile.first_row + r)

            def part(c: tirx.Expr) -> list[tirx.Stmt]:
                shift = c * int_imm(width)

                def element(lane: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
                    return body(inside, first + shift + lane, base + shift + lane, lanes)

                return vector(None, width, element)

            parts = part(int_imm(0)) if vectors == 1 else [loop(vectors, part, ForKind.UNROLLED)]
            if inside is around:
                return parts
            return [*inside.statements, *parts]

        return row(int_imm(0)) if tile.rows == 1 else [loop(tile.rows, row, ForKind.UNROLLED)]

    def element(
        inside: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes
    ) -> Sequence[tirx.Stmt]:
        inner = Scope(inside, nest.columns, column, lanes)
        total = root.stage.combine(tirx.BufferLoad(acc, [slot]), inner.value(root.node))
        return [*inner.statements, tirx.BufferStore(acc, total, [slot])]

    def write(
        inside: Scope, column: tirx.Expr, slot: tirx.Expr, lanes: Lanes
    ) -> Sequence[tirx.Stmt]:
        total = tirx.BufferLoad(acc, [slot])
        return finish(root, nest.epilogue, nest.columns, kernel, inside, column, total, lanes)

    def clear(
        _inside: Scope, _column: tirx.Expr, slot: tirx.Expr, _lanes: Lanes
    ) -> Sequence[tirx.Stmt]:
        return [tirx.BufferStore(acc, identity, [slot])]

    return [
        on_stack(acc),
        *each(scope, clear),
        *nested(scope, nest.reduce, lambda around: each(around, element)),
        *each(scope, write),
    ]
