"""The program of one rank: runs every strategy of a comparison in turn, step by step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco_fuse.compare.limits import measure_limits
from disco_fuse.compare.spec import ComparisonSpec
from disco_fuse.compare.trace import rank_timeline
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, EventKind, StepEvents, abort_on_error, loopback, mpi
from disco_fuse.workload import load_workload

_NUM_RECORDED_STEPS = 5


class Runner(Protocol):
    """What trains by one strategy."""

    def step(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """One step; the first result is the loss."""


@dataclass
class _Record:
    """What one strategy did on this rank."""

    runner: Runner
    times_us: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    events: list[StepEvents] = field(default_factory=list)


def run_rank(spec: ComparisonSpec, communicator: Communicator) -> dict[str, Any] | None:
    """Measure all strategies of ``spec``; the results of all ranks, on rank 0 only."""
    workload = load_workload(spec.workload)
    with np.load(spec.values) as file:
        values = dict(file)
    records = {
        name: _Record(StepRunner(Path(folder), communicator, values))
        for name, folder in spec.plans.items()
    }
    failed: dict[str, str] = {}
    batches = workload.batches(communicator.rank, communicator.world_size)
    with ExitStack() as stack:
        if spec.ddp:
            from disco_fuse.compare.pytorch_ddp import DdpRunner, process_group

            stack.enter_context(process_group(communicator, Path(spec.rendezvous)))
            for name, options in spec.ddp.items():
                runner = DdpRunner(workload, options)
                reason = runner.compile(next(batches)) if options.compiled else None
                reasons = [text for text in communicator.allgather(reason) if text is not None]
                if reasons:
                    failed[name] = reasons[0]
                else:
                    records[name] = _Record(runner)
        _measure(records, batches, communicator, spec)
    strategies = _gather(records, communicator, spec.num_warmup)
    limits = None
    if spec.limits_of is not None:
        compute = StepRunner(Path(spec.plans[spec.limits_of]), loopback(), values)
        limits = measure_limits(communicator, compute, next(batches), spec.gradient_bytes)
    if communicator.rank != 0:
        return None
    return {"strategies": strategies, "limits": limits, "failed": failed}


def _measure(
    records: dict[str, _Record],
    batches: Iterator[Any],
    communicator: Communicator,
    spec: ComparisonSpec,
) -> None:
    order = list(records)
    for step in range(spec.num_warmup + spec.num_steps):
        batch = next(batches)
        # Another strategy goes first each time: none always runs in the caches of the same other.
        shift = step % len(order)
        for name in order[shift:] + order[:shift]:
            _timed_step(records[name], batch, communicator)
    for _ in range(_NUM_RECORDED_STEPS):
        batch = next(batches)
        for record in records.values():
            communicator.barrier()
            if isinstance(record.runner, StepRunner):
                record.events.append(record.runner.recorded_step(batch))


def _timed_step(record: _Record, batch: Any, communicator: Communicator) -> None:
    communicator.barrier()
    begin = time.perf_counter()
    loss = record.runner.step(batch)[0]
    record.times_us.append((time.perf_counter() - begin) * 1e6)
    record.losses.append(float(loss))


def _gather(
    records: dict[str, _Record], communicator: Communicator, num_warmup: int
) -> dict[str, Any]:
    """Step times of the slowest rank, mean losses and overlaps, the timelines of all ranks."""
    offset = communicator.clock_offset()
    results = {}
    for name, record in records.items():
        times = np.array(communicator.allgather(record.times_us))
        losses = np.array(communicator.allgather(record.losses))
        overlaps = communicator.allgather([events.overlap() for events in record.events])
        last = record.events[-1] if record.events else None
        timelines = communicator.allgather(None if last is None else rank_timeline(last, offset))
        results[name] = {
            "step_times_us": times.max(axis=0)[num_warmup:].tolist(),
            "losses": losses.mean(axis=0).tolist(),
            "overlap": float(np.mean(overlaps)) if record.events else None,
            "timelines": timelines if record.events else None,
            "breakdown": _breakdown(record, communicator),
            "unit_times": _unit_times(record, communicator),
        }
    return results


def _breakdown(record: _Record, communicator: Communicator) -> dict[str, Any] | None:
    """Fields of a Breakdown, the same on every rank."""
    if not isinstance(record.runner, StepRunner):
        return None
    rows = [events.breakdown_us() for events in record.events]
    medians = np.mean(communicator.allgather(np.median(rows, axis=0)), axis=0).tolist()
    copied = max(communicator.allgather(record.runner.copied_bytes()))
    names = ("kernels_us", "exposed_us", "overhead_us")
    return {**dict(zip(names, medians, strict=True)), "copied_bytes": copied}


def _unit_times(record: _Record, communicator: Communicator) -> dict[str, list[float]] | None:
    """Fields of a UnitTimes: medians over the recorded steps, means over ranks."""
    if not isinstance(record.runner, StepRunner):
        return None
    kinds = {"kernels_us": EventKind.KERNEL, "messages_us": EventKind.ALLREDUCE}
    result = {}
    for name, kind in {**kinds, "waits_us": EventKind.WAIT}.items():
        rows = [_durations_us(events, kind) for events in record.events]
        medians = np.median(rows, axis=0)
        result[name] = np.mean(communicator.allgather(medians), axis=0).tolist()
    return result


def _durations_us(events: StepEvents, kind: EventKind) -> NDArray[np.float64]:
    """Of the kernels in their order, or of the buckets by their number."""
    rows = events.of(kind)
    if kind != EventKind.KERNEL:
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
    durations: NDArray[np.float64] = (rows[:, 3] - rows[:, 2]) / 1e3
    return durations


def main(arguments: Sequence[str]) -> None:
    """``worker.py SPEC``: run this rank's part."""
    spec = ComparisonSpec.read(Path(arguments[0]))
    communicator = loopback() if spec.num_ranks == 1 else mpi()
    with abort_on_error(communicator):
        if communicator.world_size != spec.num_ranks:
            raise ValueError(
                f"the comparison is for {spec.num_ranks} ranks, but {communicator.world_size} run"
            )
        result = run_rank(spec, communicator)
        if result is not None:
            Path(spec.results).write_text(json.dumps(result), encoding="utf-8")
    communicator.close()


if __name__ == "__main__":
    main(sys.argv[1:])
