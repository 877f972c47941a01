"""What happens in a search, as JSON lines that dashboards and tests read.

Every event has ``event``, its kind; times are simulated microseconds but for ``elapsed_s``:

    start        version (of this format), model, num_ops, cluster, world_size, device, preset,
                 seed, num_starts, versions (of the packages)
    limits       best_baseline, best_baseline_us, lower_bound_us
    progress     elapsed_s, candidates, candidates_per_s (since the event before), queued,
                 makespan_us (of the best so far; null while none fits the memory limit)
    incumbent    the same, and lanes: the timeline of a new best strategy
    end          reason, elapsed_s, candidates, makespan_us, initial_us, lower_bound_us,
                 best_baseline, best_baseline_us, lanes

``lanes`` has ``streams`` (names), ``makespan_us``, and ``spans``: lists of stream (an index),
start, duration, number of units, name, and kind (of ``disco_fuse.strategy.Unit``). Neighbours that
are too short to be seen are one span.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm

from disco_fuse import __version__
from disco_fuse.baselines import BaselineResult
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.graph import OpGraph
from disco_fuse.search import SearchEvent
from disco_fuse.simulate import STREAMS, Timeline, unit_name
from disco_fuse.strategy import Strategy
from disco_fuse.tuning.problem import Problem
from disco_fuse.tuning.tune import TuningResult

FORMAT_VERSION = 1
_PROGRESS_S = 0.25  # at least that long between two events
_LANES_S = 1.0  # and that long between two timelines
_MAX_NAME = 80  # letters of a span's name
_MAX_SPANS = 400  # a stream: what can be told apart on a screen


class SearchEvents:
    """Turns the events of a search into few lines; for ``on_event`` of ``tune``.

    Parameters
    ----------
    graph : OpGraph
        What is searched, for the names of its ops.
    emit : callable
        Called with every line, for instance an ``EventLog``. New best strategies that come too
        fast are told by a later line: the last of them then.
    """

    def __init__(self, graph: OpGraph, emit: Callable[[dict[str, Any]], None]) -> None:
        self._graph, self._emit = graph, emit
        self._improved: SearchEvent | None = None
        self._told_s = self._lanes_told_s = -math.inf
        self._told_candidates = 0

    def __call__(self, event: SearchEvent) -> None:
        if event.improved:
            self._improved = event
        if event.elapsed_s - self._told_s < _PROGRESS_S:
            return
        since_s = event.elapsed_s - max(self._told_s, 0.0)
        line = {
            "event": "progress",
            "elapsed_s": round(event.elapsed_s, 3),
            "candidates": event.num_candidates,
            "candidates_per_s": round(
                (event.num_candidates - self._told_candidates) / max(since_s, 1e-3), 1
            ),
            "queued": event.num_queued,
            "makespan_us": event.makespan_us if math.isfinite(event.makespan_us) else None,
        }
        self._told_s, self._told_candidates = event.elapsed_s, event.num_candidates
        improved = self._improved
        if improved is not None and event.elapsed_s - self._lanes_told_s >= _LANES_S:
            assert improved.best is not None
            assert improved.timeline is not None
            lanes = lanes_of(improved.timeline(), self._graph, improved.best)
            line |= {"event": "incumbent", "lanes": lanes}
            self._improved, self._lanes_told_s = None, event.elapsed_s
        self._emit(line)


def start_event(
    problem: Problem, cluster: ClusterSpec, config: SearchConfig, preset: str
) -> dict[str, Any]:
    """The first line of a search."""
    return {
        "event": "start",
        "version": FORMAT_VERSION,
        "model": problem.name,
        "num_ops": problem.graph.num_ops,
        "cluster": cluster.name,
        "world_size": cluster.world_size,
        "device": cluster.device.name,
        "preset": preset,
        "seed": config.seed,
        "num_starts": config.num_starts,
        "versions": {"disco-fuse": __version__, "apache-tvm": tvm.__version__},
    }


def limits_event(best: BaselineResult, lower_bound_us: float) -> dict[str, Any]:
    """What the search will be compared with; see ``on_limits`` of ``tune``."""
    return {
        "event": "limits",
        "best_baseline": best.name,
        "best_baseline_us": best.makespan_us,
        "lower_bound_us": lower_bound_us,
    }


def end_event(result: TuningResult) -> dict[str, Any]:
    """The last line of a search."""
    baseline = result.best_baseline
    return {
        "event": "end",
        "reason": result.search.stop_reason,
        "elapsed_s": round(result.search_s, 3),
        "candidates": result.search.num_candidates,
        "makespan_us": result.makespan_us,
        "initial_us": result.search.initial_makespan_us,
        "lower_bound_us": result.lower_bound_us,
        "best_baseline": baseline.name,
        "best_baseline_us": baseline.makespan_us,
        "lanes": lanes_of(result.timeline, result.problem.graph, result.strategy),
    }


def lanes_of(
    timeline: Timeline, graph: OpGraph, strategy: Strategy, max_spans: int = _MAX_SPANS
) -> dict[str, Any]:
    """A timeline as a page draws it: at most ``2 * max_spans + 1`` spans a stream.

    A unit joins the span before it if both together, and what lies between, are shorter than
    ``makespan / max_spans``. So any two neighbours are longer than that together.
    """
    units = {unit.id: unit for unit in strategy.units(graph)}
    shortest_us = timeline.makespan_us / max_spans
    last: dict[str, list[Any]] = {}
    spans: list[list[Any]] = []
    for event in timeline.events:
        start, finish = event.start_ns / 1000, event.finish_ns / 1000
        span = last.get(event.stream)
        if span is not None and finish - span[1] < shortest_us:
            span[2] = finish - span[1]
            span[3] += 1
            continue
        unit = units[event.unit]
        name = unit_name([graph.ops[op].name for op in unit.ops])[:_MAX_NAME]
        span = [STREAMS.index(event.stream), start, finish - start, 1, name, unit.kind]
        last[event.stream] = span
        spans.append(span)
    for span in spans:
        span[1:3] = round(span[1], 3), round(span[2], 3)
    return {
        "streams": list(STREAMS),
        "makespan_us": timeline.makespan_us,
        "spans": spans,
    }
