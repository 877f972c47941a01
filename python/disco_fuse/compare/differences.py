"""Where a simulated step and a measured one differ: kernel by kernel, bucket by bucket.

simulated   |k0|k1|...|kn|        |k|      events of the timeline, in emitted order
measured    |k0 |k1|....|kn |       |k|    events of recorded steps, in the order of their run
             ^ the same kernels, so the i-th of one is the i-th of the other
"""

from __future__ import annotations

from dataclasses import dataclass

from disco_fuse.compare.report import StrategyResult
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Timeline
from disco_fuse.strategy import Strategy, Unit

_NUM_LARGEST = 5
_NUM_NAMES = 2


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A part of the step, simulated and measured, microseconds.

    Attributes
    ----------
    what : str
        A sum ("ops alone", "fusion groups", "library calls", "waiting for AllReduces", "overhead"),
        or one unit by its ops.
    simulated_us, measured_us : float
    """

    what: str
    simulated_us: float
    measured_us: float

    @property
    def size_us(self) -> float:
        """By how much they differ, whatever the sign."""
        return abs(self.simulated_us - self.measured_us)


def differences(
    graph: OpGraph,
    strategy: Strategy,
    timeline: Timeline,
    result: StrategyResult,
    num_largest: int = _NUM_LARGEST,
) -> list[Difference]:
    """Sums over everything that makes up a step, then the kernels and messages that differ most.

    Parameters
    ----------
    timeline : Timeline
        Of ``strategy``, simulated.
    result : StrategyResult
        Of its plan, measured.

    Returns
    -------
    list of Difference
        The sums first, then units, each by decreasing difference. Messages are no part of the sum:
        what a step pays of them is the waiting.

    Raises
    ------
    ValueError
        The step ran other kernels than the strategy has.
    """
    measured, breakdown = result.unit_times, result.breakdown
    if measured is None or breakdown is None:
        raise ValueError(f"no kernels of {result.name} were recorded")
    units = {unit.id: unit for unit in strategy.units(graph)}
    kernels, buckets, waited_us, at_ns = [], [], 0.0, 0
    for event in timeline.events:
        unit, duration_us = units[event.unit], (event.finish_ns - event.start_ns) / 1e3
        if event.stream == "communication":
            buckets.append((unit, duration_us))
            continue
        waited_us += (event.start_ns - at_ns) / 1e3
        at_ns = event.finish_ns
        kernels.append((unit, duration_us))
    waited_us += timeline.makespan_us - at_ns / 1e3
    counts = (len(kernels), len(buckets))
    if counts != (len(measured.kernels_us), len(measured.messages_us)):
        raise ValueError(
            f"{result.name} has {counts[0]} kernels and {counts[1]} buckets, but its step ran "
            f"{len(measured.kernels_us)} and {len(measured.messages_us)}"
        )
    sums: dict[str, list[float]] = {}
    singles: list[Difference] = []
    for (unit, simulated_us), measured_us in zip(kernels, measured.kernels_us, strict=True):
        total = sums.setdefault(_kind(unit), [0.0, 0.0])
        total[0] += simulated_us
        total[1] += measured_us
        singles.append(_single(graph, unit, "", simulated_us, measured_us))
    for (unit, simulated_us), measured_us in zip(buckets, measured.messages_us, strict=True):
        singles.append(_single(graph, unit, "AllReduce ", simulated_us, measured_us))
    sums["waiting for AllReduces"] = [waited_us, breakdown.exposed_us]
    sums["overhead"] = [0.0, breakdown.overhead_us]
    parts = [Difference(what=k, simulated_us=s, measured_us=m) for k, (s, m) in sums.items()]
    by_size = sorted(singles, key=lambda item: -item.size_us)[:num_largest]
    return [*sorted(parts, key=lambda item: -item.size_us), *by_size]


def _kind(unit: Unit) -> str:
    if unit.kind == "library":
        return "library calls"
    return "fusion groups" if len(unit.ops) > 1 else "ops alone"


def _single(
    graph: OpGraph, unit: Unit, prefix: str, simulated_us: float, measured_us: float
) -> Difference:
    names = [graph.ops[op].name for op in unit.ops]
    more = f" and {len(names) - _NUM_NAMES} more" if len(names) > _NUM_NAMES else ""
    return Difference(
        what=prefix + "+".join(names[:_NUM_NAMES]) + more,
        simulated_us=simulated_us,
        measured_us=measured_us,
    )
