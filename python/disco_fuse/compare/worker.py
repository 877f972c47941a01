"""The program of one rank: runs every strategy of a comparison in turn, step by step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco_fuse.compare.driver import ComparisonSpec
from disco_fuse.compare.report import PYTORCH_DDP
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, StepEvents, abort_on_error, loopback, mpi
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
    ddp = None
    if spec.with_ddp:
        from disco_fuse.compare.pytorch_ddp import DdpRunner

        ddp = DdpRunner(workload, communicator, Path(spec.rendezvous))
        records[PYTORCH_DDP] = _Record(ddp)
    batches = workload.batches(communicator.rank, communicator.world_size)
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
    result = _gather(records, communicator, spec.num_warmup)
    if ddp is not None:
        ddp.close()
    return result if communicator.rank == 0 else None


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
    results = {}
    for name, record in records.items():
        times = np.array(communicator.allgather(record.times_us))
        losses = np.array(communicator.allgather(record.losses))
        overlaps = communicator.allgather([events.overlap() for events in record.events])
        last = record.events[-1] if record.events else None
        timelines = communicator.allgather(None if last is None else _timeline(last))
        results[name] = {
            "step_times_us": times.max(axis=0)[num_warmup:].tolist(),
            "losses": losses.mean(axis=0).tolist(),
            "overlap": float(np.mean(overlaps)) if record.events else None,
            "timelines": timelines if record.events else None,
        }
    return results


def _timeline(events: StepEvents) -> dict[str, Any]:
    return {"rows": events.rows.tolist(), "kernel_names": list(events.kernel_names)}


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
