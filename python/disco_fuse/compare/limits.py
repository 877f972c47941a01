"""What no strategy can pass: compute alone, communication alone, and both at once.

    compute       |###########|                   the step without its messages
    communication |=================|             all gradients in one message, nothing else
    together      |##################|            the step while a longer message is under way

A transport on the CPU takes turns with the kernels, so compute beside a transport that is always
busy is longer than compute alone: no overlap hides that.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from disco_fuse.runtime import (
    Communicator,
    measure_allreduce,
    outlasting,
    time_alone,
    time_beside,
)

_NUM_REPEATS = 9
# The messages beside compute must outlast it.
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

    def work() -> None:
        compute.step(batch)

    alone = [time_alone(communicator, work) for _ in range(_NUM_REPEATS + 1)][1:]
    compute_us = _median_of_slowest(communicator, alone)
    size = max(num_bytes, int(num_bytes * _LONGER * compute_us / communication_us))
    rows = outlasting(
        communicator,
        size,
        lambda size: [time_beside(communicator, work, size) for _ in range(_NUM_REPEATS)],
    )
    beside_us = _median_of_slowest(communicator, [step_us for step_us, _ in rows])
    return {
        "compute_us": compute_us,
        "communication_us": communication_us,
        "beside_us": beside_us,
        "fo_us": max(compute_us, communication_us),
        "fo_cpu_us": max(beside_us, communication_us),
    }


def _median_of_slowest(communicator: Communicator, times_us: list[float]) -> float:
    return float(np.median(np.max(communicator.allgather(times_us), axis=0)))
