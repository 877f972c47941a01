"""What the report shows, as compact JSON: times in milliseconds, rounded to nanoseconds."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

from disco_fuse.explain.exposure import waits
from disco_fuse.explain.names import bytes_text, contents, counted, unit_name, unit_shape
from disco_fuse.explain.summary import Summary, summarise
from disco_fuse.graph import OpGraph
from disco_fuse.plan import installed_versions
from disco_fuse.search import SearchEvent
from disco_fuse.simulate import STREAMS, Timeline, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning import TuningResult
from disco_fuse.tuning.choice import Choice

_KINDS = ("kernel", "library", "bucket", "wait")
_NUM_BARS = 30
_NUM_POINTS = 1000
_Bar: TypeAlias = tuple[str, float, str, str]  # name, value, label, kind


def report_data(
    result: TuningResult,
    events: Sequence[SearchEvent],
    preset: str,
    made_by: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Everything on the page.

    Parameters
    ----------
    events : sequence of SearchEvent
        What the search reported.
    preset : str
        Name of the search's configuration.
    made_by : sequence of (str, str)
        What and value, of the call that made the result.
    """
    choice = Choice(
        problem=result.problem,
        strategy=result.strategy,
        cluster=result.cluster,
        simulated_us=result.makespan_us,
        priced_by=result.cost_model,
    )
    summary = summarise(choice)
    figures = result.to_json()
    graph, cluster, best = result.problem.graph, result.cluster, result.best_baseline
    baselines, ours_us = figures["baselines"], result.makespan_us
    return {
        "title": f"{result.problem.name} on {cluster.name}",
        "about": (
            f"{graph.num_ops} ops, simulated on {cluster.world_size} ranks of "
            f"{cluster.device.name}; nothing was built or run"
        ),
        "makespan_ms": _ms(result.makespan_us),
        "bound_ms": _ms(result.lower_bound_us),
        "best_baseline": best.name,
        "best_baseline_ms": _ms(best.makespan_us),
        "figures": _figures(figures, summary),
        "strategies": [
            *((name, _ms(us), f"{_ms(us):.3f} ms", "baseline") for name, us in baselines.items()),
            ("disco_fuse", _ms(ours_us), f"{_ms(ours_us):.3f} ms", "ours"),
        ],
        "lanes": _lanes(graph, summary.choice.strategy, summary.timeline),
        "baseline_lanes": _lanes(
            graph, best.strategy, simulate(graph, best.strategy, result.cost_model, cluster)
        ),
        "progress": _progress(events, result),
        "groups": _groups(summary),
        "buckets": _buckets(summary),
        "versions": [*made_by, *_versions(result, preset)],
    }


def _versions(result: TuningResult, preset: str) -> list[tuple[str, str]]:
    return [
        ("seed", str(result.config.seed)),
        ("preset", preset),
        ("cost model", result.cost_model.name),
        ("graph digest", result.problem.graph.digest),
        ("strategy hash", result.strategy.hash),
        *installed_versions().items(),
        ("torch", _torch_version()),
        ("Python", platform.python_version()),
    ]


def _figures(figures: dict[str, Any], summary: Summary) -> list[list[str]]:
    return [
        ["step", f"{_ms(figures['disco_fuse_us']):.3f} ms"],
        [f"gain over {figures['best_baseline']}", f"{100 * figures['gain']:.2f} %"],
        ["lower bound of every strategy", f"{_ms(figures['lower_bound_us']):.3f} ms"],
        ["above the larger of bound and FO*", f"{100 * figures['gap']:.2f} %"],
        ["compute", f"{_ms(figures['compute_us']):.3f} ms"],
        ["AllReduce", f"{_ms(figures['allreduce_us']):.3f} ms"],
        ["exposed AllReduce", f"{_ms(summary.exposed_us):.3f} ms"],
        ["peak memory", f"{figures['peak_bytes'] / 1e6:.1f} MB"],
        ["kernels and library calls", str(len(summary.kernels))],
        ["buckets", str(len(summary.buckets))],
        ["candidates", str(figures["candidates"])],
        ["search", f"{figures['search_s']:.2f} s"],
        ["stopped by", figures["stop_reason"]],
    ]


def _lanes(
    graph: OpGraph, strategy: Strategy, timeline: Timeline
) -> dict[str, dict[str, list[Any]]]:
    """Spans of both streams, and the times in which compute waits for a message."""
    units = {unit.id: unit for unit in strategy.units(graph)}
    lanes: dict[str, dict[str, list[Any]]] = {
        name: {"starts": [], "durations": [], "kind": [], "names": []}
        for name in (*STREAMS, "waits")
    }

    def add(lane: str, start_ns: int, finish_ns: int, kind: str, name: str) -> None:
        entries = (start_ns / 1e6, (finish_ns - start_ns) / 1e6, _KINDS.index(kind), name)
        for part, entry in zip(lanes[lane].values(), entries, strict=True):
            part.append(entry)

    names = {unit.id: unit_name(graph, unit) for unit in units.values()}
    for event in timeline.events:
        add(
            event.stream,
            event.start_ns,
            event.finish_ns,
            units[event.unit].kind,
            names[event.unit],
        )
    compute, messages = ([e for e in timeline.events if e.stream == name] for name in STREAMS)
    for start_ns, finish_ns in waits(compute, round(timeline.makespan_us * 1000)):
        sent = [e for e in messages if e.start_ns < finish_ns and e.finish_ns > start_ns]
        add("waits", start_ns, finish_ns, "wait", " and ".join(names[e.unit] for e in sent[:2]))
    return lanes


def _progress(events: Sequence[SearchEvent], result: TuningResult) -> list[tuple[int, float]]:
    """(candidates, best makespan) of the improvements, ``_NUM_POINTS`` at most, and the end."""
    kept = [(e.num_candidates, e.makespan_us) for e in events if e.improved]
    kept = [point for point in kept if math.isfinite(point[1])]
    kept = kept[:: max(1, math.ceil(len(kept) / _NUM_POINTS))]
    if math.isfinite(result.search.makespan_us):
        kept.append((result.search.num_candidates, result.search.makespan_us))
    return [(candidates, _ms(makespan_us)) for candidates, makespan_us in kept]


def _groups(summary: Summary) -> list[_Bar]:
    """Equal kernels together, those that take longest first; values are milliseconds."""
    graph = summary.choice.problem.graph
    return [
        (
            group.name,
            _ms(group.time_us),
            f"{group.times_text}, {counted(len(group.kernels[0].unit.ops), 'op')} of "
            f"{unit_shape(graph, group.kernels[0].unit)}"
            + (f", saves {_ms(group.saved_us):.3f} ms" if group.saved_us else ""),
            group.kernels[0].unit.kind,
        )
        for group in summary.longest(_NUM_BARS)
    ]


def _buckets(summary: Summary) -> list[_Bar]:
    """All buckets; values are bytes."""
    graph = summary.choice.problem.graph
    return [
        (
            unit_name(graph, bucket.unit, 1),
            bucket.num_bytes,
            f"{bytes_text(bucket.num_bytes)}, {contents(graph, bucket.unit)}"
            + (f", exposed {_ms(bucket.exposed_us):.3f} ms" if bucket.exposed_us else ""),
            "bucket",
        )
        for bucket in summary.buckets
    ]


def _torch_version() -> str:
    """Of the package that models are imported with, if it is there."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "-"


def _ms(time_us: float) -> float:
    return round(time_us / 1e3, 6)
