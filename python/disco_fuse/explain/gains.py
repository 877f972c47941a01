"""What the decisions of a strategy gain: each is undone alone, and the step simulated again.

fusion      [a b c]   take out a      [a] [b c]       what the step loses is what the
bucket      {g h i}   split before h  {g} {h i}       decision gains
            {g} {h}   merge           {g h}           keeping them apart is a decision too
order       u first   its own urgency
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from disco_fuse.config import UNCAPPED, FusionLimits
from disco_fuse.explain.effects import EditEffect, edit_effects
from disco_fuse.explain.names import contents, op_name, op_text, unit_name, unit_text
from disco_fuse.graph import OpGraph
from disco_fuse.strategy import Edit, Unit, replay
from disco_fuse.tuning.choice import Choice

# So that a progress bar moves and Ctrl-C is heard on graphs of ten thousands of ops.
_EDITS_PER_CALL = 500
# Of a step in milliseconds with three digits this is nothing.
_LEAST_US = 0.5
_LIMITS = FusionLimits(
    max_group_ops=UNCAPPED.max_group_ops,
    max_group_args=UNCAPPED.max_group_args,
    bucket_neighbours="production-order",
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision that can be undone.

    Attributes
    ----------
    kind : str
        "fusion", "bucket" or "order".
    what : str
        In words.
    like : str
        Equal for decisions that do the same elsewhere; of cuts the bucket.
    undo : Edit
    gain_us : float
        By how much the list-scheduled step gets longer without it; below 0 where it hurts.
    """

    kind: str
    what: str
    like: str
    undo: Edit
    gain_us: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Decisions of one kind that do the same in several places and gain the same each.

    Attributes
    ----------
    decisions : tuple of Decision
    """

    decisions: tuple[Decision, ...]

    @property
    def sum_us(self) -> float:
        """What they gain, each undone alone, added up."""
        return sum(decision.gain_us for decision in self.decisions)

    def to_json(self) -> dict[str, Any]:
        """For JSON; ``undo`` has an edit for each of the decisions."""
        first = self.decisions[0]
        return {
            "kind": first.kind,
            "what": first.what,
            "times": len(self.decisions),
            "gain_us": first.gain_us,
            "sum_us": self.sum_us,
            "undo": [asdict(decision.undo) for decision in self.decisions],
        }


@dataclass(frozen=True, kw_only=True)
class Gains:
    """All decisions of a strategy.

    Attributes
    ----------
    decisions : tuple of Decision
        Those that can be undone alone, by descending gain.
    num_fixed : int
        Those that cannot, because a rule forbids what would be left.
    """

    decisions: tuple[Decision, ...]
    num_fixed: int

    def best(self, kind: str, number: int) -> list[Finding]:
        """The ``number`` findings of a kind that gain most; none that gains less than 0.5 us.

        Of a bucket only the cut that costs most counts: all cuts of it undo one decision.
        """
        found: dict[tuple[str, int], list[Decision]] = {}
        for decision in self.decisions:
            if decision.kind != kind or decision.gain_us < _LEAST_US:
                continue
            if kind == "bucket":
                found.setdefault((decision.like, 0), [decision])
            else:
                key = (decision.like, round(decision.gain_us * 1e3))
                found.setdefault(key, []).append(decision)
        findings = [Finding(decisions=tuple(members)) for members in found.values()]
        return sorted(findings, key=lambda finding: -finding.sum_us)[:number]


def gains(choice: Choice, progress: Callable[[int, int], None] | None = None) -> Gains:
    """Undo every decision of ``choice`` alone.

    Parameters
    ----------
    progress : callable, optional
        Called with the number of decisions undone so far and of all.
    """
    graph, strategy = choice.problem.graph, choice.strategy
    units = strategy.units(graph)
    undos = [
        *_undo_fusions(units),
        *_undo_buckets(graph, units),
        *(Edit(kind="reorder", producer=op, consumer=-1) for op, _ in strategy.priorities),
    ]
    effects: list[EditEffect] = []
    for begin in range(0, len(undos), _EDITS_PER_CALL):
        effects += edit_effects(choice, undos[begin : begin + _EDITS_PER_CALL], _LIMITS)
        if progress is not None:
            progress(len(effects), len(undos))
    home = strategy.group_of.tolist()
    of_op = {op: unit for unit in units for op in unit.ops if home[op] == unit.id}
    legal = [effect for effect in effects if not effect.reason]
    legal.sort(key=lambda e: (-e.change_us, e.edit.kind, e.edit.consumer, e.edit.producer))
    distinct = [
        effect
        for before, effect in zip([None, *legal], legal, strict=False)
        if before is None or not _same_undo(choice, before, effect)
    ]
    return Gains(
        decisions=tuple(_decision(graph, of_op, effect) for effect in distinct),
        num_fixed=len(effects) - len(legal),
    )


def _undo_fusions(units: Sequence[Unit]) -> list[Edit]:
    """Every op of a kernel leaves it; of two ops it does not matter which one."""
    return [
        Edit(kind="take-out", producer=op, consumer=unit.id)
        for unit in units
        if unit.kind == "kernel" and len(unit.ops) > 1
        for op in (unit.ops[:1] if len(unit.ops) == 2 else unit.ops)
    ]


def _undo_buckets(graph: OpGraph, units: Sequence[Unit]) -> list[Edit]:
    """Every bucket is cut between all of its gradients, and joined with the one sent after it."""
    edits = []
    made = {edge.consumer: edge.producer for edge in graph.edges if not edge.order_only}
    buckets = [unit for unit in units if unit.kind == "bucket"]
    for bucket in buckets:
        members = sorted(bucket.ops, key=lambda op: (made[op], op))
        edits += [
            Edit(kind="split-bucket", producer=first, consumer=second)
            for first, second in pairwise(members)
        ]
    edits += [
        Edit(kind="merge-buckets", producer=first.id, consumer=second.id)
        for first, second in pairwise(buckets)
    ]
    return edits


def _same_undo(choice: Choice, first: EditEffect, second: EditEffect) -> bool:
    """Whether two ops leave the same two kernels behind."""
    edits = (first.edit, second.edit)
    if edits[0].kind != edits[1].kind or edits[0].consumer != edits[1].consumer:
        return False
    if first.change_us != second.change_us:
        return False
    graph, strategy = choice.problem.graph, choice.strategy
    one, other = (replay(graph, [edit], strategy, limits=_LIMITS) for edit in edits)
    return one.hash == other.hash


def _decision(graph: OpGraph, of_op: dict[int, Unit], effect: EditEffect) -> Decision:
    edit = effect.edit
    producer, consumer = edit.producer, edit.consumer
    if edit.kind == "take-out":
        kind, unit = "fusion", of_op[consumer]
        copied = "" if producer in of_op and of_op[producer] is unit else "a copy of "
        what = f"{copied}{op_name(graph, producer)} in kernel {unit_name(graph, unit)}"
        like = f"{copied}{op_text(graph.ops[producer])} in {_all_text(graph, unit)}"
    elif edit.kind == "split-bucket":
        kind, unit = "bucket", of_op[consumer]
        what = (
            f"{contents(graph, unit)} in bucket {unit_name(graph, unit, 1)}, not cut before "
            f"{op_name(graph, consumer)}"
        )
        like = f"bucket {unit.id}"
    elif edit.kind == "merge-buckets":
        kind = "bucket"
        names = (unit_name(graph, of_op[op], 1) for op in (producer, consumer))
        what = like = "apart: buckets " + " and ".join(names)
    else:
        kind, unit = "order", of_op[producer]
        what, like = f"the place of {unit_name(graph, unit)}", _all_text(graph, unit)
    return Decision(kind=kind, what=what, like=like, undo=edit, gain_us=effect.change_us)


def _all_text(graph: OpGraph, unit: Unit) -> str:
    return unit_text(graph, unit, len(unit.ops))
