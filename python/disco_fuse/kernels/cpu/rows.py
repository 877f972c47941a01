"""Rule `rows`: one loop over rows for all roots of a nest.

::

    for row in range(R):                  # all operators of the nest share it
        for j in vectors(n): m = max(m, x[row, j])
        for j in vectors(n): e[j] = exp(x[row, j] - m); s += e[j]      # e is one row
        for j in vectors(n): y[row, j] = e[j] / s

Roots whose inputs are ready share a loop over the row; a value passes from one root to the next
in a register, to a later loop through a buffer of one row, and a reduction's result is a scalar.
When nothing is reduced, the row loop and the loop in the row become one as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import Stage, element_bytes, num_elements, shape_of
from .affine import Axis, merged_coefficient
from .context import Declined, Kernel, affine_values, reachable, vectorizes
from .emit import (
    Scope,
    count_uses,
    immediate,
    int_imm,
    loop,
    Lanes,
    vector,
    vector_pieces,
    vectors,
)
from .guards import pieces, specialize
from .resolve import Resolver, Root
from .scalar import ScalarGraph

MAX_ACCUMULATORS = 4
STACK_BYTES = 64 * 1024


@dataclass(kw_only=True, eq=False)
class Pass:
    """Roots that share one loop over the row (no loop when `group` is empty).

    `outer` are reduce axes around that loop, which do not fuse with it; `span` is the piece of
    the row when it was cut.
    """

    group: tuple[Axis, ...]
    outer: tuple[Axis, ...] = ()
    roots: list[Root] = field(default_factory=list)
    span: tuple[int, int] | None = None

    @property
    def length(self) -> int:
        """Elements of the row."""
        count = 1
        for axis in self.group:
            count *= axis.extent
        return count


@dataclass(kw_only=True, eq=False)
class RowNest:
    """A nest of this rule: row axes, and the passes over each row in order."""

    row_axes: tuple[Axis, ...]
    passes: list[Pass] = field(default_factory=list)

    @property
    def roots(self) -> list[Root]:
        """All roots in execution order."""
        return [root for one in self.passes for root in one.roots]


def row_shape(stage: Stage, rows: int) -> tuple[tuple[int, ...], int]:
    """Extents > 1 of the row axes of a stage and the length of its row.

    Raises
    ------
    Declined
        When the stage has another number of rows.
    """
    assert stage.output is not None
    shape = shape_of(stage.output)
    if stage.combine is not None:
        if len(stage.reduce_axes) != 1 or num_elements(stage.output) != rows:
            raise Declined(f"{stage.name} does not reduce a row")
        return tuple(e for e in shape if e > 1), stage.reduce_axes[0][1]
    if num_elements(stage.output) == rows:
        return tuple(e for e in shape if e > 1), 1
    if not shape or num_elements(stage.output) != rows * shape[-1]:
        raise Declined(f"{stage.name} has no {rows} rows")
    return tuple(e for e in shape[:-1] if e > 1), shape[-1]


def plan(stages: Sequence[Stage], rows: int, resolver: Resolver) -> RowNest:
    """Resolve the root stages of a nest with `rows` rows.

    Raises
    ------
    Declined
        When their rows have different shapes.
    NotPointwise
        When a row depends on another row.
    """
    dims, _ = row_shape(stages[0], rows)
    nest = RowNest(row_axes=tuple(Axis(f"r{k}", extent) for k, extent in enumerate(dims)))
    columns: dict[int, Axis] = {}
    for stage in stages:
        own, length = row_shape(stage, rows)
        if own != dims:
            raise Declined(f"{stage.name} has rows {own}, the nest has {dims}")
        column = columns.setdefault(length, Axis("j", length)) if length > 1 else None
        shape = shape_of(stage.output)
        remaining = list(nest.row_axes)
        axes: list[Axis | None] = []
        is_vector = stage.combine is None and length > 1
        for position, (_, extent) in enumerate(stage.axes):
            if is_vector and position == len(shape) - 1:
                axes.append(column)
            else:
                axes.append(remaining.pop(0) if extent > 1 else None)
        reduce = [column] * len(stage.reduce_axes)
        root = resolver.root(stage, axes, reduce)
        _place(nest, root, () if column is None else (column,))
        resolver.add(root)
    return nest


def _place(nest: RowNest, root: Root, group: tuple[Axis, ...]) -> None:
    """Put a root into the first pass where its inputs are ready."""
    results = {id(root.result): root for root in nest.roots}
    ready = 0
    used = {id(node) for node in reachable([root.node]) if id(node) in results}
    for position, one in enumerate(nest.passes):
        for earlier in one.roots:
            if id(earlier.result) in used:
                same = one.group == group and earlier.stage.combine is None and group != ()
                ready = max(ready, position if same else position + 1)
    for one in nest.passes[ready:]:
        if one.group == group:
            one.roots.append(root)
            return
    nest.passes.append(Pass(group=group, roots=[root]))


def single(root: Root, epilogue: Sequence[Root]) -> RowNest:
    """The nest of one root on its own, and elementwise roots on its result.

    Trailing reduce axes that are one linear walk through memory become the row.
    """
    if root.stage.combine is None:
        group = root.axes[-1:]
        return RowNest(row_axes=root.axes[:-1], passes=[Pass(group=group, roots=[root])])
    reduce = root.reduce_axes
    values = affine_values(reachable([root.node]))
    keep = 0
    while keep < len(reduce) - 1 and any(
        merged_coefficient(value, reduce[keep:]) is None for value in values
    ):
        keep += 1
    passes = [Pass(group=reduce[keep:], outer=reduce[:keep], roots=[root])]
    if epilogue:
        passes.append(Pass(group=(), roots=list(epilogue)))
    return RowNest(row_axes=root.axes, passes=passes)


def flatten(nest: RowNest) -> RowNest:
    """Move row axes into the row while every access stays one linear walk."""
    if len(nest.passes) != 1:
        return nest
    (only,) = nest.passes
    if any(root.stage.combine is not None for root in only.roots):
        return nest
    values = affine_values(reachable(root.node for root in only.roots))
    values.extend(root.offset for root in only.roots)
    for keep in range(len(nest.row_axes)):
        group = (*nest.row_axes[keep:], *only.group)
        if all(merged_coefficient(value, group) is not None for value in values):
            merged = Pass(group=group, roots=only.roots)
            return RowNest(row_axes=nest.row_axes[:keep], passes=[merged])
    return nest


def cut(nest: RowNest, graph: ScalarGraph) -> RowNest:
    """Split a row with branches on the position into pieces without them."""
    if len(nest.passes) != 1 or len(nest.passes[0].group) != 1:
        return nest
    (only,) = nest.passes
    (axis,) = only.group
    spans = pieces([root.node for root in only.roots], axis)
    if len(spans) == 1 or any(root.stage.combine is not None for root in only.roots):
        return nest
    passes = [
        Pass(
            group=only.group,
            span=span,
            roots=[replace(r, node=specialize(graph, r.node, axis, span)) for r in only.roots],
        )
        for span in spans
    ]
    return RowNest(row_axes=nest.row_axes, passes=passes)


def emit(nest: RowNest, kernel: Kernel, graph: ScalarGraph) -> list[tirx.Stmt]:
    """The statements of a nest."""
    nest = flatten(cut(nest, graph))
    roots = nest.roots
    uses = count_uses(root.node for root in roots)
    outer = Scope(None, buffers=kernel.buffers, uses=uses)
    if not nest.row_axes:
        _emit_row(nest, kernel, outer, outer)
        return outer.statements
    extent = 1
    for axis in nest.row_axes:
        extent *= axis.extent

    def body(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        scope = Scope(outer, nest.row_axes, position)
        _emit_row(nest, kernel, scope, outer)
        return scope.statements

    rows = loop(extent, body, ForKind.SERIAL)
    return [*outer.statements, rows]


def _emit_row(nest: RowNest, kernel: Kernel, scope: Scope, outer: Scope) -> None:
    """All passes over one row."""
    kept: dict[Root, tirx.Buffer | None] = {}
    for position, one in enumerate(nest.passes):
        later = [root.node for p in nest.passes[position + 1 :] for root in p.roots]
        needed_later = set(reachable(later))
        for root in one.roots:
            if root.stage.combine is None and one.group and root.result in needed_later:
                kept[root] = None if root.buffer in kernel.needed else _row_buffer(root, one, outer)
        if not one.group:
            _emit_scalars(one, kernel, scope)
        elif any(root.stage.combine is not None for root in one.roots):
            _emit_reduce(one, kernel, scope, kept)
        else:
            lanes = _lanes(one, kernel)
            first, last = one.span or (0, one.length)
            for start, count, width in vector_pieces(last - first, lanes):
                body = partial(_element, one, kernel, scope, kept)
                scope.statements.extend(vectors(first + start, count, width, body))


def _lanes(one: Pass, kernel: Kernel) -> int:
    nodes = reachable(root.node for root in one.roots)
    if not all(vectorizes(node, one.group) for node in nodes):
        return 1
    return kernel.machine.lanes(nodes, [root.dtype for root in one.roots])


def _row_buffer(root: Root, one: Pass, outer: Scope) -> tirx.Buffer:
    """A buffer of one row, allocated before the row loop."""
    size = one.length * element_bytes(root.buffer)
    buffer = tirx.decl_buffer(
        (int_imm(one.length),),
        root.dtype,
        name="row",
        scope="local" if size <= STACK_BYTES else "global",
    )
    outer.statements.append(tirx.AllocBuffer(buffer))
    return buffer


def _emit_scalars(one: Pass, kernel: Kernel, scope: Scope) -> None:
    """Roots with one element per row."""
    for root in one.roots:
        value = scope.keep("s", scope.value(root.node))
        scope.values[root.result] = value
        if root.buffer in kernel.needed:
            scope.statements.append(kernel.store(root.buffer, scope.offset(root.offset), value))


def _inner_scope(
    one: Pass,
    scope: Scope,
    at: tirx.Expr,
    lanes: Lanes,
    kept: dict[Root, tirx.Buffer | None],
    kernel: Kernel,
) -> Scope:
    """A scope for one position of the row that sees the rows kept by earlier passes."""
    inner = Scope(scope, one.group, at, lanes)
    for root, buffer in kept.items():
        if root not in one.roots and root.result in scope.uses:
            if root.result.axes <= inner.axes:
                source, offset = (
                    (kernel.buffers.view(root.buffer), inner.offset(root.offset))
                    if buffer is None
                    else (buffer, at)
                )
                inner.values[root.result] = tirx.BufferLoad(source, [offset])
    return inner


def _element(
    one: Pass,
    kernel: Kernel,
    scope: Scope,
    kept: dict[Root, tirx.Buffer | None],
    at: tirx.Expr,
    lanes: Lanes,
) -> Sequence[tirx.Stmt]:
    """All elementwise roots at one position. Every load comes before the first store."""
    inner = _inner_scope(one, scope, at, lanes, kept, kernel)
    stores: list[tirx.Stmt] = []
    for root in one.roots:
        if root.stage.combine is not None:
            continue
        value = inner.value(root.node)
        if len(one.roots) > 1:
            value = inner.keep("e", value)
        inner.values[root.result] = value
        buffer = kept.get(root)
        if buffer is not None:
            stores.append(tirx.BufferStore(buffer, value, [at]))
        if root.buffer in kernel.needed:
            stores.append(kernel.store(root.buffer, inner.offset(root.offset), value))
    return [*inner.statements, *stores]


def _emit_reduce(
    one: Pass, kernel: Kernel, scope: Scope, kept: dict[Root, tirx.Buffer | None]
) -> None:
    """One loop that accumulates every reduction of the pass in vector lanes."""
    reduced = [root for root in one.roots if root.stage.combine is not None]
    lanes = _lanes(one, kernel)
    while lanes > max(1, one.length):
        lanes //= 2
    if lanes < 4:
        lanes = 1
    unroll = MAX_ACCUMULATORS
    while unroll > 1 and (unroll * lanes > one.length or lanes == 1):
        unroll //= 2
    width = unroll * lanes
    accumulators: dict[Root, tirx.Buffer] = {}
    for root in reduced:
        buffer = tirx.decl_buffer((int_imm(width),), root.dtype, name="acc", scope="local")
        accumulators[root] = buffer
        identity = immediate(root.dtype, root.stage.identity.value)
        scope.statements.append(tirx.AllocBuffer(buffer))
        clear = partial(_fill, buffer, identity)
        scope.statements.extend(vector(None, width, clear))

    def body(
        around: Scope, at: tirx.Expr, slot: tirx.Expr, vector_lanes: Lanes
    ) -> Sequence[tirx.Stmt]:
        inner = _inner_scope(one, around, at, vector_lanes, kept, kernel)
        stores: list[tirx.Stmt] = []
        for root in one.roots:
            value = inner.value(root.node)
            if root in accumulators:
                buffer = accumulators[root]
                total = root.stage.combine(tirx.BufferLoad(buffer, [slot]), value)
                stores.append(tirx.BufferStore(buffer, total, [slot]))
                continue
            value = inner.keep("e", value)
            inner.values[root.result] = value
            row = kept.get(root)
            if row is not None:
                stores.append(tirx.BufferStore(row, value, [at]))
            if root.buffer in kernel.needed:
                stores.append(kernel.store(root.buffer, inner.offset(root.offset), value))
        return [*inner.statements, *stores]

    def outer(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        around = Scope(scope, one.outer, position)
        walk = accumulate(one.length, lanes, unroll, partial(body, around))
        return [*around.statements, *walk]

    if one.outer:
        extent = 1
        for axis in one.outer:
            extent *= axis.extent
        scope.statements.append(loop(extent, outer, ForKind.SERIAL))
    else:
        walk = accumulate(one.length, lanes, unroll, partial(body, scope))
        scope.statements.extend(walk)
    for root in reduced:
        buffer = accumulators[root]
        scope.statements.extend(fold_lanes(buffer, width, root))
        value = scope.bind("s", tirx.BufferLoad(buffer, [int_imm(0)]))
        scope.values[root.result] = value
        if root.buffer in kernel.needed:
            scope.statements.append(kernel.store(root.buffer, scope.offset(root.offset), value))


def _fill(
    buffer: tirx.Buffer, value: tirx.Expr, at: tirx.Expr, _lanes: Lanes
) -> list[tirx.Stmt]:
    return [tirx.BufferStore(buffer, value, [at])]


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
            parts.extend(vector(shift, lanes, lambda slot, v: body(first + slot, slot, v)))
        return parts

    statements: list[tirx.Stmt] = []
    if count > 1:
        statements.append(loop(count, chunks, ForKind.SERIAL))
    elif count == 1:
        statements.extend(chunks(int_imm(0)))
    done = count * chunk
    for start, pieces, width in vector_pieces(length - done, lanes):

        def piece(
            base: tirx.Expr, start: int = done + start, width: int = width
        ) -> list[tirx.Stmt]:
            first = base * int_imm(width) + int_imm(start)
            return vector(None, width, lambda slot, v: body(first + slot, slot, v))

        if pieces > 1:
            statements.append(loop(pieces, piece, ForKind.SERIAL))
        else:
            statements.extend(piece(int_imm(0)))
    return statements


def fold_lanes(buffer: tirx.Buffer, width: int, root: Root) -> list[tirx.Stmt]:
    """Combine the lanes of an accumulator into its first one."""
    statements: list[tirx.Stmt] = []
    half = width // 2
    while half >= 1:

        def step(lane: tirx.Expr, _lanes: Lanes, half: int = half) -> list[tirx.Stmt]:
            total = root.stage.combine(
                tirx.BufferLoad(buffer, [lane]), tirx.BufferLoad(buffer, [lane + int_imm(half)])
            )
            return [tirx.BufferStore(buffer, total, [lane])]

        statements.extend(vector(None, half, step))
        half //= 2
    return statements
