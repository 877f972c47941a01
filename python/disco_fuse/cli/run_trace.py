"""What ``disco-fuse run --trace`` adds to a run: every kernel recorded, on all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from disco_fuse.compare.trace import measured_trace, rank_timeline
from disco_fuse.files import write_text
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import StepEvents, on_all_ranks
from disco_fuse.trainer.events import Event


class StepRecord:
    """Where the time of each step went, and the events of the last one.

    Called with the events of a trainer whose steps record their kernels.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._rows: list[tuple[float, float, float]] = []
        self._last: StepEvents | None = None

    def __call__(self, event: Event) -> None:
        """Take the record of the step that has just been done."""
        if event["event"] == "step":
            self._last = self._runner.events()
            self._rows.append(self._last.breakdown_us())

    def finish(self, path: Path) -> dict[str, Any] | None:
        """Write the trace of the last step; all ranks call this.

        Returns
        -------
        dict or None
            None without any step. Otherwise medians over the steps and means over the ranks:
            ``kernels_ms``, ``exposed_ms`` (waiting for buckets), ``overhead_ms`` (the rest);
            ``simulated_exposed_ms``, null if the plan does not say; ``clock_error_us``, by which
            lanes of different ranks may be shifted; ``file``.

        Raises
        ------
        ValueError
            On every rank, if rank 0 cannot write the file.
        """
        communicator = self._runner.communicator
        offset = communicator.clock_offset()
        if self._last is None:
            return None
        timelines = communicator.allgather(rank_timeline(self._last, offset), "the trace")
        medians = communicator.allgather(np.median(self._rows, axis=0), "the trace")
        errors_ns = communicator.allgather(offset.error_ns, "the trace")

        def write() -> bool:
            if communicator.rank == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(measured_trace(timelines)))
            return True

        on_all_ranks(communicator, write, f"the trace {path}")
        kernels_us, exposed_us, overhead_us = np.mean(medians, axis=0).tolist()
        simulated_us = self._runner.plan.predicted.get("exposed_us")
        return {
            "kernels_ms": kernels_us / 1e3,
            "exposed_ms": exposed_us / 1e3,
            "overhead_ms": overhead_us / 1e3,
            "simulated_exposed_ms": None if simulated_us is None else simulated_us / 1e3,
            "clock_error_us": max(errors_ns) / 1e3,
            "file": str(path),
        }
