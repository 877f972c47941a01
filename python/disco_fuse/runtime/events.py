"""What happened when during one step, as recorded by the C++ session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class EventKind(IntEnum):
    """What an event was; the numbers are those of src/runtime/recorder.h."""

    ALLREDUCE = 0  # a bucket on the wire, from its first to its last message
    START = 1  # the main thread packs a bucket and hands it over
    WAIT = 2  # the main thread waits for a bucket and unpacks it
    KERNEL = 3  # a kernel on the main thread; only if kernels are recorded
    STEP = 4  # the whole step


@dataclass(frozen=True, kw_only=True, eq=False)
class StepEvents:
    """Events of one step on one rank.

    Attributes
    ----------
    rows
        ``[num_events, 4]``: kind, id, start and finish in ns since the step began, by start.
        The id is the bucket's number, or the index of a kernel's name in `kernel_names`.
    kernel_names
        Names of the recorded kernels.
    num_dropped
        Events that did not fit into the session's `max_events`.
    begin_ns
        When the step began, as ``time.monotonic_ns`` of this host, to within microseconds.
    """

    rows: npt.NDArray[np.int64]
    kernel_names: tuple[str, ...]
    num_dropped: int
    begin_ns: int = 0

    def of(self, kind: EventKind) -> npt.NDArray[np.int64]:
        """The rows of one kind."""
        rows: npt.NDArray[np.int64] = self.rows[self.rows[:, 0] == kind]
        return rows

    def total_us(self, kind: EventKind) -> float:
        """Time spent in all events of `kind`, in microseconds."""
        rows = self.of(kind)
        return float((rows[:, 3] - rows[:, 2]).sum()) / 1e3

    def breakdown_us(self) -> tuple[float, float, float]:
        """Where the step's time went, with kernels recorded, in microseconds.

        Returns
        -------
        kernels, exposed, overhead
            Inside kernels; waiting for buckets; the rest, which starts kernels and buckets.
        """
        kernels, exposed = self.total_us(EventKind.KERNEL), self.total_us(EventKind.WAIT)
        return kernels, exposed, self.total_us(EventKind.STEP) - kernels - exposed

    def overlap(self) -> float:
        """Share of the AllReduce time, 0 to 1, in which this rank computed; 0 without any.

        With kernels recorded: in which a kernel ran. Otherwise: in which the main thread was in
        the step and not in a wait.
        """
        allreduce = self.of(EventKind.ALLREDUCE)[:, 2:]
        total_ns = int((allreduce[:, 1] - allreduce[:, 0]).sum())
        if total_ns == 0:
            return 0.0
        kernels = self.of(EventKind.KERNEL)[:, 2:]
        if len(kernels):
            return common_ns(allreduce, kernels) / total_ns
        step = self.of(EventKind.STEP)[:, 2:]
        waits = self.of(EventKind.WAIT)[:, 2:]
        return (common_ns(allreduce, step) - common_ns(allreduce, waits)) / total_ns


def common_ns(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    """Length of the intersection of two lists of intervals.

    Parameters
    ----------
    a, b
        ``[num, 2]``, sorted; the intervals of one list do not overlap each other.
    """
    total = i = j = 0
    while i < len(a) and j < len(b):
        total += max(0, int(min(a[i, 1], b[j, 1])) - int(max(a[i, 0], b[j, 0])))
        if a[i, 1] <= b[j, 1]:
            i += 1
        else:
            j += 1
    return total
