"""Writing a `RowNest`: the row loop, and in it one vector loop per pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import element_bytes
from .affine import extent_of, merged_groups
from .context import Kernel, affine_values, reachable, vectorizes
from .loops import (
    Lanes,
    accumulate,
    fold_lanes,
    immediate,
    int_imm,
    loop,
    on_stack,
    vector,
    vector_pieces,
    vectors,
)
from .resolve import Root
from .rows import Pass, RowNest, cut, flatten
from .rows_ahead import loads_ahead, row_ahead
from .scalar import Node, ScalarGraph
from .scope import Scope, count_uses, nested
from .traffic import prefetch

MAX_ACCUMULATORS = 4
STACK_BYTES = 64 * 1024
"""A row kept between passes is on the stack up to this size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """One row being written.

    Attributes
    ----------
    scope
        Body of the row loop.
    allocate
        Scope that holds the buffers of one row.
    kept
        Rows that a later pass reads: the buffer of each result, or None when it is read from
        the stored output.
    kind
        Kind of the outermost vector loop, for a nest without a row loop.
    ahead
        The row loop at a later row, with the loads that each pass fetches for it.
    """

    kernel: Kernel
    scope: Scope
    allocate: Scope
    kind: int
    kept: dict[Root, tirx.Buffer | None] = field(default_factory=dict)
    ahead: tuple[Scope, Mapping[Pass, Sequence[Node]]] | None = None


def emit(nest: RowNest, kernel: Kernel, graph: ScalarGraph) -> list[tirx.Stmt]:
    """The statements of a nest."""
    nest = flatten(cut(nest, graph))
    outer = Scope(None, buffers=kernel.buffers, uses=count_uses(r.node for r in nest.roots))
    kind = kernel.loop_kind(max(_work(root) for root in nest.roots))
    if not nest.row_axes:
        _passes(nest, _Row(kernel=kernel, scope=outer, allocate=outer, kind=kind))
        return outer.statements

    if kind == ForKind.PARALLEL:

        def row(position: tirx.Expr) -> Sequence[tirx.Stmt]:
            scope = Scope(outer, nest.row_axes, position)
            serial = int(ForKind.SERIAL)
            _passes(nest, _Row(kernel=kernel, scope=scope, allocate=scope, kind=serial))
            return scope.statements

        rows = [loop(extent_of(nest.row_axes), row, kind)]
        return [*outer.statements, *rows]

    # One loop over all rows would divide to find where each one lies.
    values = affine_values(reachable(root.node for root in nest.roots))
    values.extend(root.offset for root in nest.roots)
    groups = merged_groups(nest.row_axes, values)
    fetched = loads_ahead(nest, groups[-1])

    def body(scope: Scope) -> Sequence[tirx.Stmt]:
        ahead = (row_ahead(scope, fetched), fetched) if fetched else None
        _passes(nest, _Row(kernel=kernel, scope=scope, allocate=outer, kind=kind, ahead=ahead))
        return []

    rows = nested(outer, groups, body)
    return [*outer.statements, *rows]


def _work(root: Root) -> int:
    return extent_of((*root.axes, *root.reduce_axes))


def _passes(nest: RowNest, row: _Row) -> None:
    """All passes over one row."""
    for position, one in enumerate(nest.passes):
        later = [root.node for p in nest.passes[position + 1 :] for root in p.roots]
        read_later = set(reachable(later))
        for root in one.roots:
            if root.stage.combine is None and one.group and root.result in read_later:
                stored = root.buffer in row.kernel.needed
                row.kept[root] = None if stored else _row_buffer(root, one, row.allocate)
        if not one.group:
            _scalars(one, row)
        elif one.reductions:
            _reduce(one, row)
        else:
            first, last = one.span or (0, one.length)
            body = partial(_element, one, row, row.scope, {}, int_imm(0))
            for start, count, width in vector_pieces(last - first, _lanes(one, row.kernel)):
                loops = vectors(first + start, count, width, body, row.kind)
                row.scope.statements.extend(loops)


def _lanes(one: Pass, kernel: Kernel) -> int:
    nodes = reachable(root.node for root in one.roots)
    if not all(vectorizes(node, one.group) for node in nodes):
        return 1
    return kernel.machine.lanes(nodes, [root.dtype for root in one.roots])


def _row_buffer(root: Root, one: Pass, allocate: Scope) -> tirx.Buffer:
    """A buffer of one row."""
    size = one.length * element_bytes(root.buffer)
    buffer = tirx.decl_buffer(
        (int_imm(one.length),),
        root.dtype,
        name="row",
        scope="local" if size <= STACK_BYTES else "global",
    )
    allocate.statements.append(
        on_stack(buffer) if size <= STACK_BYTES else tirx.AllocBuffer(buffer)
    )
    return buffer


def _publish(root: Root, value: tirx.Expr, row: _Row) -> None:
    """Make a scalar of the row known to later passes, and store it if it is needed."""
    scope = row.scope
    scope.values[root.result] = value
    if root.buffer in row.kernel.needed:
        store = row.kernel.store(root.buffer, scope.offset(root.offset), value)
        scope.statements.append(store)


def _scalars(one: Pass, row: _Row) -> None:
    """Roots with one element per row."""
    for root in one.roots:
        _publish(root, row.scope.keep("s", row.scope.value(root.node)), row)


def _element(
    one: Pass,
    row: _Row,
    around: Scope,
    accumulators: dict[Root, tirx.Buffer],
    slot: tirx.Expr,
    at: tirx.Expr,
    lanes: Lanes,
) -> Sequence[tirx.Stmt]:
    """All roots of a pass at one position.

    Every load comes before the first store: an output may be one of the inputs (a donated
    parameter), and then a root must not see what another root of the pass has just stored.
    """
    inner = Scope(around, one.group, at, lanes)
    if row.ahead is not None and lanes.width > 1:
        later = Scope(row.ahead[0], one.group, lanes.first(at))
        for load in row.ahead[1].get(one, ()):
            view = row.kernel.buffers.view(load.payload[0])
            lanes.allocations.append(prefetch(view, later.index(load)))
    _read_kept(one, row, inner, at)
    stores: list[tirx.Stmt] = []
    for root in one.roots:
        value = inner.value(root.node)
        if root in accumulators:
            buffer = accumulators[root]
            total = root.stage.combine(tirx.BufferLoad(buffer, [slot]), value)
            stores.append(tirx.BufferStore(buffer, total, [slot]))
            continue
        if len(one.roots) > 1:
            value = inner.keep("e", value)
        inner.values[root.result] = value
        kept = row.kept.get(root)
        if kept is not None:
            stores.append(tirx.BufferStore(kept, value, [at]))
        if root.buffer in row.kernel.needed:
            offset = inner.offset(root.offset)
            stores.append(row.kernel.store(root.buffer, offset, value, lanes))
    return [*inner.statements, *stores]


def _read_kept(one: Pass, row: _Row, inner: Scope, at: tirx.Expr) -> None:
    """Let a pass read the rows that earlier passes left."""
    for root, buffer in row.kept.items():
        if root in one.roots or not root.result.axes <= inner.axes:
            continue
        if buffer is None:
            source, offset = row.kernel.buffers.view(root.buffer), inner.offset(root.offset)
        else:
            source, offset = buffer, at
        inner.values[root.result] = tirx.BufferLoad(source, [offset])


def _reduce(one: Pass, row: _Row) -> None:
    """One loop that accumulates every reduction of the pass in vector lanes."""
    lanes = _lanes(one, row.kernel)
    while lanes > max(1, one.length):
        lanes //= 2
    lanes = lanes if lanes >= 4 else 1
    unroll = MAX_ACCUMULATORS if lanes > 1 else 1
    while unroll > 1 and unroll * lanes > one.length:
        unroll //= 2
    width = unroll * lanes
    scope = row.scope
    accumulators: dict[Root, tirx.Buffer] = {}
    for root in one.reductions:
        buffer = tirx.decl_buffer((int_imm(width),), root.dtype, name="acc", scope="local")
        accumulators[root] = buffer
        scope.statements.append(on_stack(buffer))
        scope.statements.extend(vector(None, width, partial(_clear, root, buffer)))

    def walk(around: Scope) -> list[tirx.Stmt]:
        def body(at: tirx.Expr, slot: tirx.Expr, lanes: Lanes) -> Sequence[tirx.Stmt]:
            return _element(one, row, around, accumulators, slot, at, lanes)

        return accumulate(one.length, lanes, unroll, body)

    scope.statements.extend(nested(scope, (one.outer,) if one.outer else (), walk))
    for root, buffer in accumulators.items():
        scope.statements.extend(fold_lanes(buffer, width, root.stage.combine))
        _publish(root, scope.bind("s", tirx.BufferLoad(buffer, [int_imm(0)])), row)


def _clear(root: Root, buffer: tirx.Buffer, at: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
    identity = immediate(root.dtype, root.identity.value)
    return [tirx.BufferStore(buffer, identity, [at])]
