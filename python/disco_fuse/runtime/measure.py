"""Times AllReduce through the transport that training uses, alone and while the ranks compute.

    alone       main thread   start | wait ........ |            communication  |==|
    computing   main thread   start | units of work .......|     communication  |====|
                              `---- longer than without messages: what they take from compute

The transport has no core of its own: while kernels run, it takes turns with them, so a message
takes longer, and what it takes from them the step pays even where the message is hidden.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from disco_fuse.runtime.communicator import Communicator
from disco_fuse.runtime.events import EventKind
from disco_fuse.runtime.session import Session, allreduce_start, allreduce_wait

NUM_WARMUP = 2
# Messages of one run beside compute: many small ones, since one alone drowns in the noise.
_MOST_MESSAGES = 16
_TIME_OF_MESSAGES_US = 5_000.0
# Compute lasts this much longer than its messages take alone: they take longer beside compute.
_COMPUTE_FACTOR = 3.0
_LEAST_COMPUTE_US = 5_000.0
# What is sent beside other work goes in messages of at most this size.
_BESIDE_BYTES = 16 * 2**20
# What is to outlast the work beside it is made this much longer than seems to be enough.
_LONGER = 1.5


@dataclass(frozen=True, kw_only=True)
class MessageCost:
    """What AllReduces of one size cost a step whose ranks compute.

    Attributes
    ----------
    num_bytes : int
    flight_us : float
        From a message's start to its end, on the communication thread.
    stolen_us : float
        By which one message makes the computation beside it longer; never negative.
    """

    num_bytes: int
    flight_us: float
    stolen_us: float


def measure_allreduce(
    communicator: Communicator, sizes_bytes: Sequence[int], repeats: int
) -> list[tuple[int, float, float]]:
    """Measure one AllReduce at a time, all ranks entering together and doing nothing else.

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
    _check(sizes_bytes, repeats)
    session = Session(communicator, max_events=16)
    results = []
    for size in sizes_bytes:
        array = np.ones(size // 4, dtype=np.float32)
        times_us = [_time_one(session, array) for _ in range(NUM_WARMUP + repeats)][NUM_WARMUP:]
        slowest = np.max(np.array(communicator.allgather(times_us)), axis=0)
        low, median, high = np.percentile(slowest, [25, 50, 75])
        results.append((array.nbytes, float(median), float(high - low)))
    return results


def measure_beside_compute(
    communicator: Communicator, sizes_bytes: Sequence[int], repeats: int
) -> list[MessageCost]:
    """Measure AllReduces while all ranks compute.

    Of each size some messages are sent, evenly spaced, during a computation that is long enough to
    hide them; the same computation without messages is measured in turn with it. The computation
    alternates between arithmetic in the first cache and copies that leave the second one.

    Parameters, errors
    ------------------
    As for :func:`measure_allreduce`.

    Returns
    -------
    list of MessageCost
        From lower quartiles over the repetitions (whatever else runs on the machine only ever adds
        to a time) of means over ranks; the same on every rank.
    """
    session = Session(communicator, max_events=2 * _MOST_MESSAGES)
    work = _Work()
    results = []
    for size, alone_us, _ in measure_allreduce(communicator, sizes_bytes, min(repeats, 3)):
        num_messages = int(np.clip(_TIME_OF_MESSAGES_US / alone_us, 1, _MOST_MESSAGES))
        compute_us = max(_COMPUTE_FACTOR * num_messages * alone_us, _LEAST_COMPUTE_US)
        unit_us = max(communicator.allgather(work.unit_us))
        num_units = math.ceil(compute_us / unit_us)
        arrays = [np.ones(size // 4, dtype=np.float32) for _ in range(num_messages)]
        rows = []
        for _ in range(1 + repeats):
            without_us, _ = _compute(session, work, num_units, [])
            rows.append((without_us, *_compute(session, work, num_units, arrays)))
        means = np.mean(communicator.allgather(rows[1:]), axis=0)
        without_us, with_us, flight_us = np.percentile(means, 25, axis=0).tolist()
        results.append(
            MessageCost(
                num_bytes=arrays[0].nbytes,
                flight_us=flight_us / num_messages,
                stolen_us=max(with_us - without_us, 0.0) / num_messages,
            )
        )
    return results


def time_alone(communicator: Communicator, work: Callable[[], Any]) -> float:
    """Microseconds of work that sends nothing; all ranks enter together."""
    communicator.barrier()
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6


def time_beside(
    communicator: Communicator, work: Callable[[], Any], num_bytes: int
) -> tuple[float, float]:
    """Time work while the transport is busy; all ranks enter together.

    Parameters
    ----------
    work : callable
        Sends nothing itself.
    num_bytes : int
        Sent beside it in float32, in messages of at most 16 MiB; at least 4.

    Returns
    -------
    tuple of float
        When the work was done and when the last message had arrived, microseconds from the start.
    """
    num_messages = -(-num_bytes // _BESIDE_BYTES)
    # One after the other the messages may share their memory: the ranks hold the same zeros.
    array = np.zeros(num_bytes // num_messages // 4, np.float32)
    session = Session(communicator, max_events=4 * num_messages)
    communicator.barrier()
    begin = time.perf_counter()
    with session.step():
        for bucket in range(num_messages):
            allreduce_start(bucket, array)
        work()
        work_us = (time.perf_counter() - begin) * 1e6
        for bucket in range(num_messages):
            allreduce_wait(bucket, array)
    arrived_ns = session.events().of(EventKind.ALLREDUCE)[:, 3].max()
    return work_us, float(arrived_ns) / 1e3


def outlasting(
    communicator: Communicator, num_bytes: int, measure: Callable[[int], list[tuple[float, ...]]]
) -> list[tuple[float, ...]]:
    """Measure work beside messages that are under way for longer than it; all ranks call this.

    Parameters
    ----------
    num_bytes : int
        To begin with; lengthened until no rank's work outlasts the messages beside it.
    measure : callable
        Of a number of bytes; returns rows that end with the two times of :func:`time_beside`.

    Returns
    -------
    list of tuple
        The rows of the last number of bytes.
    """
    while True:
        rows = measure(num_bytes)
        ratios = [arrived_us / work_us for *_, work_us, arrived_us in rows]
        least = min(communicator.allgather(min(ratios)))
        if least > 1:
            return rows
        num_bytes = int(num_bytes * _LONGER / least)


def _check(sizes_bytes: Sequence[int], repeats: int) -> None:
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; allowed: at least 1")
    for size in sizes_bytes:
        if size < 4:
            raise ValueError(f"a size is {size} bytes; allowed: at least 4 (one float32)")


def _time_one(session: Session, array: np.ndarray) -> float:
    session.communicator.barrier()
    with session.step():
        allreduce_start(0, array)
        allreduce_wait(0, array)
    return session.events().total_us(EventKind.ALLREDUCE)


class _Work:
    """A computation in equal units of some tens of microseconds."""

    _CACHED = 128  # squared floats: 64 KiB a matrix
    _STREAMED = 2**17  # floats: 512 KiB an array, several in turn
    _NUM_STREAMS = 4

    def __init__(self) -> None:
        self._matrix = np.full((self._CACHED, self._CACHED), 1e-3, np.float32)
        self._product = np.empty_like(self._matrix)
        self._source = np.ones(self._STREAMED, np.float32)
        self._sinks = [np.empty_like(self._source) for _ in range(self._NUM_STREAMS)]
        self.run(self._NUM_STREAMS)
        times_us = []
        for _ in range(9):
            begin = time.perf_counter()
            self.run(self._NUM_STREAMS)
            times_us.append((time.perf_counter() - begin) * 1e6 / self._NUM_STREAMS)
        self.unit_us = float(np.median(times_us))

    def run(self, num_units: int) -> None:
        for index in range(num_units):
            np.dot(self._matrix, self._matrix, out=self._product)
            np.copyto(self._sinks[index % self._NUM_STREAMS], self._source)


def _compute(
    session: Session, work: _Work, num_units: int, arrays: Sequence[np.ndarray]
) -> tuple[float, float]:
    """(time of the computation, time of all messages), microseconds.

    The last message starts when two thirds are over, so that it ends before the computation does.
    """
    spaced = num_units if not arrays else (2 * num_units) // (3 * len(arrays))
    session.communicator.barrier()
    begin = time.perf_counter()
    with session.step():
        for bucket, array in enumerate(arrays):
            allreduce_start(bucket, array)
            work.run(spaced)
        work.run(num_units - spaced * len(arrays))
        end = time.perf_counter()
        for bucket, array in enumerate(arrays):
            allreduce_wait(bucket, array)
    return (end - begin) * 1e6, session.events().total_us(EventKind.ALLREDUCE)
