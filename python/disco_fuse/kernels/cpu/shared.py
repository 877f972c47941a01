"""Nests that go over the same elements one after another share one pass over memory.

::

    for row in range(R):                  # nests 0, 1 and 2 of the plan
        for j in vectors(n):
            y[row, j] = e = f(x[row, j])  # elementwise, an output
            acc0[j] += e                  # a bias gradient
            acc1[j] += e * x[row, j]
    out0, out1 = acc0, acc1

Which roots share a nest is fixed by the rules in `operators`, for every device: on a GPU sums over
rows of another launch must wait for it. On a CPU it costs nothing to walk through several nests at
once where they read more than a core's cache: reductions of equal shape of the same data, and
before them what they sum up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.tirx import ForKind

from ..stages import Stage, element_bytes, num_elements, shape_of
from . import column_stream, columns, row_loops
from .affine import Affine, Axis, extent_of, merged_coefficient, merged_groups
from .context import DeclinedError, Kernel, affine_values, loaded_buffers, reachable, vectorizes
from .guards import pieces, specialize
from .loops import int_imm, loop
from .operators import INJECTIVE, follows, rereads, stage_pattern
from .resolve import NotPointwiseError, Resolver, Root, same_axes, split_axes
from .rows import Pass, RowNest
from .scalar import Node, ScalarGraph
from .scope import Scope, count_uses, nested

Emit = Callable[[Kernel], list[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedNest:
    """Elementwise roots, and reductions with their elementwise followers, in the same axes."""

    stores: tuple[Root, ...]
    sums: Mapping[Root, tuple[Root, ...]]

    @property
    def walked(self) -> tuple[Root, ...]:
        """The roots with a value per element."""
        return (*self.stores, *self.sums)

    @property
    def roots(self) -> tuple[Root, ...]:
        """All roots."""
        return (*self.walked, *(root for rest in self.sums.values() for root in rest))

    @property
    def reads(self) -> frozenset[tirx.Buffer]:
        """What is read from memory."""
        return frozenset(loaded_buffers(reachable(root.node for root in self.roots)))

    @property
    def axes(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """Axes of the results, and those that are reduced."""
        first = next(iter(self.sums))
        return first.axes, first.reduce_axes


def plan(
    nests: Sequence[Sequence[Stage]], graph: ScalarGraph, inlined: Mapping[tirx.Buffer, Stage]
) -> tuple[int, SharedNest]:
    """How many of the next nests, given by their root stages, share a pass, and what it computes.

    Raises
    ------
    DeclinedError
        When fewer than two do.
    """
    begin = 1 if all(_is_injective(stage) for stage in nests[0]) else 0
    if len(nests) < 2 or not _is_sum(nests[begin]):
        raise DeclinedError("no reduction that could share a pass")
    first = nests[begin][0]
    axes = split_axes([extent for _, extent in first.axes], "s")
    reduce = split_axes([extent for _, extent in first.reduce_axes], "k")
    resolver = Resolver(graph=graph, inlined=inlined)

    def summed(one: Stage) -> Root:
        places = (_matched(one.axes, axes), _matched(one.reduce_axes, reduce))
        return resolver.root(one, *places)

    alike = list(itertools.takewhile(partial(_is_alike, first), nests[begin:]))
    stores: list[Root] = []
    if begin:
        order = _order([summed(stages[0]) for stages in alike], nests[0][0])
        stores = [_store(stage, order, resolver) for stage in nests[0]]
    sums: dict[Root, tuple[Root, ...]] = {}
    known = {root.result for root in stores}
    data = _loads(stores)
    written: set[tirx.Buffer] = set()  # known only when all rows have gone by
    for stages in alike:
        try:
            root = summed(stages[0])
        except NotPointwiseError:
            break
        resolver.add(root)
        rest = tuple(resolver.root(other, same_axes(other, root), ()) for other in stages[1:])
        loads = _loads([root])
        results = {node for node in reachable([root.node]) if node.kind == "result"}
        shares = bool(results or loads & data) or not (stores or sums)
        waits = not results <= known or _reads(_loads([root, *rest]), written)
        if not shares or waits:
            break
        data |= loads
        written.update(stage.output for stage in stages if stage.output is not None)
        sums[root] = rest
    if begin + len(sums) < 2:
        raise DeclinedError("nothing that shares a pass")
    shared = SharedNest(stores=tuple(stores), sums=sums)
    _check_size(shared)
    return begin + len(sums), shared


def _loads(roots: Sequence[Root]) -> set[Node]:
    """What the roots read from memory, with where."""
    return {node for node in reachable(root.node for root in roots) if node.kind == "load"}


def _reads(loads: set[Node], buffers: set[tirx.Buffer]) -> bool:
    return any(node.payload[0] in buffers for node in loads)


def _is_injective(stage: Stage) -> bool:
    return not stage.is_opaque and stage.combine is None and stage_pattern(stage) <= INJECTIVE


def _is_sum(stages: Sequence[Stage]) -> bool:
    """A reduction to more than one element, maybe with an elementwise follower."""
    one = stages[0]
    if one.is_opaque or one.combine is None or rereads(one):
        return False
    assert one.output is not None
    return num_elements(one.output) > 1 and (
        len(stages) == 1 or (len(stages) == 2 and follows(one, stages[1]))
    )


def _extents(axes: Sequence[tuple[tirx.Var, int]]) -> list[int]:
    return [extent for _, extent in axes if extent > 1]


def _is_alike(one: Stage, stages: Sequence[Stage]) -> bool:
    """Whether a nest is a reduction with the axes and the type of another one."""
    if not _is_sum(stages):
        return False
    assert one.output is not None
    assert stages[0].output is not None
    return (
        _extents(one.axes) == _extents(stages[0].axes)
        and _extents(one.reduce_axes) == _extents(stages[0].reduce_axes)
        and str(one.output.ty.dtype) == str(stages[0].output.ty.dtype)
    )


def _matched(
    variables: Sequence[tuple[tirx.Var, int]], axes: Sequence[Axis | None]
) -> list[Axis | None]:
    """The axes of a like stage for these variables."""
    remaining = [axis for axis in axes if axis is not None]
    return [remaining.pop(0) if extent > 1 else None for _, extent in variables]


def _order(roots: Sequence[Root], stage: Stage) -> list[Axis]:
    """The axes of reductions in the order in which they walk through the output of a stage."""
    for node in _loads(roots):
        if node.args or node.payload[0] != stage.output:
            continue
        walk: Affine = node.payload[1]
        ordered = sorted(walk.terms, key=lambda term: -term[1])
        assert stage.output is not None
        if [axis.extent for axis, _ in ordered] == [e for e in shape_of(stage.output) if e > 1]:
            return [axis for axis, _ in ordered]
    raise DeclinedError(f"what {stage.name} computes is not summed up as it is")


def _store(stage: Stage, order: Sequence[Axis], resolver: Resolver) -> Root:
    """An elementwise root in the axes of the reductions that read it."""
    assert stage.output is not None
    if [e for e in shape_of(stage.output) if e > 1] != [axis.extent for axis in order]:
        raise DeclinedError(f"{stage.name} has another shape than what is summed up")
    try:
        root = resolver.root(stage, _matched(stage.axes, order), ())
    except NotPointwiseError as reason:
        raise DeclinedError(str(reason)) from reason
    resolver.add(root)
    return root


def _check_size(shared: SharedNest) -> None:
    """`DeclinedError` for what a core's cache holds between two nests."""
    axes, reduce = shared.axes
    loads = loaded_buffers(reachable(root.node for root in shared.walked))
    size = max((element_bytes(buffer) for buffer in loads), default=0)
    if extent_of((*axes, *reduce)) * size < column_stream.MIN_BYTES:
        raise DeclinedError("small enough for a cache")


def write(shared: SharedNest, graph: ScalarGraph) -> tuple[str, Emit]:
    """The rule that writes a nest: by columns, or row by row (see `columns`)."""
    axes, reduce = shared.axes
    nodes = reachable(root.node for root in shared.walked)
    stores = [root.offset for root in shared.stores]
    values = [*affine_values(nodes), *stores]
    try:
        columns.check(next(iter(shared.sums)), nodes, stores)
        return "columns", partial(_emit_columns, shared, graph)
    except DeclinedError:
        keep = 0
        while keep < len(reduce) - 1 and any(
            merged_coefficient(value, reduce[keep:]) is None for value in values
        ):
            keep += 1
        passes = [Pass(group=reduce[keep:], outer=reduce[:keep], roots=list(shared.walked))]
        _check_stores(shared, reduce[keep:])
        rest = shared.roots[len(shared.walked) :]
        if rest:
            passes.append(Pass(group=(), roots=list(rest)))
        nest = RowNest(row_axes=axes, passes=passes)
        return "single", lambda kernel: row_loops.emit(nest, kernel, graph)


def _check_stores(shared: SharedNest, group: Sequence[Axis]) -> None:
    """`DeclinedError` unless the vectors of what is stored are contiguous."""
    if any(merged_coefficient(root.offset, group) != 1 for root in shared.stores):
        raise DeclinedError("what is stored does not lie along the vectors")


def _emit_columns(shared: SharedNest, graph: ScalarGraph, kernel: Kernel) -> list[tirx.Stmt]:
    """The statements of a nest whose results lie next to each other, on one core."""
    if kernel.machine.num_cores > 1:
        raise DeclinedError("several cores have shares of the first nest, not of the sums")
    outer, inner = columns.split(shared.axes[0], shared.roots)
    _check_stores(shared, inner)
    top = Scope(None, buffers=kernel.buffers, uses=count_uses(root.node for root in shared.roots))
    whole = (0, extent_of(inner))
    if not outer:
        cut = inner[0] if len(inner) == 1 else None
        parts = _parts(shared, graph, cut) if cut is not None else [(whole, shared)]
        streams = [_stream(part, kernel, top, inner, span) for span, part in parts]
        return [*top.statements, *(s for written in streams for s in written)]

    def around(scope: Scope) -> list[tirx.Stmt]:
        return [
            loop(last - first, partial(body, scope, first, part), ForKind.SERIAL)
            for (first, last), part in _parts(shared, graph, outer[-1])
        ]

    def body(
        scope: Scope, first: int, part: SharedNest, position: tirx.Expr
    ) -> Sequence[tirx.Stmt]:
        inside = Scope(scope, outer[-1:], position + int_imm(first))
        written = _stream(part, kernel, inside, inner, whole)
        return [*inside.statements, *written]

    loops = nested(top, [(axis,) for axis in outer[:-1]], around)
    return [*top.statements, *loops]


def _parts(
    shared: SharedNest, graph: ScalarGraph, axis: Axis
) -> list[tuple[tuple[int, int], SharedNest]]:
    """The nest for each range of an axis in which no branch changes sides."""
    spans = pieces([root.node for root in shared.walked], axis)
    if len(spans) == 1:
        return [(spans[0], shared)]
    return [(span, _specialized(shared, graph, axis, span)) for span in spans]


def _specialized(
    shared: SharedNest, graph: ScalarGraph, axis: Axis, span: tuple[int, int]
) -> SharedNest:
    """The nest for a range of an axis in which no branch changes sides."""

    def cut(root: Root) -> Root:
        return replace(root, node=specialize(graph, root.node, axis, span))

    return SharedNest(
        stores=tuple(map(cut, shared.stores)),
        sums={cut(root): rest for root, rest in shared.sums.items()},
    )


def _stream(
    shared: SharedNest,
    kernel: Kernel,
    scope: Scope,
    inner: tuple[Axis, ...],
    span: tuple[int, int],
) -> list[tirx.Stmt]:
    """A range of columns, row by row (see `column_stream`)."""
    nodes = reachable(root.node for root in shared.walked)
    if not all(vectorizes(node, inner) for node in nodes):
        raise DeclinedError("a branch between columns")
    _, reduce = shared.axes
    walks = [*affine_values(nodes), *(root.offset for root in shared.stores)]
    stream = column_stream.Stream(
        kernel=kernel,
        roots={
            root: partial(columns.finish, root, rest, inner, kernel)
            for root, rest in shared.sums.items()
        },
        stores=shared.stores,
        columns=inner,
        span=span,
        reduce=merged_groups(reduce, walks),
        lanes=kernel.machine.lanes(nodes, [root.dtype for root in shared.walked]),
    )
    return column_stream.emit(stream, scope)
