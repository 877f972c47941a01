"""A search that measures what its best strategies are made of, until that changes nothing.

search --> best strategies --> their fusion groups, most doubtful first --> measured --+
  ^                                                                                    |
  +------------------- times by signature, in place of predictions --------------------+
                       ends when all groups of the winner are measured
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm.target import Target

from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import CostModel, Group, LearnedCostModel
from disco_fuse.cost_model.measured import MeasuredCostModel
from disco_fuse.cost_model.standalone import signature, standalone, to_text
from disco_fuse.dataset.measure import Reference, measure_kernels
from disco_fuse.dataset.sampling import Candidate, groups_of
from disco_fuse.graph import OpGraph
from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.kernels import profile_key
from disco_fuse.profile.machine import ModelProfile
from disco_fuse.search import SearchEvent, SearchResult
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Strategy, replay
from disco_fuse.tuning import Problem, TuningResult, tune

Progress = Callable[[int, int, str], None]

_MOST_ROUNDS = 8
# Ancestors of the winner among which the best are looked for, per strategy that is wanted.
_ANCESTORS = 4
_GROUP = "group "


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredTuning:
    """A tuning result on measured groups.

    Attributes
    ----------
    result : TuningResult
        Of the last search; its cost model has the measured times.
    num_rounds : int
        Searches.
    is_stable : bool
        Whether every fusion group of the winner is measured (or cannot be built).
    predicted_us : float
        What the model without any measured group says of the winner.
    num_new, num_known, num_failed : int
        Groups measured now, those that the database had, those that could not be built or run.
    groups : tuple of (name, predicted_us, measured_us)
        Fusion groups of the winner, the largest difference first; launch included.
    """

    result: TuningResult
    num_rounds: int
    is_stable: bool
    predicted_us: float
    num_new: int
    num_known: int
    num_failed: int
    groups: tuple[tuple[str, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {
            "rounds": self.num_rounds,
            "stable": self.is_stable,
            "predicted_us": self.predicted_us,
            "measured_us": self.result.makespan_us,
            "new_groups": self.num_new,
            "known_groups": self.num_known,
            "failed_groups": self.num_failed,
            "groups": [
                {"name": name, "predicted_us": predicted, "measured_us": measured}
                for name, predicted, measured in self.groups
            ],
        }


@dataclass
class _Measured:
    """Groups of one graph and their times, by signature; those that failed have none."""

    graph: OpGraph
    launch_us: float
    groups: dict[str, Group] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    num_known: int = 0

    def model(self, base: CostModel) -> CostModel:
        """``base`` with the measured times."""
        names = list(self.samples)
        times_us = np.array([self.samples[name].median_us + self.launch_us for name in names])
        groups = [self.groups[name] for name in names]
        return MeasuredCostModel(base, self.graph, groups, times_us)

    def known(self) -> set[str]:
        """Signatures that need no measurement."""
        return self.samples.keys() | self.failed

    def recall(
        self, found: dict[str, Candidate], database: ProfileDatabase, target: Target
    ) -> None:
        """Take what the database knows of the groups that were found."""
        stored = database.load(profile_key(target), [_GROUP + name for name in found])
        for name, item in found.items():
            if _GROUP + name in stored:
                self.samples[name] = stored[_GROUP + name]
                self.groups[name] = item.in_model
                self.num_known += 1

    def add(
        self, item: Candidate, sample: Sample | None, database: ProfileDatabase, target: Target
    ) -> None:
        """Keep a measurement, or that there can be none."""
        if sample is None:
            self.failed.add(item.name)
            return
        self.samples[item.name] = sample
        self.groups[item.name] = item.in_model
        database.store(profile_key(target), {_GROUP + item.name: sample})


def tune_measured(
    problem: Problem,
    profiled: ModelProfile,
    target: Target,
    database: ProfileDatabase,
    cluster: ClusterSpec,
    config: SearchConfig,
    base: CostModel,
    num_best: int,
    *,
    warm_start: bool = True,
    on_event: Callable[[SearchEvent], None] | None = None,
    progress: Progress | None = None,
) -> MeasuredTuning:
    """Search and measure in turn.

    Parameters
    ----------
    problem : Problem
        Of ``profiled``'s graph.
    profiled : ModelProfile
        The module and the times of its ops on this machine.
    database : ProfileDatabase
        Keeps measured groups, so that another call measures only those that are new.
    cluster : ClusterSpec
        Its device is this machine.
    base : CostModel
        With the ops' times of ``profiled``.
    num_best : int
        Strategies of each search whose groups are measured.
    progress : callable, optional
        Called as ``progress(done, total, name)`` after each measured group.
    """
    graph = problem.graph
    measured = _Measured(graph=graph, launch_us=cluster.device.launch_us)
    reference = Reference(target)
    num_rounds = 0
    while True:
        num_rounds += 1
        model = measured.model(base)
        result = tune(
            problem, cluster, config, warm_start=warm_start, on_event=on_event, cost_model=model
        )
        stable = not _missing(graph, result.strategy, measured)
        interrupted = result.search.stop_reason == "interrupted"
        if stable or interrupted or num_rounds == _MOST_ROUNDS:
            break
        found = _groups_of_best(result, profiled, num_best, measured.known())
        measured.recall(found, database, target)
        wanted = [item for name, item in found.items() if name not in measured.samples]
        for done, item in enumerate(_most_doubtful_first(base, graph, wanted), start=1):
            measured.add(item, _measure(item, target, reference), database, target)
            if progress is not None:
                progress(done, len(wanted), item.name)
    return MeasuredTuning(
        result=result,
        num_rounds=num_rounds,
        is_stable=stable,
        predicted_us=simulate(graph, result.strategy, base, cluster).makespan_us,
        num_new=len(measured.samples) - measured.num_known,
        num_known=measured.num_known,
        num_failed=len(measured.failed),
        groups=_compare(graph, result.strategy, base, model),
    )


def _groups_of_best(
    result: TuningResult, profiled: ModelProfile, num_best: int, known: set[str]
) -> dict[str, Candidate]:
    """Groups of the best strategies that are not known, by signature."""
    found: dict[str, Candidate] = {}
    for strategy in best_strategies(result, num_best):
        for item in groups_of(profiled.mod, profiled.extraction, strategy, known):
            found.setdefault(item.name, item)
    return found


def best_strategies(result: TuningResult, num_best: int) -> list[Strategy]:
    """The winner and the best of its last ancestors, all different, the best first.

    Ancestors are what the search had when it was some edits before the best: its incumbents, and
    the strategies through which it came from one to the next.
    """
    graph, found = result.problem.graph, result.search
    limits = result.config.limits
    start = _start(result, found)
    seen = {result.strategy.hash: (result.makespan_us, result.strategy)}
    for num_edits in range(len(found.edits), max(-1, len(found.edits) - _ANCESTORS * num_best), -1):
        strategy = replay(graph, found.edits[:num_edits], start, limits=limits)
        if strategy.hash not in seen:
            listed = schedule(graph, strategy, result.cost_model, result.cluster)
            timeline = simulate(graph, listed, result.cost_model, result.cluster)
            seen[strategy.hash] = (timeline.makespan_us, listed)
    ranked = sorted(seen.values(), key=lambda item: (item[0], item[1].hash))
    return [strategy for _, strategy in ranked[:num_best]]


def _start(result: TuningResult, found: SearchResult) -> Strategy:
    """Where the edits of the search start."""
    if found.start == 0:
        return Strategy.unfused(result.problem.graph)
    return list(result.baselines.values())[found.start - 1].strategy


def _fused(graph: OpGraph, strategy: Strategy) -> list[Group]:
    """The groups of several ops that become kernels."""
    return [
        Group(ops=unit.ops, outputs=unit.outputs)
        for unit in strategy.units(graph)
        if unit.kind == "kernel" and len(unit.ops) > 1
    ]


def _missing(graph: OpGraph, strategy: Strategy, measured: _Measured) -> bool:
    known = measured.known()
    return any(
        signature(to_text(*standalone(graph, group))) not in known
        for group in _fused(graph, strategy)
    )


def _most_doubtful_first(
    base: CostModel, graph: OpGraph, wanted: Sequence[Candidate]
) -> list[Candidate]:
    """By how far a learned model is from having seen the like, then by predicted time."""
    groups = [item.in_model for item in wanted]
    doubt = base.predict(graph, groups) if groups else np.zeros(0)
    if isinstance(base, LearnedCostModel):
        doubt = doubt * base.unfamiliarity(graph, groups)
    return [wanted[i] for i in np.argsort(-doubt, kind="stable")]


def _measure(item: Candidate, target: Target, reference: Reference) -> Sample | None:
    """Time of a group, launch not included; None if it cannot be built or run."""
    name = f"fused_{item.name}"  # what LLVM calls a symbol cannot begin with a digit
    try:
        return measure_kernels({name: item.func}, target, reference)[name].sample
    except Exception:  # whatever TVM raises: the prediction then stays, and the group is counted
        return None


def _compare(
    graph: OpGraph, strategy: Strategy, base: CostModel, model: CostModel
) -> tuple[tuple[str, float, float], ...]:
    groups = _fused(graph, strategy)
    if not groups:
        return ()
    predicted, times = base.predict(graph, groups), model.predict(graph, groups)
    order = np.argsort(-np.abs(predicted - times), kind="stable")
    names = ["+".join(graph.ops[op].name for op in group.ops) for group in groups]
    return tuple((names[i], float(predicted[i]), float(times[i])) for i in order)
