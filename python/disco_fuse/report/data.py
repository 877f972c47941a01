"""What the report shows, as compact JSON: times in milliseconds, rounded to nanoseconds."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

from disco_fuse.explain.names import unit_name
from disco_fuse.explain.summary import Summary, summarise
from disco_fuse.plan import installed_versions
from disco_fuse.search import SearchEvent
from disco_fuse.tuning import TuningResult
from disco_fuse.tuning.choice import Choice

_KINDS = ("kernel", "library", "bucket")
_NUM_BARS = 30
_NUM_POINTS = 1000


def report_data(result: TuningResult, events: Sequence[SearchEvent], preset: str) -> dict[str, Any]:
    """Everything on the page.

    Parameters
    ----------
    events : sequence of SearchEvent
        What the search reported.
    preset : str
        Name of the search's configuration.
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
    cluster = result.cluster
    return {
        "title": f"{result.problem.name} on {cluster.name}",
        "about": (
            f"{result.problem.graph.num_ops} ops, simulated on {cluster.world_size} ranks of "
            f"{cluster.device.name}; nothing was built or run"
        ),
        "makespan_ms": _ms(result.makespan_us),
        "bound_ms": _ms(result.lower_bound_us),
        "best_baseline": result.best_baseline.name,
        "best_baseline_ms": _ms(result.best_baseline.makespan_us),
        "figures": _figures(figures, summary),
        "baselines": [
            *([name, f"{_ms(us):.3f}"] for name, us in figures["baselines"].items()),
            ["disco_fuse", f"{_ms(result.makespan_us):.3f}"],
        ],
        "lanes": _lanes(summary),
        "progress": _progress(events),
        "groups": _groups(summary),
        "buckets": _buckets(summary),
        "versions": [
            ["seed", str(result.config.seed)],
            ["preset", preset],
            ["cost model", result.cost_model.name],
            ["graph digest", result.problem.graph.digest],
            ["strategy hash", result.strategy.hash],
            *([name, version] for name, version in installed_versions().items()),
            ["Python", platform.python_version()],
        ],
    }


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


def _lanes(summary: Summary) -> dict[str, dict[str, list[Any]]]:
    graph = summary.choice.problem.graph
    units = {unit.id: unit for unit in summary.choice.strategy.units(graph)}
    lanes: dict[str, dict[str, list[Any]]] = {
        stream: {"starts": [], "durations": [], "kind": [], "names": []}
        for stream in ("compute", "communication")
    }
    for event in summary.timeline.events:
        lane, unit = lanes[event.stream], units[event.unit]
        lane["starts"].append(event.start_ns / 1e6)
        lane["durations"].append((event.finish_ns - event.start_ns) / 1e6)
        lane["kind"].append(_KINDS.index(unit.kind))
        lane["names"].append(unit_name(graph, unit))
    return lanes


def _progress(events: Sequence[SearchEvent]) -> list[tuple[int, float]]:
    """(candidates, best makespan) of the improvements, ``_NUM_POINTS`` at most, and the end."""
    finite = [event for event in events if math.isfinite(event.makespan_us)]
    kept = [e for e in finite if e.improved]
    kept = kept[:: max(1, math.ceil(len(kept) / _NUM_POINTS))]
    return [(e.num_candidates, _ms(e.makespan_us)) for e in [*kept, *finite[-1:]]]


def _groups(summary: Summary) -> list[tuple[str, float, str]]:
    """(name, ms, label) of the longest kernels."""
    graph = summary.choice.problem.graph
    longest = sorted(summary.kernels, key=lambda kernel: (-kernel.time_us, kernel.unit.id))
    return [
        (
            unit_name(graph, kernel.unit),
            _ms(kernel.time_us),
            f"{_ms(kernel.time_us):.3f} ms, {len(kernel.unit.ops)} ops, "
            f"saves {_ms(kernel.saved_us):.3f} ms",
        )
        for kernel in longest[:_NUM_BARS]
    ]


def _buckets(summary: Summary) -> list[tuple[str, float, str]]:
    """(name, MB, label) of all buckets."""
    graph = summary.choice.problem.graph
    return [
        (
            unit_name(graph, bucket.unit, 1),
            bucket.num_bytes / 1e6,
            f"{bucket.num_bytes / 1e6:.2f} MB, {len(bucket.unit.ops)} gradients"
            + (f", exposed {_ms(bucket.exposed_us):.3f} ms" if bucket.exposed_us else ""),
        )
        for bucket in summary.buckets
    ]


def _ms(time_us: float) -> float:
    return round(time_us / 1e3, 6)
