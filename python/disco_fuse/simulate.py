"""Simulation of one training step: one compute stream in emitted order, one for communication."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from disco_fuse import _ffi
from disco_fuse.config import ClusterSpec
from disco_fuse.cost_model.base import CostModel
from disco_fuse.graph import OpGraph
from disco_fuse.strategy import Strategy

STREAMS = ("compute", "communication")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One unit on its stream; times in nanoseconds from the start of the step."""

    unit: int
    stream: str
    start_ns: int
    finish_ns: int


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes that one rank needs for a step; see ``src/simulate/memory.h``.

    Attributes
    ----------
    external_bytes : int
        Parameters, optimizer state, batch and constants.
    bucket_bytes : int
        Buffers into which buckets of several gradients are packed.
    peak_bytes : int
        Both, plus the most that values and kernels need at one time.
    """

    external_bytes: int
    bucket_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What one training step would look like.

    Attributes
    ----------
    events : tuple of Event
        In emitted order; units are named by their representative.
    makespan_us : float
    compute_us : float
        Sum over compute units, without contention.
    allreduce_us : float
        Time during which the communication stream is busy.
    overlap : float
        Share of ``allreduce_us`` during which a compute unit runs; 0 without communication.
    critical_path : tuple of int
        Units each of which started when the one before it ended.
    memory : StepMemory
    """

    events: tuple[Event, ...]
    makespan_us: float
    compute_us: float
    allreduce_us: float
    overlap: float
    critical_path: tuple[int, ...]
    memory: StepMemory

    @property
    def exposed_us(self) -> float:
        """Time in which compute waits for messages: makespan less the times of all kernels."""
        busy = [e.finish_ns - e.start_ns for e in self.events if e.stream == STREAMS[0]]
        return self.makespan_us - sum(busy) / 1e3

    def to_chrome_trace(self, graph: OpGraph, strategy: Strategy) -> str:
        """JSON for chrome://tracing or Perfetto; one row per stream, units named by their ops."""
        units = {unit.id: unit for unit in strategy.units(graph)}
        rows: list[dict[str, Any]] = []
        for event in self.events:
            names = [graph.ops[op].name for op in units[event.unit].ops]
            rows.append(
                {
                    "name": unit_name(names),
                    "ph": "X",
                    "pid": 0,
                    "tid": STREAMS.index(event.stream),
                    "ts": event.start_ns / 1000,
                    "dur": (event.finish_ns - event.start_ns) / 1000,
                    "args": {"unit": event.unit, "ops": names},
                }
            )
        for tid, stream in enumerate(STREAMS):
            args = {"name": stream}
            rows.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": args})
        return json.dumps({"traceEvents": rows})


def unit_name(ops: Sequence[str]) -> str:
    """What a unit of these ops is called where people read it: the first four of them."""
    return "+".join(ops[:4]) + ("+..." if len(ops) > 4 else "")


def schedule(
    graph: OpGraph, strategy: Strategy, cost_model: CostModel, cluster: ClusterSpec
) -> Strategy:
    """The same grouping in list-scheduled order.

    Whenever the compute stream is free it takes, among units whose inputs are there, the most
    urgent: the one that leads to the earliest bucket in production order. See
    ``src/simulate/schedule.h``.

    Raises
    ------
    ValueError
        If the cost model gives no valid time.
    """
    handle = _ffi.function("simulate.schedule")(
        graph._handle,
        strategy.handle_for(graph),
        cost_model._native(graph),
        native_cluster(cluster),
    )
    return Strategy(handle, graph)


def simulate(
    graph: OpGraph, strategy: Strategy, cost_model: CostModel, cluster: ClusterSpec
) -> Timeline:
    """Replay ``strategy`` in its own order.

    Raises
    ------
    ValueError
        If the cost model gives no valid time.
    """
    events, path, totals = (
        _ffi.array(part)
        for part in _ffi.function("simulate.simulate")(
            graph._handle,
            strategy.handle_for(graph),
            cost_model._native(graph),
            native_cluster(cluster),
        )
    )
    makespan, compute, allreduce, overlapped, external, buckets, peak = totals.tolist()
    return Timeline(
        events=tuple(
            Event(unit=unit, stream=STREAMS[stream], start_ns=start, finish_ns=finish)
            for unit, stream, start, finish in events.reshape(-1, 4).tolist()
        ),
        makespan_us=makespan / 1000,
        compute_us=compute / 1000,
        allreduce_us=allreduce / 1000,
        overlap=overlapped / allreduce if allreduce else 0.0,
        critical_path=tuple(path.tolist()),
        memory=StepMemory(external_bytes=external, bucket_bytes=buckets, peak_bytes=peak),
    )


def native_cluster(cluster: ClusterSpec) -> dict[str, Any]:
    """The fields as the C++ side reads them."""
    return {
        "allreduce": asdict(cluster.allreduce),
        "contention_permille": round(cluster.contention * 1000),
    }
