"""Rule `teams`: rows that are reduced and read again, by a team of threads each.

::

    row 0:  x x x x x x x x x x       the team of row 0: its threads walk the row side by side,
            t0 t1 t2 t3 t0 t1 ...     fold what they hold in shared memory, and walk it again
                                      with the result; what a thread wrote it reads back itself
    row 1:  x x x x x x x x x x       the next team of the same block

Threads that are neighbours in a warp are neighbours in memory: in the row where the row is
contiguous, and else (a sum over the leading axis) in the rows, one column of the block each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from ..cpu.affine import extent_of
from ..cpu.context import affine_values, reachable
from ..cpu.loops import int_imm, on_stack, sequence
from ..cpu.resolve import Root
from ..cpu.rows import Pass, RowNest
from ..cpu.scope import count_uses
from .context import (
    WARP,
    DeviceKernel,
    DeviceScope,
    Threads,
    ceil_div,
    clamped,
    guarded,
    launch,
    power_of_two,
    within,
)

THREADS = 256
ELEMENTS_PER_THREAD = 4
UNROLL = 8
"""Rows held in registers between passes have at most so many elements a thread."""
FEW_ROWS = 256
"""Below this the device is not full with blocks of 256 threads, so that teams are larger."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a block is divided.

    Attributes
    ----------
    team
        Threads of one row, a power of two.
    rows
        Rows of one block.
    in_row
        Whether neighbours in a warp belong to one row.
    """

    team: int
    rows: int
    in_row: bool

    @property
    def threads(self) -> Threads:
        """Threads in x and y."""
        return (self.team, self.rows) if self.in_row else (self.rows, self.team)


@dataclass(kw_only=True, eq=False)
class _Team:
    """One thread of a team while its statements are written."""

    kernel: DeviceKernel
    layout: Layout
    scope: DeviceScope
    lane: tirx.Expr
    row: tirx.Expr
    active: tirx.Expr | None
    kept: dict[Root, tirx.Buffer] = field(default_factory=dict)
    shared: dict[str, tirx.Buffer] = field(default_factory=dict)


def emit(nest: RowNest, kernel: DeviceKernel) -> list[tirx.Stmt]:
    """The launch of a nest of any number of passes."""
    num_rows = extent_of(nest.row_axes)
    layout = choose_layout(nest, kernel.limits.max_threads)
    blocks = ceil_div(num_rows, layout.rows)
    covered = blocks * layout.rows

    def body(block: tirx.Expr, x: tirx.Expr, y: tirx.Expr) -> list[tirx.Stmt]:
        lane, row = (x, y) if layout.in_row else (y, x)
        position = block * int_imm(layout.rows) + row
        scope = DeviceScope(
            None,
            nest.row_axes,
            clamped(position, num_rows, covered),
            buffers=kernel.buffers,
            uses=count_uses(root.node for root in nest.roots),
        )
        team = _Team(
            kernel=kernel,
            layout=layout,
            scope=scope,
            lane=lane,
            row=row,
            active=within(position, num_rows, covered),
        )
        for number, one in enumerate(nest.passes):
            _pass(one, nest.passes[number + 1 :], team)
        return [*map(tirx.AllocBuffer, team.shared.values()), *scope.statements]

    return [launch(blocks, layout.threads, body)]


def choose_layout(nest: RowNest, max_threads: int) -> Layout:
    """Teams and rows of a block for a nest."""
    num_rows = extent_of(nest.row_axes)
    length = max(one.length for one in nest.passes)
    few = num_rows < FEW_ROWS
    if _walks_rows(nest):
        rows = WARP
        most = max_threads if num_rows < FEW_ROWS * WARP else THREADS
        team = min(power_of_two(ceil_div(length, ELEMENTS_PER_THREAD)), most // rows)
        return Layout(team=team, rows=rows, in_row=False)
    team = max(min(WARP, power_of_two(length)), power_of_two(length // ELEMENTS_PER_THREAD))
    team = min(team, max_threads if few else THREADS)
    rows = min(max(1, THREADS // team), power_of_two(num_rows))
    return Layout(team=team, rows=rows, in_row=True)


def _walks_rows(nest: RowNest) -> bool:
    """Whether memory is contiguous from row to row and not within a row, where it is most read."""
    if not nest.row_axes:
        return False
    rows, columns = set(), set()
    for one in nest.passes:
        for value in affine_values(reachable(root.node for root in one.roots)):
            if value.coefficient(nest.row_axes[-1]) == 1:
                rows.add(value.key)
            if one.group and value.coefficient(one.group[-1]) == 1:
                columns.add(value.key)
    return len(rows) > len(columns)


def _pass(one: Pass, later: Sequence[Pass], team: _Team) -> None:
    """One walk over the row by all threads of its team."""
    if not one.group:
        for root in one.roots:
            _publish(root, team.scope.keep("s", team.scope.value(root.node)), team)
        return
    steps = ceil_div(one.length, team.layout.team)
    read_later = set(reachable(root.node for p in later for root in p.roots))
    for root in one.roots:
        if root.stage.combine is None and root.result in read_later:
            team.kept[root] = tirx.decl_buffer(
                (int_imm(steps),), root.dtype, name="row", scope="local"
            )
            team.scope.statements.append(on_stack(team.kept[root]))
    sums = {
        root: tirx.decl_buffer((int_imm(1),), root.dtype, name="sum", scope="local")
        for root in one.reductions
    }
    for root, total in sums.items():
        team.scope.statements += [
            on_stack(total),
            tirx.BufferStore(total, root.identity, [int_imm(0)]),
        ]
    team.scope.statements += _walk(one, steps, sums, team)
    for root, total in sums.items():
        _fold(root, total, team)


def _walk(one: Pass, steps: int, sums: dict[Root, tirx.Buffer], team: _Team) -> list[tirx.Stmt]:
    """The loop of one thread over its elements of the row."""
    size = team.layout.team
    step = tirx.Var("step", "int64")
    position = step * int_imm(size) + team.lane if size > 1 else step
    inner = DeviceScope(team.scope, one.group, position)
    for root, buffer in team.kept.items():
        if root not in one.roots and root.axes[-len(one.group) :] == one.group:
            inner.values[root.result] = tirx.BufferLoad(buffer, [step])
    stores: list[tirx.Stmt] = []
    for root in one.roots:
        value = inner.value(root.node)
        if root in sums:
            old = tirx.BufferLoad(sums[root], [int_imm(0)])
            total = root.stage.combine(old, value)
            stores.append(tirx.BufferStore(sums[root], total, [int_imm(0)]))
            continue
        value = inner.keep("e", value)
        inner.values[root.result] = value
        if root in team.kept:
            stores.append(tirx.BufferStore(team.kept[root], value, [step]))
        if root.buffer in team.kernel.needed:
            store = team.kernel.store(root.buffer, inner.offset(root.offset), value)
            stores += guarded(team.active, [store])
    inside = within(position, one.length, steps * size)
    statements = guarded(inside, [*inner.statements, *stores])
    kind = ForKind.UNROLLED if 1 < steps <= UNROLL else ForKind.SERIAL
    return [tirx.For(step, int_imm(0), int_imm(steps), kind, sequence(statements))]


def _fold(root: Root, total: tirx.Buffer, team: _Team) -> None:
    """Combine what the threads of a team hold; afterwards each holds the result."""
    layout, statements = team.layout, team.scope.statements
    zero = int_imm(0)
    if layout.team > 1:
        shared = team.shared.setdefault(
            root.dtype,
            tirx.decl_buffer(
                (int_imm(layout.team * layout.rows),), root.dtype, name="shared", scope="shared"
            ),
        )
        stride = 1 if layout.in_row else layout.rows
        first = team.row * int_imm(layout.team if layout.in_row else 1)
        slot = first + team.lane * int_imm(stride)
        statements += [tirx.BufferStore(shared, tirx.BufferLoad(total, [zero]), [slot]), sync()]
        half = layout.team // 2
        while half:
            other = tirx.BufferLoad(shared, [slot + int_imm(half * stride)])
            both = root.stage.combine(tirx.BufferLoad(shared, [slot]), other)
            store = tirx.BufferStore(shared, both, [slot])
            statements += guarded(prim.LT(team.lane, int_imm(half)), [store])
            statements.append(sync())
            half //= 2
        result = tirx.BufferLoad(shared, [first])
        statements += [tirx.BufferStore(total, result, [zero]), sync()]
    _publish(root, tirx.BufferLoad(total, [zero]), team)


def _publish(root: Root, value: tirx.Expr, team: _Team) -> None:
    """Make a scalar of the row known to later passes; one thread stores it where needed."""
    team.scope.values[root.result] = value
    if root.buffer not in team.kernel.needed:
        return
    store = team.kernel.store(root.buffer, team.scope.offset(root.offset), value)
    first = None if team.layout.team == 1 else prim.EQ(team.lane, int_imm(0))
    team.scope.statements += guarded(team.active, guarded(first, [store]))


def sync() -> tirx.Stmt:
    """Wait for all threads of the block."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))
