"""Operators of a fusion group, which of them are inlined, and which share a loop nest.

The stages of a fused PrimFunc are grouped back into the operators they came from (`MarkOps`
leaves the annotation that says where an operator ends; without it every stage is an operator).
Then two rules, the ones the roofline cost model assumes:

1. an operator is **inlined** into its consumers iff it is injective, its value does not leave
   the group, it has one consumer or is cheap, and no consumer is matmul-like or opaque; every
   other operator is a root;
2. a root **joins** the last nest that holds one of its producer roots iff it has rows, all its
   producers in that nest have as many, and so has every inlined operator between; otherwise it
   opens a nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from ..analysis import CHEAP_FLOPS_PER_ELEMENT, is_elementwise, rows, stage_flops
from ..stages import Stage, StageList, num_elements

INJECTIVE, REDUCE, OUT_FUSABLE, OPAQUE = 2, 3, 4, 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """Stages of one operator.

    Attributes
    ----------
    stages
        In execution order.
    pattern
        TVM's OpPatternKind.
    rows
        See `disco_fuse.kernels.analysis.KernelFacts`.
    is_cheap
        Whether recomputing it costs at most a few operations per element.
    """

    stages: tuple[Stage, ...]
    pattern: int
    rows: int
    is_cheap: bool

    @property
    def writes(self) -> frozenset[tirx.Buffer]:
        """Buffers that its stages write."""
        return frozenset(b for stage in self.stages for b in stage.writes)

    @property
    def reads(self) -> frozenset[tirx.Buffer]:
        """Buffers of others that its stages read."""
        own = self.writes
        return frozenset(b for stage in self.stages for b in stage.reads if b not in own)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouping:
    """What rules 1 and 2 decide.

    Attributes
    ----------
    inlined
        Operators without loops of their own.
    nests
        Root operators of each nest, in execution order.
    """

    inlined: tuple[Operator, ...]
    nests: tuple[tuple[Operator, ...], ...]


def operators(stages: StageList) -> tuple[Operator, ...]:
    """The operators of a group."""
    marked = any(stage.op_pattern >= 0 for stage in stages.stages)
    found: list[Operator] = []
    pending: list[Stage] = []
    for stage in stages.stages:
        pending.append(stage)
        if marked and stage.op_pattern < 0:
            continue
        found.append(_operator(tuple(pending), stage.op_pattern))
        pending = []
    found.extend(_operator((stage,), -1) for stage in pending)
    return tuple(found)


def _operator(stages: tuple[Stage, ...], pattern: int) -> Operator:
    structural = max(stage_pattern(stage) for stage in stages)
    if pattern < 0 or structural == OPAQUE:
        pattern = structural
    elements = sum(num_elements(b) for b in stages[-1].writes)
    flops = sum(stage_flops(stage) for stage in stages)
    return Operator(
        stages=stages,
        pattern=pattern,
        rows=rows(stages),
        is_cheap=flops <= CHEAP_FLOPS_PER_ELEMENT * elements,
    )


def stage_pattern(stage: Stage) -> int:
    """OpPatternKind of a single stage, from its shape."""
    if stage.is_opaque:
        return OPAQUE
    if stage.combine is not None:
        return OUT_FUSABLE if rereads(stage) else REDUCE
    if is_elementwise(stage):
        return 0
    return OPAQUE if reads_indirectly(stage) else INJECTIVE


def reads_indirectly(stage: Stage) -> bool:
    """Whether a load's index comes from memory."""
    found = False

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal found

        def inner(_: tvm.ir.TensorLoad) -> None:
            nonlocal found
            found = True

        for index in node.indices:
            tvm_ffi.structural_walk(tirx.Evaluate(index), [(tvm.ir.TensorLoad, inner)])

    tvm_ffi.structural_walk(tirx.Evaluate(stage.value), [(tvm.ir.TensorLoad, load)])
    return found


def rereads(stage: Stage) -> bool:
    """Whether a reduction reads some element again for another output (as a matmul does)."""
    needed = {var for var, extent in stage.axes if extent > 1}
    reduced = {var for var, extent in stage.reduce_axes if extent > 1}
    if not needed or not reduced:
        return False
    found = False

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal found
        used: set[tirx.Var] = set()
        for index in node.indices:
            tvm_ffi.structural_walk(tirx.Evaluate(index), [(tirx.Var, used.add)])
        if used & reduced and not needed <= used:
            found = True

    tvm_ffi.structural_walk(tirx.Evaluate(stage.value), [(tvm.ir.TensorLoad, load)])
    return found


def follows(stage: Stage, other: Stage) -> bool:
    """Whether `other` only maps the elements of the reduction `stage` (a mean's division)."""
    if stage.is_opaque or other.is_opaque or stage.combine is None or other.combine is not None:
        return False
    own, others = ([extent for _, extent in one.axes if extent > 1] for one in (stage, other))
    return own == others and stage.output in other.reads and is_elementwise(other)


def group(stages: StageList) -> Grouping:
    """Apply rules 1 and 2 (see the module's text) to a kernel.

    Raises
    ------
    ValueError
        When a statement stores nothing itself: it passes whole buffers to another function (a
        sort), and which of them are written is not known.
    """
    hidden = next((s for s in stages.stages if not s.writes), None)
    if hidden is not None:
        raise ValueError(f"a statement writes no element of a buffer: {hidden.statement}")
    ops = operators(stages)
    outputs = frozenset(stages.parameters)
    consumers: dict[Operator, list[Operator]] = {op: [] for op in ops}
    producers: dict[Operator, list[Operator]] = {op: [] for op in ops}
    for position, op in enumerate(ops):
        for earlier in ops[:position]:
            if earlier.writes & op.reads:
                consumers[earlier].append(op)
                producers[op].append(earlier)
    inlined = {op for op in ops if _is_inlined(op, consumers[op], outputs)}
    used = {op for op in ops if consumers[op] or op.writes & outputs}
    nest_of: dict[Operator, int] = {}
    nests: list[list[Operator]] = []
    for op in ops:
        if op in inlined or op not in used:
            continue
        target = _joins(op, producers, inlined, nest_of)
        if target is None:
            nests.append([])
            target = len(nests) - 1
        nest_of[op] = target
        nests[target].append(op)
    return Grouping(
        inlined=tuple(op for op in ops if op in inlined),
        nests=tuple(tuple(nest) for nest in nests),
    )


def _is_inlined(
    op: Operator, consumers: Sequence[Operator], outputs: frozenset[tirx.Buffer]
) -> bool:
    """Rule 1."""
    if op.pattern > INJECTIVE or op.writes & outputs or not consumers:
        return False
    if any(consumer.pattern in (OUT_FUSABLE, OPAQUE) for consumer in consumers):
        return False
    return len(consumers) == 1 or op.is_cheap


def _joins(
    op: Operator,
    producers: dict[Operator, list[Operator]],
    inlined: set[Operator],
    nest_of: dict[Operator, int],
) -> int | None:
    """Rule 2: the nest that root `op` joins, None to open one."""
    if op.rows == 0:
        return None
    # Producer roots seen through inlined operators, with whether the path keeps the rows.
    reached: list[tuple[Operator, bool]] = []
    todo = [(producer, True) for producer in producers[op]]
    seen: set[tuple[Operator, bool]] = set()
    while todo:
        producer, same_rows = todo.pop()
        if (producer, same_rows) in seen:
            continue
        seen.add((producer, same_rows))
        if producer in inlined:
            keeps = same_rows and producer.rows == op.rows
            todo.extend((earlier, keeps) for earlier in producers[producer])
        else:
            reached.append((producer, same_rows))
    if not reached:
        return None
    last = max(nest_of[root] for root, _ in reached)
    inside = [(root, keeps) for root, keeps in reached if nest_of[root] == last]
    return last if all(keeps and root.rows == op.rows for root, keeps in inside) else None
