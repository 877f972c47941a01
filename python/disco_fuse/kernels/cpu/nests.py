"""Choosing the rule that writes each nest of a kernel.

Rules for a nest of several operators: `rows`. Rules for one stage, in this order: `opaque` (it is
not an expression per element), `columns`, `transpose`, `single`. A rule that declines, or fails
while it writes, is passed over; the reason goes to the log at debug level.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from tvm import tirx

from ..analysis import CHEAP_FLOPS_PER_ELEMENT, expression_flops
from ..stages import Stage, StageList
from . import columns as column_rule
from . import opaque as opaque_rule
from . import row_loops, shared
from . import rows as row_rule
from . import transpose as transpose_rule
from .context import DeclinedError, Kernel, loaded_buffers, reachable
from .operators import INJECTIVE, OUT_FUSABLE, Grouping, Operator, follows, stage_pattern
from .resolve import NotPointwiseError, Resolver, Root, same_axes, split_axes
from .scalar import ScalarGraph

logger = logging.getLogger(__name__)

State = TypeVar("State")
"""What the nests of one kernel share: `Kernel`, or `DeviceKernel` on a GPU."""

Emit = Callable[[State], list[tirx.Stmt]]


@dataclass(frozen=True, kw_only=True, eq=False)
class NestPlan(Generic[State]):
    """One nest before it is written.

    Attributes
    ----------
    names
        Its stages.
    reads
        Buffers it reads from memory.
    attempts
        Names of the rules that may write it, with what writes it, best first.
    check
        Raises for statements that are not to be taken; None takes all.
    num_nests
        How many nests of the grouping it writes in one pass.
    """

    names: tuple[str, ...]
    reads: frozenset[tirx.Buffer]
    attempts: tuple[tuple[str, Emit[State]], ...]
    check: Callable[[list[tirx.Stmt], State], object] | None = None
    num_nests: int = 1

    def emit(self, kernel: State) -> list[tirx.Stmt]:
        """The statements, see :meth:`write`."""
        return self.write(kernel)[1]

    def write(self, kernel: State) -> tuple[str, list[tirx.Stmt]]:
        """The first rule that does not fail, and its statements.

        Raises
        ------
        DeclinedError
            When every rule failed.
        """
        for rule, write in self.attempts:
            try:
                statements = write(kernel)
                if self.check is not None:
                    self.check(statements, kernel)
            except Exception as reason:  # a guarded rule: TVM raises many types
                logger.debug("%s: failed on %s: %s", rule, self.names, reason)
                continue
            logger.debug("%s: wrote %s", rule, self.names)
            return rule, statements
        raise DeclinedError(f"no rule could write {self.names}")


def plan_nests(grouping: Grouping, stages: StageList) -> list[NestPlan[Kernel]]:
    """Plans for all nests of a kernel, in execution order."""
    graph = ScalarGraph()
    inlined = inlined_stages(grouping, stages)
    apart = [_plan_nest(nest, graph, inlined) for nest in grouping.nests]
    plans: list[NestPlan[Kernel]] = []
    done = 0
    while done < len(apart):
        together = _plan_shared(grouping.nests[done:], apart[done:], graph, inlined)
        plans.extend([together] if together is not None else apart[done])
        done += together.num_nests if together is not None else 1
    return plans


def _plan_shared(
    nests: Sequence[Sequence[Operator]],
    apart: Sequence[Sequence[NestPlan[Kernel]]],
    graph: ScalarGraph,
    inlined: Mapping[tirx.Buffer, Stage],
) -> NestPlan[Kernel] | None:
    """One plan for the first nests where they can share a pass, given the plans of each."""
    try:
        count, nest = shared.plan([_roots(nest, inlined) for nest in nests], graph, inlined)
        attempt = shared.write(nest, graph)
    except DeclinedError as reason:
        logger.debug("shared: declined %s: %s", apart[0][0].names, reason)
        return None
    plans = [plan for several in apart[:count] for plan in several]
    return NestPlan(
        names=tuple(name for plan in plans for name in plan.names),
        reads=nest.reads,
        attempts=(attempt, ("apart", partial(_emit_apart, plans))),
        num_nests=count,
    )


def _emit_apart(plans: Sequence[NestPlan[Kernel]], kernel: Kernel) -> list[tirx.Stmt]:
    """Nests one after another, which read from memory what they leave each other."""
    kernel.needed.update(*(plan.reads for plan in plans))
    return [part for plan in plans for part in plan.emit(kernel)]


def inlined_stages(grouping: Grouping, stages: StageList) -> dict[tirx.Buffer, Stage]:
    """Stage that computes each buffer that is not stored, by buffer."""
    found = _unread_stages(stages)
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


def _unread_stages(stages: StageList) -> dict[tirx.Buffer, Stage]:
    """Stages that nothing needs, such as the other half of a split, by the buffer they compute."""
    found: dict[tirx.Buffer, Stage] = {}
    needed = set(stages.parameters)
    for stage in reversed(stages.stages):
        if stage.output is None or stage.output in needed:
            needed.update(stage.reads)
        else:
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


def _roots(nest: Sequence[Operator], inlined: Mapping[tirx.Buffer, Stage]) -> list[Stage]:
    """The stages of a nest that need loops."""
    return [s for op in nest for s in op.stages if s.is_opaque or s.output not in inlined]


def _plan_nest(
    nest: Sequence[Operator], graph: ScalarGraph, inlined: Mapping[tirx.Buffer, Stage]
) -> list[NestPlan[Kernel]]:
    """Plans of a nest: one if its operators can share the row loop, else one per root stage."""
    stages = _roots(nest, inlined)
    if nest[0].rows > 0:
        try:
            rows = row_rule.plan(stages, nest[0].rows, Resolver(graph=graph, inlined=inlined))
            if not _is_transposing(rows):
                return [_row_plan(rows, graph)]
        except (DeclinedError, NotPointwiseError) as reason:
            logger.debug("rows: declined %s: %s", [s.name for s in stages], reason)
    plans: list[NestPlan[Kernel]] = []
    rest = list(stages)
    while rest:
        stage = rest.pop(0)
        epilogue = [rest.pop(0)] if rest and follows(stage, rest[0]) else []
        plans.append(_plan_stage(stage, epilogue, graph, inlined))
    return plans


def _is_transposing(nest: row_rule.RowNest) -> bool:
    """Whether a nest is one elementwise root that reads along another axis than it writes."""
    if len(nest.roots) != 1:
        return False
    try:
        transpose_rule.plan(nest.roots[0])
    except DeclinedError:
        return False
    return True


def _row_plan(nest: row_rule.RowNest, graph: ScalarGraph) -> NestPlan[Kernel]:
    nodes = reachable(root.node for root in nest.roots)
    return NestPlan(
        names=tuple(root.stage.name for root in nest.roots),
        reads=frozenset(loaded_buffers(nodes)),
        attempts=(("rows", lambda kernel: row_loops.emit(nest, kernel, graph)),),
    )


def _plan_stage(
    stage: Stage,
    epilogue: Sequence[Stage],
    graph: ScalarGraph,
    inlined: Mapping[tirx.Buffer, Stage],
) -> NestPlan[Kernel]:
    """The rules that serve a stage on its own."""
    if stage.is_opaque:
        return NestPlan(
            names=(stage.name,),
            reads=frozenset((*stage.reads, *stage.writes)),
            attempts=(("opaque", lambda kernel: opaque_rule.emit(stage.statement, kernel)),),
        )
    resolver = Resolver(graph=graph, inlined=inlined)
    axes = split_axes([extent for _, extent in stage.axes], "s")
    reduce = split_axes([extent for _, extent in stage.reduce_axes], "k")
    root = resolver.root(stage, axes, reduce)
    resolver.add(root)
    others = [resolver.root(other, same_axes(other, root), ()) for other in epilogue]
    attempts: list[tuple[str, Emit[Kernel]]] = []
    for name, rule in _STAGE_RULES:
        try:
            attempts.append((name, rule(root, others, graph)))
        except DeclinedError as reason:
            logger.debug("%s: declined %s: %s", name, stage.name, reason)
    return NestPlan(
        names=(stage.name, *(other.name for other in epilogue)),
        reads=frozenset(loaded_buffers(reachable([root.node, *(o.node for o in others)]))),
        attempts=tuple(attempts),
    )


def _columns(root: Root, epilogue: Sequence[Root], _graph: ScalarGraph) -> Emit[Kernel]:
    nest = column_rule.plan(root, epilogue)
    return lambda kernel: column_rule.emit(nest, kernel)


def _transpose(root: Root, _epilogue: Sequence[Root], _graph: ScalarGraph) -> Emit[Kernel]:
    nest = transpose_rule.plan(root)
    return lambda kernel: transpose_rule.emit(nest, kernel)


def _single(root: Root, epilogue: Sequence[Root], graph: ScalarGraph) -> Emit[Kernel]:
    nest = row_rule.single(root, epilogue)
    return lambda kernel: row_loops.emit(nest, kernel, graph)


_STAGE_RULES: tuple[
    tuple[str, Callable[[Root, Sequence[Root], ScalarGraph], Emit[Kernel]]], ...
] = (
    ("columns", _columns),
    ("transpose", _transpose),
    ("single", _single),
)
