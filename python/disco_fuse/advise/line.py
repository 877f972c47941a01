"""The AllReduce line of a job: latency_us + us_per_byte * bytes, fitted to its own messages.

Gloo has two threads, so two messages may share the link. Each then takes longer, but what it got of
the link says what it takes alone: while k messages are under way, each gets 1 / k of the time::

    message 0  |------------|
    message 1          |----------|
    got by 0   |-- 1 --|1/2 |              NCCL's messages follow each other: each gets all of it
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disco_fuse.advise.job import Job
from disco_fuse.allreduce import AllReduceModel

# With the trace of one rank a message's time includes waiting for ranks that come later; the lower
# quartile over steps has least of it and still is no single lucky step.
_ONE_RANK_QUANTILE, _ALL_RANKS_QUANTILE = 0.25, 0.5
_WIDE = 4.0  # sizes that differ by less than this factor tell little about the latency


@dataclass(frozen=True, kw_only=True)
class Line:
    """A fitted line, and how much the fit had to go by.

    Attributes
    ----------
    latency_us, us_per_byte : float
    sizes_bytes : tuple of float
        Different sizes of messages, ascending.
    error : float
        Median of the relative distance of a message from the line.
    latency_given : bool
        Whether the latency was not fitted, but stated by the user.
    """

    latency_us: float
    us_per_byte: float
    sizes_bytes: tuple[float, ...]
    error: float
    latency_given: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether all messages were of nearly one size."""
        return self.sizes_bytes[-1] < _WIDE * self.sizes_bytes[0]

    def time_us(self, num_bytes: float) -> float:
        """Of one message."""
        return self.latency_us + self.us_per_byte * num_bytes


def fit_line(job: Job, latency_us: float | None = None) -> Line | None:
    """Fit the line; robust against outliers (Theil-Sen, :meth:`AllReduceModel.fit`).

    Parameters
    ----------
    latency_us : float, optional
        If given, only the bandwidth is fitted.

    Returns
    -------
    Line or None
        None if all messages have one size, which tells no latency, and none is given.
    """
    points = _points(job)
    sizes = tuple(sorted({size for size, _ in points}))
    given = latency_us is not None
    if latency_us is None:
        if len(sizes) < 2:
            return None
        model = AllReduceModel.fit(
            [size for size, _ in points], [time for _, time in points], threshold_bytes=0
        )
        latency_us, slope = model.large_latency_us, model.large_us_per_byte
    if given or latency_us == 0:
        # The slope of a line whose latency was cut off at 0 is too steep.
        rest = _step_total_us(job) - latency_us * len(job.bucket_bytes)
        slope = max(rest, 0.0) / float(job.bucket_bytes.sum())
    else:
        # Medians of single messages add up to less than a step of them takes: a few are slow.
        scale = _step_total_us(job) / sum(
            latency_us + slope * size for size in job.bucket_bytes.tolist()
        )
        latency_us, slope = latency_us * scale, slope * scale
    errors = [abs((latency_us + slope * size) / time - 1) for size, time in points]
    return Line(
        latency_us=latency_us,
        us_per_byte=slope,
        sizes_bytes=sizes,
        error=float(np.median(errors)),
        latency_given=given,
    )


def _step_total_us(job: Job) -> float:
    """Time that the messages of a step take together."""
    got = [_got(start, end) for start, end in zip(*job.flights(), strict=True)]
    return float(np.quantile(np.sum(got, axis=1), _quantile(job)))


def _quantile(job: Job) -> float:
    return _ONE_RANK_QUANTILE if len(job.names) == 1 else _ALL_RANKS_QUANTILE


def _points(job: Job) -> list[tuple[float, float]]:
    """Size and time: one for each bucket, and for each size of the other messages."""
    quantile = _quantile(job)
    got = [_got(start, end) for start, end in zip(*job.flights(), strict=True)]
    times = np.quantile(got, quantile, axis=0)
    points = list(zip(job.bucket_bytes.tolist(), times.tolist(), strict=True))
    others: dict[int, list[float]] = defaultdict(list)
    for size, time in job.others:
        others[size].append(time)
    points += [(float(size), float(np.quantile(row, quantile))) for size, row in others.items()]
    return [(size, time) for size, time in points if time > 0]


def _got(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> list[float]:
    """Time that each message of a step had the link, by equal shares."""
    moments = np.unique([*starts, *ends])
    middles = (moments[1:] + moments[:-1]) / 2
    active = (starts[:, None] <= middles) & (middles < ends[:, None])  # messages, intervals
    shares = np.diff(moments) / np.maximum(active.sum(axis=0), 1)
    times: list[float] = (active * shares).sum(axis=1).tolist()
    return times
