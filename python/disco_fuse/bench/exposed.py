"""Why a step is longer than its compute: the work that overlaps with nothing.

compute        |##########|####|....|##|......|#|       dots: waits for an AllReduce
communication             |====|====|  |======|
               `- head --'             `-tail-'
"""

from __future__ import annotations

from typing import Any

from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Event, Timeline
from disco_fuse.strategy import Strategy


def exposed(graph: OpGraph, strategy: Strategy, timeline: Timeline) -> dict[str, Any]:
    """Where one stream works alone, microseconds.

    Returns
    -------
    dict
        ``head_us``: compute before the first AllReduce starts. ``waiting_us``: the compute stream
        has nothing to do before the step is over. ``longest_wait_us``: the longest such time in one
        piece, and of the AllReduce that ends it ``bytes``, ``ready_us`` (when its last gradient is
        there) and ``gradient``. Without AllReduces all are 0, and the name is empty.
    """
    compute = [event for event in timeline.events if event.stream == "compute"]
    messages = [event for event in timeline.events if event.stream == "communication"]
    head_ns = min((event.start_ns for event in messages), default=0)
    waits = _waits(compute, round(timeline.makespan_us * 1000))
    longest = max(waits, key=lambda wait: wait[1] - wait[0], default=(0, 0))
    last = max(
        (event for event in messages if event.start_ns < longest[1]),
        key=lambda event: event.finish_ns,
        default=None,
    )
    return {
        "head_us": head_ns / 1000,
        "waiting_us": sum(end - begin for begin, end in waits) / 1000,
        "longest_wait_us": (longest[1] - longest[0]) / 1000,
        **_message(graph, strategy, timeline, last),
    }


def explain(found: dict[str, Any], makespan_us: float) -> str:
    """:func:`exposed` in words."""
    if not found["gradient"]:
        return "nothing is sent"
    return (
        f"of {makespan_us / 1e3:.1f} ms, {found['head_us'] / 1e3:.1f} are compute before the first "
        f"AllReduce can start, and for {found['waiting_us'] / 1e3:.1f} compute waits; for "
        f"{found['longest_wait_us'] / 1e3:.1f} of these it waits in one piece for "
        f"{found['bytes'] / 1e6:.1f} MB with {found['gradient']}, ready at "
        f"{found['ready_us'] / 1e3:.1f} ms"
    )


def _waits(compute: list[Event], end_ns: int) -> list[tuple[int, int]]:
    waits, free = [], 0
    for event in compute:
        if event.start_ns > free:
            waits.append((free, event.start_ns))
        free = event.finish_ns
    return [*waits, (free, end_ns)] if end_ns > free else waits


def _message(
    graph: OpGraph, strategy: Strategy, timeline: Timeline, event: Event | None
) -> dict[str, Any]:
    if event is None:
        return {"bytes": 0, "ready_us": 0.0, "gradient": ""}
    members = {unit.id: unit.ops for unit in strategy.units(graph)}[event.unit]
    home = strategy.group_of
    finish = {item.unit: item.finish_ns for item in timeline.events}
    producers = [edge.producer for edge in graph.edges if edge.consumer in set(members)]
    return {
        "bytes": sum(graph.ops[op].bytes_written for op in members),
        "ready_us": max(finish[int(home[op])] for op in producers) / 1000,
        "gradient": max((graph.ops[op] for op in members), key=lambda op: op.bytes_written).name,
    }
