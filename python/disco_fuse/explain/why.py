"""Why two ops, or two gradients, are not together: the rule that forbids it, or what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from disco_fuse.config import SearchConfig
from disco_fuse.explain.effects import EditEffect, edit_effects
from disco_fuse.explain.names import op_name, unit_name
from disco_fuse.graph import OpKind
from disco_fuse.strategy import Edit
from disco_fuse.tuning.choice import Choice

_RULE_NAMES = {
    "kind": "library calls and collectives are never part of a kernel",
    "pattern": "opaque and tuple ops stay alone",
    "size": "a kernel has at most max_group_ops members",
    "arguments": "a kernel has at most max_group_args inputs and outputs",
    "duplicate": "what is expensive, or overwrites a buffer, is not computed twice",
    "duplication": "copies are at most as many as ops",
    "donation": "a kernel overwrites in place only what it reads element by element",
    "merge class": "one message has one reduction, dtype and set of ranks",
    "neighbours": "buckets are joined only if their gradients follow each other",
    "cycle": "a kernel must not wait for itself through another one",
    "relation": "the consumer reads the producer, and they are apart",
    "connection": "a kernel hangs together",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One way to bring two ops together, or to part them.

    Attributes
    ----------
    edit : Edit
    rule : str
        Name of the rule that forbids it, "" if it is legal.
    reason : str
        The rule applied to these ops.
    change_us : float
        By how much the step gets longer (below 0: shorter) if it is legal, otherwise 0.
    """

    edit: Edit
    rule: str
    reason: str
    change_us: float

    def in_words(self) -> str:
        """One line."""
        if self.rule:
            return f"{self.edit.kind}: illegal by rule '{self.rule}': {self.reason}"
        if self.change_us == 0:
            return f"{self.edit.kind}: legal, would change nothing"
        verb = "cost" if self.change_us > 0 else "gain"
        return f"{self.edit.kind}: legal, would {verb} {self.change_us / 1e3:+.4g} ms"

    def to_json(self) -> dict[str, Any]:
        """All fields, and what the rule is about."""
        return {**asdict(self), "meaning": _RULE_NAMES.get(self.rule, "")}


def why_not(choice: Choice, first: int, second: int) -> list[Answer]:
    """What is in the way of two ops in one kernel, or of two gradients in one bucket.

    Where they are together already, the answer is what parting them would cost.

    Parameters
    ----------
    first, second : int
        Ops; which of them produces and which one consumes is found out. Where neither reads the
        other, an edge between their kernels is taken, if there is one.

    Raises
    ------
    ValueError
        They are the same op.
    """
    if first == second:
        raise ValueError(f"{op_name(choice.problem.graph, first)} is named twice")
    graph, home = choice.problem.graph, choice.strategy.group_of
    kinds = {graph.ops[first].kind, graph.ops[second].kind}
    apart = home[first] != home[second]
    producer, consumer = _joined(choice, first, second) if apart else sorted((first, second))
    if kinds == {OpKind.ALLREDUCE}:
        names = ["merge-buckets" if apart else "split-bucket"]
    else:
        names = ["fuse", "fuse-duplicate"] if apart else ["take-out"]
    edits = [Edit(kind=name, producer=producer, consumer=consumer) for name in names]
    if names == ["take-out"]:
        edits.append(Edit(kind="take-out", producer=consumer, consumer=producer))
    effects = edit_effects(choice, edits, SearchConfig.preset("full").limits)
    return [_answer(effect) for effect in effects]


def together(choice: Choice, first: int, second: int) -> str:
    """Whether both are together, in words."""
    graph, home = choice.problem.graph, choice.strategy.group_of
    names = f"{op_name(graph, first)} and {op_name(graph, second)}"
    units = {unit.id: unit for unit in choice.strategy.units(graph)}
    one, other = (
        f"{'bucket' if unit.kind == 'bucket' else 'kernel'} {unit_name(graph, unit)}"
        for unit in (units[int(home[first])], units[int(home[second])])
    )
    if one == other:
        return f"{names} share {one}"
    return f"{names} are apart, in {one} and {other}"


def _joined(choice: Choice, first: int, second: int) -> tuple[int, int]:
    """Both, producer first (ids are topological), or the ends of an edge between their kernels."""
    graph, home = choice.problem.graph, choice.strategy.group_of
    pair = (min(first, second), max(first, second))
    groups = {int(home[first]), int(home[second])}
    between = [
        (edge.producer, edge.consumer)
        for edge in graph.edges
        if not edge.order_only and {int(home[edge.producer]), int(home[edge.consumer])} == groups
    ]
    return pair if pair in between or not between else between[0]


def _answer(effect: EditEffect) -> Answer:
    rule, _, rest = effect.reason.partition(": ")
    return Answer(edit=effect.edit, rule=rule, reason=rest, change_us=effect.change_us)
