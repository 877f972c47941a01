"""Choosing rules for a kernel and putting it together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ..analysis import CHEAP_FLOPS_PER_ELEMENT, expression_flops, is_elementwise
from ..stages import NUM_NESTS, Stage, StageList, parse
from . import columns as column_rule
from . import opaque as opaque_rule
from . import row_loops
from . import rows as row_rule
from . import transpose as transpose_rule
from .context import Declined, Kernel, Machine, loaded_buffers, reachable
from .loops import sequence
from .operators import INJECTIVE, OUT_FUSABLE, Grouping, Operator, group, stage_pattern
from .plain import plain
from .resolve import NotPointwise, Resolver, split_axes
from .scalar import ScalarGraph

logger = logging.getLogger(__name__)

IS_SCHEDULED = "tirx.is_scheduled"


@dataclass(frozen=True, kw_only=True, eq=False)
class NestPlan:
    """Loops of one nest before they are written."""

    rule: str
    reads: frozenset[tirx.Buffer]
    emit: Callable[[Kernel], list[tirx.Stmt]]


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The loops of a kernel, arranged for a CPU.

    Parameters
    ----------
    func
        A legalised operator, or a fusion group after `FuseTIR`.
    target
        An llvm target; ``mcpu`` decides the vector width, ``num-cores`` whether loops are
        split over threads.

    Returns
    -------
    tvm.tirx.PrimFunc
        The same function of the same buffers. What no rule can read is returned as it is.
    """
    machine = Machine.of(target)
    try:
        return _schedule(func, machine)
    except (Declined, ValueError, RecursionError) as reason:
        logger.debug("plain rule for the whole kernel: %s", reason)
        return plain(func, machine)


def _schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    stages = parse(func)
    grouping = group(stages)
    graph = ScalarGraph()
    inlined = _inlined_stages(grouping, stages)
    plans = [p for nest in grouping.nests for p in _plan_nest(nest, graph, inlined)]
    needed = set(stages.parameters).union(*(one.reads for one in plans))
    kernel = Kernel(machine=machine, needed=needed)
    body: list[tirx.Stmt] = []
    for one in plans:
        body.extend(one.emit(kernel))
    written = {b for stage in stages.stages for b in stage.writes}
    allocations = [
        tirx.AllocBuffer(b) for b in stages.intermediates if b in needed and b in written
    ]
    statements = [*allocations, *kernel.buffers.declarations, *body]
    scheduled = func.with_body(in_root_block(sequence(statements)))
    return scheduled.with_attrs({IS_SCHEDULED: True, NUM_NESTS: len(plans)})


def in_root_block(body: tirx.Stmt) -> tirx.Stmt:
    """`body` in the outermost block that Relax expects around every function."""
    block = s_tir.SBlock([], [], [], "root", body)
    return s_tir.SBlockRealize([], tvm.tirx.IntImm("bool", 1), block)


def _inlined_stages(grouping: Grouping, stages: StageList) -> dict[tirx.Buffer, Stage]:
    """Stage that computes each buffer that is not stored, by buffer."""
    found: dict[tirx.Buffer, Stage] = {}
    for op in grouping.inlined:
        for stage in op.stages:
            assert stage.output is not None
            found[stage.output] = stage
    for nest in grouping.nests:
        for op in nest:
            for stage in _internal(op, stages):
                assert stage.output is not None
                found[stage.output] = stage
    return found


def _internal(op: Operator, stages: StageList) -> list[Stage]:
    """Stages inside a root operator that need no loops: rule 1 within the operator."""
    outside = {b for s in stages.stages if s not in op.stages for b in s.reads}
    outside |= set(stages.parameters)
    found: list[Stage] = []
    for stage in op.stages:
        if stage.is_opaque or stage.combine is not None or stage.output in outside:
            continue
        readers = [s for s in op.stages if stage.output in s.reads]
        if not readers or any(stage_pattern(s) >= OUT_FUSABLE for s in readers):
            continue
        cheap = expression_flops(stage.value) <= CHEAP_FLOPS_PER_ELEMENT
        if stage_pattern(stage) <= INJECTIVE and (len(readers) == 1 or cheap):
            found.append(stage)
    return found


def _plan_nest(
    nest: Sequence[Operator], graph: ScalarGraph, inlined: dict[tirx.Buffer, Stage]
) -> list[NestPlan]:
    """Plans of a nest: one if its operators can share the row loop, else one per root stage."""
    stages = [s for op in nest for s in op.stages if s.is_opaque or s.output not in inlined]
    if nest[0].rows > 0:
        try:
            rows = row_rule.plan(stages, nest[0].rows, Resolver(graph=graph, inlined=inlined))
            return [_row_plan("rows", rows, graph)]
        except (Declined, NotPointwise) as reason:
            logger.debug("rows: declined %s: %s", [s.name for s in stages], reason)
    plans: list[NestPlan] = []
    rest = list(stages)
    while rest:
        stage = rest.pop(0)
        epilogue = [rest.pop(0)] if rest and _follows(stage, rest[0]) else []
        plans.append(_plan_stage(stage, epilogue, graph, inlined))
    return plans


def _follows(stage: Stage, other: Stage) -> bool:
    """Whether `other` only maps the elements of the reduction `stage` (a mean's division)."""
    if stage.is_opaque or other.is_opaque or stage.combine is None or other.combine is not None:
        return False
    same = [extent for _, extent in stage.axes] == [extent for _, extent in other.axes]
    return same and stage.output in other.reads and is_elementwise(other)


def _row_plan(rule: str, nest: row_rule.RowNest, graph: ScalarGraph) -> NestPlan:
    nodes = reachable(root.node for root in nest.roots)
    logger.debug("%s: %s", rule, [root.stage.name for root in nest.roots])
    return NestPlan(
        rule=rule,
        reads=frozenset(loaded_buffers(nodes)),
        emit=lambda kernel: row_loops.emit(nest, kernel, graph),
    )


def _plan_stage(
    stage: Stage,
    epilogue: Sequence[Stage],
    graph: ScalarGraph,
    inlined: dict[tirx.Buffer, Stage],
) -> NestPlan:
    """The first rule that serves a stage on its own."""
    if stage.is_opaque:
        return NestPlan(
            rule="opaque",
            reads=frozenset(stage.reads),
            emit=lambda kernel: opaque_rule.emit(stage.statement, kernel.machine),
        )
    resolver = Resolver(graph=graph, inlined=inlined)
    axes = split_axes([extent for _, extent in stage.axes], "s")
    reduce = split_axes([extent for _, extent in stage.reduce_axes], "k")
    root = resolver.root(stage, axes, reduce)
    resolver.add(root)
    others = [resolver.root(other, axes, ()) for other in epilogue]
    reads = frozenset(loaded_buffers(reachable([root.node, *(o.node for o in others)])))
    try:
        columns = column_rule.plan(root, others)
        logger.debug("columns: %s", stage.name)
        return NestPlan(
            rule="columns", reads=reads, emit=lambda kernel: column_rule.emit(columns, kernel)
        )
    except Declined as reason:
        logger.debug("columns: declined %s: %s", stage.name, reason)
    try:
        transposed = transpose_rule.plan(root)
        logger.debug("transpose: %s", stage.name)
        return NestPlan(
            rule="transpose",
            reads=reads,
            emit=lambda kernel: transpose_rule.emit(transposed, kernel),
        )
    except Declined as reason:
        logger.debug("transpose: declined %s: %s", stage.name, reason)
    return _row_plan("single", row_rule.single(root, others), graph)
