"""The exposed communication of a step, bucket by bucket, and what each bucket waited for.

compute        | f f b b K u |....| u ....| u |     dots: no kernel can run
communication          |== B1 ==|=== B2 ==|         the first dots are B1's and B2's, as long as
                       ^ K makes the last gradient  each is under way
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disco_fuse.explain.dependencies import Dependencies
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Event, Timeline
from disco_fuse.strategy import Strategy, Unit


@dataclass(frozen=True, kw_only=True)
class BucketExposure:
    """One message of a step; times in microseconds from the start of the step.

    Attributes
    ----------
    unit : Unit
        The bucket.
    num_bytes : int
    ready_us : float
        When its last gradient is there.
    start_us, finish_us : float
        Of the message.
    exposed_us : float
        Part of the message during which the compute stream has nothing to run.
    last_gradient : int
        The op that makes the gradient which was there last.
    chain : tuple of int
        The longest chain of units, each of which needs the one before, that ends in the kernel of
        that gradient: however fast everything else is, it is not there earlier.
    chain_us : float
        The sum of their times.
    needed_us : float
        Compute before ``ready_us`` that the bucket needs, directly or indirectly.
    not_needed_us : float
        Compute before ``ready_us`` that it does not need.
    """

    unit: Unit
    num_bytes: int
    ready_us: float
    start_us: float
    finish_us: float
    exposed_us: float
    last_gradient: int
    chain: tuple[int, ...]
    chain_us: float
    needed_us: float
    not_needed_us: float

    @property
    def queued_us(self) -> float:
        """From the last gradient to the start of the message: others were under way."""
        return self.start_us - self.ready_us


def waits(compute: Sequence[Event], end_ns: int) -> list[tuple[int, int]]:
    """Begin and end of the times before ``end_ns`` in which no event of ``compute`` runs, ns."""
    gaps, free = [], 0
    for event in compute:
        if event.start_ns > free:
            gaps.append((free, event.start_ns))
        free = event.finish_ns
    return [*gaps, (free, end_ns)] if end_ns > free else gaps


def bucket_exposures(
    graph: OpGraph, strategy: Strategy, timeline: Timeline
) -> list[BucketExposure]:
    """All buckets in the order in which they are sent.

    ``exposed_us`` of all of them add up to the time during which compute waits, since messages
    follow each other without a break while any kernel waits for one.
    """
    events = {event.unit: event for event in timeline.events}
    compute = [event for event in timeline.events if event.stream == "compute"]
    gaps = waits(compute, round(timeline.makespan_us * 1000))
    dependencies = Dependencies(graph, strategy)
    chains = dependencies.chains({e.unit: e.finish_ns - e.start_ns for e in timeline.events})
    buckets = [unit for unit in dependencies.units.values() if unit.kind == "bucket"]
    found = []
    for unit in sorted(buckets, key=lambda unit: (events[unit.id].start_ns, unit.id)):
        event = events[unit.id]
        members = set(unit.ops)
        makers = {
            edge.producer
            for op in members
            for edge in dependencies.data_into[op]
            if edge.producer not in members
        }
        home = strategy.group_of
        last = max(makers, key=lambda op: (events[int(home[op])].finish_ns, -op))
        ready_ns = events[int(home[last])].finish_ns
        needed = dependencies.ancestors(unit.id)
        before = [item for item in compute if item.start_ns < ready_ns]
        needed_ns = sum(e.finish_ns - e.start_ns for e in before if e.unit in needed)
        total_ns = sum(e.finish_ns - e.start_ns for e in before)
        found.append(
            BucketExposure(
                unit=unit,
                num_bytes=sum(graph.ops[op].bytes_written for op in unit.ops),
                ready_us=ready_ns / 1000,
                start_us=event.start_ns / 1000,
                finish_us=event.finish_ns / 1000,
                exposed_us=_common_ns(gaps, event) / 1000,
                last_gradient=last,
                chain=_path(chains, int(home[last])),
                chain_us=chains[int(home[last])][0] / 1000,
                needed_us=needed_ns / 1000,
                not_needed_us=(total_ns - needed_ns) / 1000,
            )
        )
    return found


def _path(chains: Mapping[int, tuple[int, int | None]], unit: int) -> tuple[int, ...]:
    path: list[int] = []
    at: int | None = unit
    while at is not None:
        path.append(at)
        at = chains[at][1]
    return tuple(reversed(path))


def _common_ns(gaps: Sequence[tuple[int, int]], event: Event) -> int:
    return sum(
        max(min(end, event.finish_ns) - max(begin, event.start_ns), 0) for begin, end in gaps
    )
