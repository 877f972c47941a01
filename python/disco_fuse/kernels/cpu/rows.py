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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..stages import Stage, num_elements, shape_of
from .affine import Axis, extent_of, merged_coefficient
from .context import DeclinedError, affine_values, reachable
from .guards import pieces, specialize
from .resolve import Resolver, Root
from .scalar import ScalarGraph


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
        return extent_of(self.group)

    @property
    def reductions(self) -> list[Root]:
        """The roots that reduce the row."""
        return [root for root in self.roots if root.stage.combine is not None]


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
    DeclinedError
        When the stage has another number of rows.
    """
    assert stage.output is not None
    shape = shape_of(stage.output)
    if stage.combine is not None:
        if len(stage.reduce_axes) != 1 or num_elements(stage.output) != rows:
            raise DeclinedError(f"{stage.name} does not reduce a row")
        return tuple(e for e in shape if e > 1), stage.reduce_axes[0][1]
    if num_elements(stage.output) == rows:
        return tuple(e for e in shape if e > 1), 1
    if not shape or num_elements(stage.output) != rows * shape[-1]:
        raise DeclinedError(f"{stage.name} has no {rows} rows")
    return tuple(e for e in shape[:-1] if e > 1), shape[-1]


def plan(stages: Sequence[Stage], rows: int, resolver: Resolver) -> RowNest:
    """Resolve the root stages of a nest with `rows` rows.

    Raises
    ------
    DeclinedError
        When their rows have different shapes.
    NotPointwiseError
        When a row depends on another row.
    """
    dims, _ = row_shape(stages[0], rows)
    nest = RowNest(row_axes=tuple(Axis(f"r{k}", extent) for k, extent in enumerate(dims)))
    columns: dict[int, Axis] = {}
    for stage in stages:
        own, length = row_shape(stage, rows)
        if own != dims:
            raise DeclinedError(f"{stage.name} has rows {own}, the nest has {dims}")
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
    if only.reductions:
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
    if len(spans) == 1 or only.reductions:
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
