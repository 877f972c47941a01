"""What no strategy can pass: compute alone, communication alone, and both at once.

    compute       |###########|                   the step without its messages
    communication |=================|             all gradients in one message, nothing else
    together      |##################|            the step while a longer message is under way

A transport on the CPU takes turns with the kernels, so compute beside a transport that is always
busy is longer than compute alone: no overlap hides that.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from disco_fuse.runtime import Communicator, measure_allreduce, time_beside

_NUM_REPEATS = 9
# The message beside compute must outlast it; it is lengthened by half of itself until it does.
_LONGER = 1.5


class Runner(Protocol):
    """A step without messages."""

    def step(self, batch: Any) -> Any:
        """One step."""


def measure_limits(
    communicator: Communicator, compute: Runner, batch: Any, num_bytes: int
) -> dict[str, float]:
    """Medians of the slowest rank, microseconds; the same on every rank.

    Parameters
    ----------
    compute : Runner
        The step of one rank without AllReduces.
    num_bytes : int
        Of all gradients.

    Returns
    -------
    dict
        ``compute_us``; ``communication_us``; ``beside_us``: compute beside a transport at full
        rate; ``fo_us``: full overlap, the larger of the first two; ``fo_cpu_us``: the larger of
        ``beside_us`` and ``communication_us``.

    Raises
    ------
    ValueError
        If there is one rank only, which sends nothing.
    """
    if communicator.world_size < 2:
        raise ValueError("the limits of one rank are its compute; at least 2 ranks are needed")
    ((_, communication_us, _),) = measure_allreduce(communicator, [num_bytes], _NUM_REPEATS)
    alone = [_compute(communicator, compute, batch) for _ in range(_NUM_REPEATS + 1)][1:]
    compute_us = _median_of_slowest(communicator, alone)
    size = max(num_bytes, int(num_bytes * _LONGER * compute_us / communication_us))
    while True:
        rows = [
            time_beside(communicator, lambda: compute.step(batch), size)
            for _ in range(_NUM_REPEATS)
        ]
        outlasted = min(communicator.allgather(min(message - step for step, message in rows)))
        if outlasted > 0:
            break
        size = int(size * _LONGER)
    beside_us = _median_of_slowest(communicator, [step for step, _ in rows])
    return {
        "compute_us": compute_us,
        "communication_us": communication_us,
        "beside_us": beside_us,
        "fo_us": max(compute_us, communication_us),
        "fo_cpu_us": max(beside_us, communication_us),
    }


def _median_of_slowest(communicator: Communicator, times_us: list[float]) -> float:
    return float(np.median(np.max(communicator.allgather(times_us), axis=0)))


def _compute(communicator: Communicator, compute: Runner, batch: Any) -> float:
    communicator.barrier()
    begin = time.perf_counter()
    compute.step(batch)
    return (time.perf_counter() - begin) * 1e6
