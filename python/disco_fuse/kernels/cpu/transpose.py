"""Rule `transpose`: an elementwise root that reads along another axis than it writes.

The source is read along its lines, as squares of vectors that are transposed in registers into a
tile, which is then written along the output's lines::

    for block of 32 j, strip of 16 a:     # strips: one vector wide
        for square of 16 j in block:
            tile[a, square] = transposed(x[square, a])
        for a in strip:
            y[a, block] = tile[a, block]

What fits a cache (below 4 MiB), has a side below 16, is no float32 or float64, or branches is read
where it lies::

    for block of 16 columns j:            # 16 lines of the source stay in the first-level cache
        for a in range(A):
            y[a, j:j+16] = x[j:j+16, a]   # one line written, the lines read again for the next a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import element_bytes, num_elements
from .affine import Affine, Axis, extent_of, merged_groups
from .context import DeclinedError, Kernel, affine_values, reachable, vectorizes
from .loops import Lanes, int_imm, loop, on_stack, vector, vector_pieces, vectors
from .resolve import Root
from .scalar import Node, is_guard
from .scope import Scope, count_uses, nested
from .squares import square_transpose

CONFLICT_ELEMENTS = 1024
"""Lines this many elements apart fall into few sets of the first-level cache."""
CONFLICT_WIDTH = 8
TILE_BYTES = 128
"""Written at a time (Zen 5: 80 MiB in 4.4 ms; with 64, 192 or 256 bytes in 7.3 ms)."""
MIN_SIDE, MAX_TILES = 16, 2
MIN_BYTES = 4 << 20
"""From here on tiles pay (Zen 5: 80 MiB 4 instead of 26 ms, 3 MiB 0.15 instead of 0.10 ms)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TransposeNest:
    """An elementwise root written along `column` and read along `across`."""

    root: Root
    outer: tuple[Axis, ...]
    across: Axis
    column: Axis
    stride: int


def plan(root: Root) -> TransposeNest:
    """The nest of a transposing root.

    Raises
    ------
    DeclinedError
        When no input is read along another axis than the output's last one.
    """
    if root.stage.combine is not None or len(root.axes) < 2:
        raise DeclinedError("not an elementwise root with two axes")
    column = root.axes[-1]
    for value in _loads(root):
        stride = abs(value.coefficient(column))
        if stride < 2:
            continue
        for axis in root.axes[:-1]:
            if value.coefficient(axis) == 1 and axis.extent > 1:
                outer = tuple(a for a in root.axes[:-1] if a is not axis)
                return TransposeNest(
                    root=root, outer=outer, across=axis, column=column, stride=stride
                )
    raise DeclinedError("every input is read along the output's last axis")


def _loads(root: Root) -> list[Affine]:
    nodes = reachable([root.node])
    return [node.payload[1] for node in nodes if node.kind == "load" and not node.args]


def emit(nest: TransposeNest, kernel: Kernel) -> list[tirx.Stmt]:
    """The statements of a nest."""
    root = nest.root
    top = Scope(None, buffers=kernel.buffers, uses=count_uses([root.node]))
    if not nest.outer:
        blocks = _blocks(nest, kernel, top)
        return [*top.statements, *blocks]

    kind = kernel.loop_kind(extent_of(root.axes))
    if kind == ForKind.PARALLEL:

        def body(position: tirx.Expr) -> Sequence[tirx.Stmt]:
            scope = Scope(top, nest.outer, position)
            blocks = _blocks(nest, kernel, scope)
            return [*scope.statements, *blocks]

        outer = [loop(extent_of(nest.outer), body, kind)]
    else:
        values = [*affine_values(reachable([root.node])), root.offset]
        groups = merged_groups(nest.outer, values)
        outer = nested(top, groups, lambda scope: _blocks(nest, kernel, scope))
    return [*top.statements, *outer]


def _blocks(nest: TransposeNest, kernel: Kernel, scope: Scope) -> list[tirx.Stmt]:
    """Loops over blocks of both axes."""
    nodes = reachable([nest.root.node])
    lanes = 1
    if all(vectorizes(node, (nest.column,)) for node in nodes):
        lanes = kernel.machine.lanes(nodes, [nest.root.dtype])
    crossed = _crossed(nest, nodes)
    is_big = num_elements(nest.root.buffer) * element_bytes(nest.root.buffer) >= MIN_BYTES
    has_sides = min(nest.across.extent, nest.column.extent) >= MIN_SIDE
    if lanes > 1 and crossed and is_big and has_sides:
        return _tiles(nest, kernel, scope, crossed, lanes)
    return _in_place(nest, kernel, scope, lanes)


def _crossed(nest: TransposeNest, nodes: Sequence[Node]) -> list[Node]:
    """Loads that run along `across`; none if there are many, or one may be behind a branch."""
    if any(is_guard(node) for node in nodes):
        return []
    found = [
        node
        for node in nodes
        if node.kind == "load"
        and not node.args
        and node.dtype in ("float32", "float64")
        and node.payload[1].coefficient(nest.across) == 1
        and abs(node.payload[1].coefficient(nest.column)) > 1
    ]
    return found if len(found) <= MAX_TILES else []


def _tiles(
    nest: TransposeNest, kernel: Kernel, scope: Scope, crossed: Sequence[Node], lanes: int
) -> list[tirx.Stmt]:
    """Loops over tiles, those along the source's lines innermost."""
    length = TILE_BYTES // element_bytes(nest.root.buffer)
    tiles = {
        node: tirx.decl_buffer((int_imm(lanes * length),), node.dtype, name="tile", scope="local")
        for node in crossed
    }

    def columns(first_j: tirx.Expr, width: int) -> list[tirx.Stmt]:
        def tile(first_a: tirx.Expr, height: int) -> list[tirx.Stmt]:
            box = _Box(
                first_a=first_a,
                height=height,
                first_j=first_j,
                width=width,
                lanes=lanes,
                length=length,
            )
            fills = [s for node in crossed for s in _fill(nest, scope, node, tiles[node], box)]
            return [*fills, *_write(nest, kernel, scope, tiles, box)]

        return _pieces(nest.across.extent, lanes, tile)

    return [*map(on_stack, tiles.values()), *_pieces(nest.column.extent, length, columns)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Box:
    """A tile's place in the axes: `height` positions of `across`, `width` of `column`.

    The tile holds up to `lanes` lines of `length` elements.
    """

    first_a: tirx.Expr
    height: int
    first_j: tirx.Expr
    width: int
    lanes: int
    length: int


def _pieces(
    extent: int, size: int, body: Callable[[tirx.Expr, int], list[tirx.Stmt]]
) -> list[tirx.Stmt]:
    """``body(first, size)`` for blocks and a rest."""
    full, rest = divmod(extent, size)
    statements: list[tirx.Stmt] = []
    if full == 1:
        statements.extend(body(int_imm(0), size))
    elif full > 1:
        statements.append(loop(full, lambda b: body(b * int_imm(size), size), ForKind.SERIAL))
    if rest:
        statements.extend(body(int_imm(full * size), rest))
    return statements


def _fill(
    nest: TransposeNest, scope: Scope, node: Node, tile: tirx.Buffer, box: _Box
) -> list[tirx.Stmt]:
    """Copy the lines of a load into its tile: squares in registers, what remains one by one."""
    source, offset = node.payload
    view, lanes = scope.buffers.view(source), box.lanes
    squares = box.width // lanes if box.height == lanes else 0

    def square(block: tirx.Expr) -> list[tirx.Stmt]:
        first_j = box.first_j + block * int_imm(lanes)
        around = [Scope(scope, (nest.column,), first_j + int_imm(k)) for k in range(lanes)]
        lines = [Scope(one, (nest.across,), box.first_a).offset(offset) for one in around]
        hoisted = [s for one in around for s in one.statements]
        turned = square_transpose(
            view,
            lines,
            tile,
            [block * int_imm(lanes) + int_imm(k * box.length) for k in range(lanes)],
        )
        return [*hoisted, *turned]

    def element(j: tirx.Expr, a: tirx.Expr) -> list[tirx.Stmt]:
        around = Scope(scope, (nest.column,), box.first_j + j)
        inner = Scope(around, (nest.across,), box.first_a + a)
        value = tirx.BufferLoad(view, [inner.offset(offset)])
        store = tirx.BufferStore(tile, value, [a * int_imm(box.length) + j])
        return [*around.statements, *inner.statements, store]

    def line(j: tirx.Expr) -> list[tirx.Stmt]:
        at = j + int_imm(squares * lanes)
        return [loop(box.height, lambda a: element(at, a), ForKind.SERIAL)]

    statements = [loop(squares, square, ForKind.SERIAL)] if squares else []
    rest = box.width - squares * lanes
    return [*statements, loop(rest, line, ForKind.SERIAL)] if rest else statements


def _write(
    nest: TransposeNest,
    kernel: Kernel,
    scope: Scope,
    tiles: Mapping[Node, tirx.Buffer],
    box: _Box,
) -> list[tirx.Stmt]:
    """The part of the output that a tile holds."""

    def line(a: tirx.Expr) -> list[tirx.Stmt]:
        around = Scope(scope, (nest.across,), box.first_a + a)

        def element(j: tirx.Expr, lanes: Lanes) -> list[tirx.Stmt]:
            inner = Scope(around, (nest.column,), box.first_j + j, lanes)
            for node, tile in tiles.items():
                at = a * int_imm(box.length) + j
                inner.values[node] = inner.bind("t", tirx.BufferLoad(tile, [at]))
            value = inner.value(nest.root.node)
            store = kernel.store(nest.root.buffer, inner.offset(nest.root.offset), value, lanes)
            return [*inner.statements, store]

        statements = [
            statement
            for start, count, width in vector_pieces(box.width, box.lanes)
            for statement in vectors(start, count, width, element)
        ]
        return [*around.statements, *statements]

    return [loop(box.height, line, ForKind.SERIAL)]


def _in_place(nest: TransposeNest, kernel: Kernel, scope: Scope, lanes: int) -> list[tirx.Stmt]:
    """Loops over blocks of columns, and inside over the axis that is read contiguously."""
    if nest.stride % CONFLICT_ELEMENTS == 0:
        lanes = min(lanes, CONFLICT_WIDTH)
    statements: list[tirx.Stmt] = []
    for start, count, width in vector_pieces(nest.column.extent, lanes):

        def block(base: tirx.Expr, start: int = start, width: int = width) -> list[tirx.Stmt]:
            first = base * int_imm(width) + int_imm(start)

            def line(across: tirx.Expr) -> list[tirx.Stmt]:
                around = Scope(scope, (nest.across,), across)

                def element(at: tirx.Expr, lanes: Lanes) -> list[tirx.Stmt]:
                    inner = Scope(around, (nest.column,), at, lanes)
                    value = inner.value(nest.root.node)
                    offset = inner.offset(nest.root.offset)
                    store = kernel.store(nest.root.buffer, offset, value)
                    return [*inner.statements, store]

                statements = vector(first, width, element)
                return [*around.statements, *statements]

            return [loop(nest.across.extent, line, ForKind.SERIAL)]

        if count == 1:
            statements.extend(block(int_imm(0)))
        else:
            statements.append(loop(count, block, ForKind.SERIAL))
    return statements
