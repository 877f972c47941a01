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
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import ForKind

from .affine import Axis, merged_coefficient
from .context import Declined, Kernel, affine_values, reachable, vectorizes
from .emit import Lanes, Scope, count_uses, immediate, int_imm, loop, vector, vector_pieces
from .resolve import Root

WIDE_REGISTERS, NARROW_REGISTERS = 16, 8  # accumulators of 512-bit vectors, of shorter ones
MAX_UNROLLED_NODES = 256


Element = Callable[[tirx.Expr, tirx.Expr, Lanes], Sequence[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnNest:
    """A reduction over `reduce`, vectorised over `columns`, for each element of `outer`.

    `epilogue` holds elementwise roots on the result.
    """

    root: Root
    epilogue: tuple[Root, ...]
    outer: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduce: tuple[Axis, ...]


def plan(root: Root, epilogue: Sequence[Root]) -> ColumnNest:
    """The nest of a reduction with its elementwise followers.

    Raises
    ------
    Declined
        When the innermost spatial axis is not the contiguous one of what is read.
    """
    if root.stage.combine is None or not root.axes or not root.reduce_axes:
        raise Declined("not a reduction to more than one element")
    values = affine_values(reachable([root.node]))
    last, inner = root.axes[-1], root.reduce_axes[-1]
    along = sum(1 for v in values if v.coefficient(last) == 1)
    across = sum(1 for v in values if v.coefficient(inner) == 1)
    if along == 0 or across > along:
        raise Declined("what is read is not contiguous along the results")
    everything = [*values, root.offset, *(r.offset for r in epilogue)]
    everything.extend(affine_values(reachable(r.node for r in epilogue)))
    for keep in range(len(root.axes)):
        columns = root.axes[keep:]
        if all(merged_coefficient(value, columns) is not None for value in everything):
            return ColumnNest(
                root=root,
                epilogue=tuple(epilogue),
                outer=root.axes[:keep],
                columns=columns,
                reduce=root.reduce_axes,
            )
    raise AssertionError("a single axis always merges")


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

    outer = loop(_product(nest.outer), body, ForKind.SERIAL)
    return [*top.statements, outer]


def _product(axes: Sequence[Axis]) -> int:
    count = 1
    for axis in axes:
        count *= axis.extent
    return count


def _blocks(nest: ColumnNest, kernel: Kernel, scope: Scope) -> list[tirx.Stmt]:
    """Loops over blocks of columns."""
    nodes = reachable([nest.root.node])
    lanes = 1
    if all(vectorizes(node, nest.columns) for node in nodes):
        lanes = kernel.machine.lanes(nodes, [nest.root.dtype])
    registers = WIDE_REGISTERS if kernel.machine.vector_bits >= 512 else NARROW_REGISTERS
    registers = max(1, min(registers, MAX_UNROLLED_NODES // max(1, len(nodes))))
    statements: list[tirx.Stmt] = []
    for start, count, width in vector_pieces(_product(nest.columns), lanes):
        full, rest = divmod(count, registers)
        size = registers * width

        def block(base: tirx.Expr, start: int = start, size: int = size, width: int = width):
            first = base * int_imm(size) + int_imm(start)
            return _block(nest, kernel, scope, first, registers, width)

        if full == 1:
            statements.extend(block(int_imm(0)))
        elif full > 1:
            statements.append(loop(full, block, ForKind.SERIAL))
        if rest:
            first = int_imm(start + full * size)
            statements.extend(_block(nest, kernel, scope, first, rest, width))
    return statements


def _block(
    nest: ColumnNest, kernel: Kernel, scope: Scope, first: tirx.Expr, vectors: int, width: int
) -> list[tirx.Stmt]:
    """One block of ``vectors * width`` columns from `first`."""
    root = nest.root
    acc = tirx.decl_buffer((int_imm(vectors * width),), root.dtype, name="acc", scope="local")
    identity = immediate(root.dtype, root.stage.identity.value)

    def each(body: Element) -> list[tirx.Stmt]:
        """Unrolled over the vectors of the block: ``body(column, accumulator slot, lanes)``."""

        def part(c: tirx.Expr) -> list[tirx.Stmt]:
            shift = c * int_imm(width)
            return vector(shift, width, lambda slot, v: body(first + slot, slot, v))

        if vectors == 1:
            return vector(None, width, lambda slot, v: body(first + slot, slot, v))
        return [loop(vectors, part, ForKind.UNROLLED)]

    def row(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        rows = Scope(scope, nest.reduce, position)

        def element(column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
            inner = Scope(rows, nest.columns, column, lanes)
            total = root.stage.combine(tirx.BufferLoad(acc, [slot]), inner.value(root.node))
            return [*inner.statements, tirx.BufferStore(acc, total, [slot])]

        statements = each(element)
        return [*rows.statements, *statements]

    def finish(column: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
        inner = Scope(scope, nest.columns, column, lanes)
        value = inner.bind("s", tirx.BufferLoad(acc, [slot]))
        inner.values[root.result] = value
        stores: list[tirx.Stmt] = []
        if root.buffer in kernel.needed:
            stores.append(kernel.store(root.buffer, inner.offset(root.offset), value))
        for other in nest.epilogue:
            value = inner.keep("e", inner.value(other.node))
            inner.values[other.result] = value
            stores.append(kernel.store(other.buffer, inner.offset(other.offset), value))
        return [*inner.statements, *stores]

    return [
        tirx.AllocBuffer(acc),
        *each(lambda _column, slot, _lanes: [tirx.BufferStore(acc, identity, [slot])]),
        loop(_product(nest.reduce), row, ForKind.SERIAL),
        *each(finish),
    ]
