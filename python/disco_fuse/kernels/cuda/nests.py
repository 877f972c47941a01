"""Choosing the rule that writes each nest of a kernel; every nest becomes one launch.

Rules for a nest of several operators: `teams`, or `pointwise` where nothing is reduced. Rules for
one stage: `opaque` (it is not an expression per element), `matmul`, `teams`, `pointwise`. A rule
that declines, raises, or writes something that `verify` refuses is passed over; the reason goes to
the log at debug level.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from tvm import tirx

from ..cpu import rows as row_rule
from ..cpu.context import DeclinedError, loaded_buffers, reachable
from ..cpu.nests import Emit, NestPlan, inlined_stages
from ..cpu.operators import INJECTIVE, Grouping, Operator, follows, stage_pattern
from ..cpu.resolve import NotPointwiseError, Resolver, Root, same_axes, split_axes
from ..cpu.rows import Pass, RowNest
from ..cpu.scalar import ScalarGraph
from ..stages import Stage, StageList
from . import matmul, opaque, pointwise, teams
from .context import DeviceKernel
from .verify import verify

logger = logging.getLogger(__name__)

Write = Emit[DeviceKernel]
LaunchPlan = NestPlan[DeviceKernel]


def plan_launches(grouping: Grouping, stages: StageList) -> list[LaunchPlan]:
    """Plans for all nests of a kernel, in execution order."""
    graph = ScalarGraph()
    inlined = inlined_stages(grouping, stages) | _paddings(grouping, stages)
    return [plan for nest in grouping.nests for plan in _plan_nest(nest, graph, inlined)]


def _paddings(grouping: Grouping, stages: StageList) -> dict[tirx.Buffer, Stage]:
    """Stages within an operator that one other stage of it reads, as a convolution its padding.

    The CPU rules store what a matmul reads, for speed. Here a tile is copied to shared memory once
    anyway, and comparing positions on the way costs less than a launch and a round trip.
    """
    parameters = frozenset(stages.parameters)
    found: dict[tirx.Buffer, Stage] = {}
    for op in (op for nest in grouping.nests for op in nest):
        for stage in op.stages:
            readers = [other for other in stages.stages if stage.output in other.reads]
            local = len(readers) == 1 and readers[0] in op.stages and not readers[0].is_opaque
            if stage.is_opaque or stage.output in parameters or not local:
                continue
            if stage.combine is None and stage_pattern(stage) <= INJECTIVE:
                assert stage.output is not None
                found[stage.output] = stage
    return found


def _plan_nest(
    nest: Sequence[Operator], graph: ScalarGraph, inlined: Mapping[tirx.Buffer, Stage]
) -> list[LaunchPlan]:
    """Plans of a nest: one if its operators can share rows, else one per root stage."""
    stages = [s for op in nest for s in op.stages if s.is_opaque or s.output not in inlined]
    if nest[0].rows > 0:
        try:
            rows = row_rule.plan(stages, nest[0].rows, Resolver(graph=graph, inlined=inlined))
            return [_nest_plan(rows)]
        except (DeclinedError, NotPointwiseError) as reason:
            logger.debug("rows: declined %s: %s", [s.name for s in stages], reason)
    plans: list[LaunchPlan] = []
    rest = list(stages)
    while rest:
        stage = rest.pop(0)
        epilogue = [rest.pop(0)] if rest and follows(stage, rest[0]) else []
        plans.append(_plan_stage(stage, epilogue, graph, inlined))
    return plans


def _nest_plan(nest: RowNest, *before: tuple[str, Write]) -> LaunchPlan:
    """Rules for a nest of rows, after those of ``before``."""
    nodes = reachable(root.node for root in nest.roots)
    return LaunchPlan(
        names=tuple(root.stage.name for root in nest.roots),
        reads=frozenset(loaded_buffers(nodes)),
        attempts=(
            *before,
            ("pointwise", partial(pointwise.emit, nest)),
            ("teams", partial(teams.emit, nest)),
        ),
        check=_check,
    )


def _check(statements: Sequence[tirx.Stmt], kernel: DeviceKernel) -> None:
    """RefusedError for what the device cannot run."""
    verify(statements, kernel.limits)


def _plan_stage(
    stage: Stage,
    epilogue: Sequence[Stage],
    graph: ScalarGraph,
    inlined: Mapping[tirx.Buffer, Stage],
) -> LaunchPlan:
    """The rules that serve a stage on its own."""
    if stage.is_opaque:
        return LaunchPlan(
            names=(stage.name,),
            reads=frozenset((*stage.reads, *stage.writes)),
            attempts=(("opaque", partial(opaque.emit, stage.statement)),),
            check=_check,
        )
    resolver = Resolver(graph=graph, inlined=inlined)
    axes = split_axes([extent for _, extent in stage.axes], "s")
    reduce = split_axes([extent for _, extent in stage.reduce_axes], "k")
    root = resolver.root(stage, axes, reduce)
    resolver.add(root)
    others = [resolver.root(other, same_axes(other, root), ()) for other in epilogue]
    if stage.combine is None:
        group = root.axes[-1:]
        return _nest_plan(
            RowNest(row_axes=root.axes[:-1], passes=[Pass(group=group, roots=[root])])
        )
    passes = [Pass(group=root.reduce_axes, roots=[root])]
    if others:
        passes.append(Pass(group=(), roots=others))
    nest = RowNest(row_axes=root.axes, passes=passes)
    return _nest_plan(nest, *_products(root, others))


def _products(root: Root, epilogue: Sequence[Root]) -> list[tuple[str, Write]]:
    """The rule `matmul` where it serves a root."""
    if epilogue:
        return []
    try:
        return [("matmul", partial(matmul.emit, matmul.plan(root)))]
    except DeclinedError as reason:
        logger.debug("matmul: declined %s: %s", root.stage.name, reason)
        return []
