"""Rule `transpose`: an elementwise root that reads along another axis than it writes.

::

    for block of 16 columns j:            # 16 lines of the source stay in the first-level cache
        for a in range(A):                # the source is contiguous in a
            y[a, j:j+16] = x[j:j+16, a]   # one line written, the lines read again for the next a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import ForKind

from .affine import Affine, Axis, extent_of
from .context import DeclinedError, Kernel, reachable, vectorizes
from .loops import Lanes, int_imm, loop, vector, vector_pieces
from .resolve import Root
from .scope import Scope, count_uses

CONFLICT_ELEMENTS = 1024
"""Lines this many elements apart fall into few sets of the first-level cache."""
CONFLICT_WIDTH = 8


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

    def body(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        scope = Scope(top, nest.outer, position)
        blocks = _blocks(nest, kernel, scope)
        return [*scope.statements, *blocks]

    outer = loop(extent_of(nest.outer), body, kernel.loop_kind(extent_of(root.axes)))
    return [*top.statements, outer]


def _blocks(nest: TransposeNest, kernel: Kernel, scope: Scope) -> list[tirx.Stmt]:
    """Loops over blocks of columns, and inside over the axis that is read contiguously."""
    nodes = reachable([nest.root.node])
    lanes = 1
    if all(vectorizes(node, (nest.column,)) for node in nodes):
        lanes = kernel.machine.lanes(nodes, [nest.root.dtype])
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
