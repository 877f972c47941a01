"""Times AllReduce through the transport that training uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disco_fuse.runtime.communicator import Communicator
from disco_fuse.runtime.events import EventKind
from disco_fuse.runtime.session import Session, allreduce_start, allreduce_wait

NUM_WARMUP = 2


def measure_allreduce(
    communicator: Communicator, sizes_bytes: Sequence[int], repeats: int
) -> list[tuple[int, float, float]]:
    """Measure one AllReduce at a time, all ranks entering together.

    Every repetition starts behind a barrier: back to back, one rank's last message delays the
    next AllReduce of the others, and the times come out about twice too high.

    Parameters
    ----------
    communicator
        All its ranks call this with the same arguments.
    sizes_bytes
        Message sizes; each is rounded down to whole float32 elements, at least one.
    repeats
        Repetitions per size, after two that do not count.

    Returns
    -------
    list of (bytes, median in us, spread in us)
        The same on every rank. The time of a repetition is that of the slowest rank; the spread
        is the interquartile range.

    Raises
    ------
    ValueError
        If `repeats` is below 1 or a size is below 4 bytes.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; allowed: at least 1")
    for size in sizes_bytes:
        if size < 4:
            raise ValueError(f"a size is {size} bytes; allowed: at least 4 (one float32)")
    session = Session(communicator, max_events=16)
    results = []
    for size in sizes_bytes:
        array = np.ones(size // 4, dtype=np.float32)
        times_us = [_time_one(session, array) for _ in range(NUM_WARMUP + repeats)][NUM_WARMUP:]
        slowest = np.max(np.array(communicator.allgather(times_us)), axis=0)
        low, median, high = np.percentile(slowest, [25, 50, 75])
        results.append((array.nbytes, float(median), float(high - low)))
    return results


def _time_one(session: Session, array: np.ndarray) -> float:
    session.communicator.barrier()
    with session.step():
        allreduce_start(0, array)
        allreduce_wait(0, array)
    return session.events().total_us(EventKind.ALLREDUCE)
