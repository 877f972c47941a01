"""One search with everything that must be said about its result.

total compute, total AllReduce  -->  FO: full overlap, the larger of the two
lower bound                     -->  no strategy at all is faster
makespan                        -->  gain over the best baseline, share of the way to the bound
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.baselines import BaselineResult, evaluate_baselines
from disco_fuse.bound import lower_bound_us
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import CostModel, RooflineCostModel
from disco_fuse.search import SearchEvent, SearchResult, search
from disco_fuse.simulate import Timeline, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning.problem import Problem


def gain(best_us: float, ours_us: float) -> float:
    """How much faster ours is than the best baseline: 0.1 for a step 1.1 times as fast."""
    return best_us / ours_us - 1


def share_closed(best_us: float, ours_us: float, limit_us: float) -> float:
    """Part of the way from the best baseline to a limit that nobody passes; 1 if there is none.

    ``(best - ours) / (best - limit)``.
    """
    return 1.0 if best_us <= limit_us else (best_us - ours_us) / (best_us - limit_us)


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    """What a search found, and how good that is; all times are simulated microseconds.

    Attributes
    ----------
    problem : Problem
    cluster : ClusterSpec
    config : SearchConfig
    baselines : mapping
        Name -> result.
    search : SearchResult
    strategy : Strategy
        The fastest that is known: what the search found, or a baseline in TVM's own order.
    timeline : Timeline
        Of ``strategy``.
    search_s : float
        Seconds the search took, baselines not included.
    cost_model : CostModel
        What has priced the kernels.
    """

    problem: Problem
    cluster: ClusterSpec
    config: SearchConfig
    baselines: Mapping[str, BaselineResult]
    search: SearchResult
    strategy: Strategy
    timeline: Timeline
    search_s: float
    cost_model: CostModel

    @property
    def best_baseline(self) -> BaselineResult:
        """The fastest baseline; of equal ones the first."""
        return _best_of(self.baselines)

    @property
    def makespan_us(self) -> float:
        """Of ``strategy``."""
        return self.timeline.makespan_us

    @property
    def fo_us(self) -> float:
        """FO(strategy): its total compute or its total AllReduce, whichever is larger."""
        return max(self.timeline.compute_us, self.timeline.allreduce_us)

    @property
    def lower_bound_us(self) -> float:
        """No strategy is faster."""
        return self.search.lower_bound_us

    @property
    def least_totals_us(self) -> tuple[float, float]:
        """Least total compute and least total AllReduce over the baselines and ``strategy``."""
        graph = self.problem.graph
        timelines = [self.timeline] + [
            simulate(graph, result.strategy, self.cost_model, self.cluster)
            for result in self.baselines.values()
        ]
        return (
            min(timeline.compute_us for timeline in timelines),
            min(timeline.allreduce_us for timeline in timelines),
        )

    @property
    def memo_hit_rate(self) -> float:
        """Share of kernels whose time the search knew already; 0 if it needed none."""
        found = self.search
        return 1 - found.num_priced / max(found.num_looked_up, found.num_priced, 1)

    def to_json(self) -> dict[str, Any]:
        """The figures, for JSON."""
        best, ours = self.best_baseline, self.makespan_us
        least_compute_us, least_allreduce_us = self.least_totals_us
        fo_star = max(least_compute_us, least_allreduce_us)
        limit = max(fo_star, self.lower_bound_us)
        return {
            "name": self.problem.name,
            "simulated": True,
            "ops": self.problem.graph.num_ops,
            "digest": self.problem.graph.digest,
            "cluster": self.cluster.name,
            "world_size": self.cluster.world_size,
            "cost_model": self.cost_model.name,
            "seed": self.config.seed,
            "baselines": {name: r.makespan_us for name, r in self.baselines.items()},
            "list_schedule": {name: r.list_us for name, r in self.baselines.items()},
            "emitted_order": {name: r.emitted_us for name, r in self.baselines.items()},
            "best_baseline": best.name,
            "disco_fuse_us": ours,
            "found_us": self.search.found_us,
            "gain": gain(best.makespan_us, ours),
            "fo_strategy_us": self.fo_us,
            "fo_us": fo_star,
            "lower_bound_us": self.lower_bound_us,
            "gap": ours / limit - 1,
            "share": share_closed(best.makespan_us, ours, limit),
            "compute_us": self.timeline.compute_us,
            "allreduce_us": self.timeline.allreduce_us,
            "overlap": self.timeline.overlap,
            "peak_bytes": self.timeline.memory.peak_bytes,
            "least_compute_us": least_compute_us,
            "least_allreduce_us": least_allreduce_us,
            "candidates": self.search.num_candidates,
            "unseen": self.search.num_unseen,
            "memo_hit_rate": self.memo_hit_rate,
            "candidates_per_s": self.search.num_unseen / max(self.search_s, 1e-9),
            "search_s": self.search_s,
            "stop_reason": self.search.stop_reason,
        }


def tune(
    problem: Problem,
    cluster: ClusterSpec,
    config: SearchConfig,
    *,
    warm_start: bool = True,
    starts: Sequence[Strategy] = (),
    on_event: Callable[[SearchEvent], None] | None = None,
    on_limits: Callable[[BaselineResult, float], None] | None = None,
    cost_model: CostModel | None = None,
) -> TuningResult:
    """Search, and compare with the baselines.

    Parameters
    ----------
    warm_start : bool
        Whether the baselines join the search after its first phase; the result is then never worse
        than any of them that fits the memory limit, if there is one.
    starts : sequence of Strategy
        Further starts, whether or not the baselines join.
    on_event : callable, optional
        See :func:`disco_fuse.search.search`.
    on_limits : callable, optional
        Called before the search with the best baseline and the lower bound in microseconds.
    cost_model : CostModel, optional
        What prices kernels; by default the roofline of the cluster's device.

    Raises
    ------
    ValueError
        The graph is empty, or no strategy that was found fits the memory limit.
    """
    if problem.graph.num_ops == 0:
        raise ValueError(f"the graph of {problem.name!r} has no ops: there is nothing to tune")
    model = RooflineCostModel(cluster.device) if cost_model is None else cost_model
    baselines = evaluate_baselines(problem.graph, problem.emission, model, cluster)
    known = [result.strategy for result in baselines.values()] if warm_start else []
    if on_limits is not None:
        bound_us = lower_bound_us(problem.graph, model, cluster)
        on_limits(_best_of(baselines), bound_us)
    begin = time.perf_counter()
    found = search(
        problem.graph, model, cluster, config, initial=[*known, *starts], on_event=on_event
    )
    search_s = time.perf_counter() - begin
    strategy, makespan_us = found.best, found.makespan_us
    if warm_start:
        # The search orders everything by its own schedule, which may lose to TVM's order.
        for result in baselines.values():
            peak = simulate(problem.graph, result.strategy, model, cluster).memory.peak_bytes
            fits = config.memory_limit_bytes is None or peak <= config.memory_limit_bytes
            if fits and result.makespan_us < makespan_us:
                strategy, makespan_us = result.strategy, result.makespan_us
    return TuningResult(
        problem=problem,
        cluster=cluster,
        config=config,
        baselines=baselines,
        search=found,
        strategy=strategy,
        timeline=simulate(problem.graph, strategy, model, cluster),
        search_s=search_s,
        cost_model=model,
    )


def _best_of(baselines: Mapping[str, BaselineResult]) -> BaselineResult:
    return min(baselines.values(), key=lambda result: result.makespan_us)
