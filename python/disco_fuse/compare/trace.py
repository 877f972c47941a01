"""Measured timelines in the Chrome trace format, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disco_fuse.runtime import ClockOffset, EventKind, StepEvents

# Thread ids of the trace: what happens on the main thread, what on the communication thread.
_LANES = {
    EventKind.STEP: (0, "step"),
    EventKind.KERNEL: (1, "compute"),
    EventKind.START: (1, "compute"),
    EventKind.WAIT: (1, "compute"),
    EventKind.ALLREDUCE: (2, "communication"),
}


def rank_timeline(events: StepEvents, offset: ClockOffset) -> dict[str, Any]:
    """One rank's part of :func:`measured_trace`, made of what JSON knows.

    Parameters
    ----------
    events : StepEvents
    offset : ClockOffset
        Of that rank.
    """
    return {
        "rows": events.rows.tolist(),
        "kernel_names": list(events.kernel_names),
        "begin_ns": events.begin_ns + offset.offset_ns,
    }


def measured_trace(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One process per rank, with lanes for the step, its kernels and its AllReduces.

    Parameters
    ----------
    ranks : sequence of dict
        What :func:`rank_timeline` returned, by rank.

    Returns
    -------
    dict
        ``{"traceEvents": [...]}``, times in microseconds since the first rank began the step.
    """
    events: list[dict[str, Any]] = []
    first_ns = min(timeline["begin_ns"] for timeline in ranks)
    for rank, timeline in enumerate(ranks):
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        for lane, label in sorted(set(_LANES.values())):
            events.append(_name("thread_name", rank, lane, label))
        begin_ns = timeline["begin_ns"] - first_ns
        for kind_id, number, start_ns, finish_ns in timeline["rows"]:
            kind = EventKind(kind_id)
            is_kernel = kind == EventKind.KERNEL
            name = timeline["kernel_names"][number] if is_kernel else kind.name.lower()
            events.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": _LANES[kind][0],
                    "ts": (begin_ns + start_ns) / 1e3,
                    "dur": (finish_ns - start_ns) / 1e3,
                    "name": name,
                    "args": {} if is_kernel else {"bucket": number},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(what: str, pid: int, tid: int, label: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": label}}
