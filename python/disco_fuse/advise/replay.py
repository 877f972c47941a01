"""Replays the steps of a job with other buckets.

    compute   |- forward -|- backward: gradients at their own progress -|..wait..|- optimizer -|
    messages                    |- bucket 0 -||- bucket 1 -|    |- bucket 2 -|

What was measured is turned into progress: compute time without the slowdown beside messages and
without the calls of AllReduces. Other buckets then slow it down elsewhere. A bucket is called when
its last gradient is ready and the bucket before it was called (DDP keeps their order), starts when
the last rank has called it and the message before it is through, and takes the time of the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disco_fuse.advise.job import Job
from disco_fuse.advise.line import Line

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """A job in terms of progress; S steps, R ranks, n gradients; microseconds.

    Attributes
    ----------
    line : Line
    contention : float
        Factor by which compute is slower beside a message.
    gradient_bytes : float[n]
    sent_share : float
        Bytes sent over bytes of gradients.
    begin_us : float[S, R]
        Begin of the rank's step, from that of the first rank.
    ready_us : float[S, R, n]
        Progress at which each gradient is ready; never falls from one to the next.
    backward_us, tail_us : float[S, R]
        Progress at the end of the backward pass, and what follows the last message.
    call_us : float
        What calling an AllReduce takes from compute.
    copy_us_per_byte : float
        Copies out of a bucket, after its message.
    """

    line: Line
    contention: float
    gradient_bytes: Values
    sent_share: float
    begin_us: Values
    ready_us: Values
    backward_us: Values
    tail_us: Values
    call_us: float
    copy_us_per_byte: float

    @classmethod
    def of(cls, job: Job, line: Line, contention: float) -> Replay:
        """From measured steps."""
        called = job.num_ready[None, :] <= np.arange(len(job.gradient_bytes))[:, None]  # n, m
        calls = np.cumsum(job.call_us, axis=2)
        spent_at = np.einsum("srm,nm->srn", job.call_us, called.astype(np.float64))
        ready = _progress(job, job.ready_us, contention) - spent_at
        backward = (
            _progress(job, job.backward_us[:, :, None], contention)[:, :, 0] - calls[:, :, -1]
        )
        # A copy back to a gradient starts when its message is through, or with the backward's end.
        per_byte = float(np.median(job.copy_us)) / float(job.bucket_bytes.sum())
        done = _copied(
            job.backward_us, list(np.moveaxis(job.finish_us, 2, 0)), per_byte * job.bucket_bytes
        )
        return cls(
            line=line,
            contention=contention,
            gradient_bytes=job.gradient_bytes,
            sent_share=job.sent_share,
            begin_us=job.begin_us,
            ready_us=np.maximum.accumulate(np.maximum(ready, 0.0), axis=2),
            backward_us=np.maximum(backward, ready.max(axis=2)),
            tail_us=np.maximum(job.end_us - done, 0.0),
            call_us=float(job.call_us.mean()),
            copy_us_per_byte=per_byte,
        )

    def step_us(self, buckets: Sequence[Sequence[int]]) -> float:
        """Step time: the median over steps of the mean over ranks.

        Parameters
        ----------
        buckets
            Gradients, by their number in order of arrival, of each bucket.
        """
        now, progress = self.begin_us.copy(), np.zeros_like(self.begin_us)
        spans: list[tuple[Values, Values]] = []
        free = np.full(self.begin_us.shape[0], -np.inf)
        sizes = self.sent_share * np.array([self.gradient_bytes[list(b)].sum() for b in buckets])
        ends = []
        for bucket, size in zip(buckets, sizes, strict=True):
            target = np.maximum(self.ready_us[:, :, list(bucket)].max(axis=2), progress)
            now = self._advance(now, target - progress, spans) + self.call_us
            progress = target
            start = np.maximum(now.max(axis=1), free)
            free = start + self.line.time_us(size)
            spans = [(a, b) for a, b in spans if (b > now.min(axis=1, keepdims=True)).any()]
            spans.append((start[:, None], free[:, None]))
            ends.append(free[:, None])
        rest = np.maximum(self.backward_us - progress, 0.0)
        now = self._advance(now, rest, spans)
        done = _copied(now, ends, self.copy_us_per_byte * sizes) + self.tail_us
        return float(np.median((done - self.begin_us).mean(axis=1)))

    def bound_us(self) -> float:
        """No buckets make a faster step, on this line.

        The gradients from the i-th on cannot travel before it is ready on all ranks, and take at
        least one message; the backward pass takes its own time.
        """
        suffix = self.sent_share * np.cumsum(self.gradient_bytes[::-1])[::-1]
        ready = (self.begin_us[:, :, None] + self.ready_us).max(axis=1)  # S, n
        sent = (ready + self.line.latency_us + self.line.us_per_byte * suffix).max(axis=1)
        done = np.maximum(self.begin_us + self.backward_us, sent[:, None]) + self.tail_us
        return float(np.median((done - self.begin_us).mean(axis=1)))

    def _advance(
        self, now: Values, progress: Values, spans: Sequence[tuple[Values, Values]]
    ) -> Values:
        """When each rank has made so much progress; slower inside the spans, which are in order."""
        if self.contention == 1.0:
            return now + progress
        now, left = now.copy(), progress.copy()
        for start, end in spans:
            free = np.minimum(left, np.maximum(start - now, 0.0))
            now, left = now + free, left - free
            inside = np.maximum(end - np.maximum(start, now), 0.0) * (left > 0)
            slow = np.minimum(left, inside / self.contention)
            now, left = now + slow * self.contention, left - slow
        return now + left


def _copied(backward_us: Values, ends: Sequence[Values], copies_us: Values) -> Values:
    """When all buckets have been waited for and copied, one after the other."""
    done = backward_us
    for end, copy in zip(ends, copies_us, strict=True):
        done = np.maximum(done, end) + copy
    return done


def _progress(job: Job, times_us: Values, contention: float) -> Values:
    """Time from the rank's begin, float[S, R, k], less what was lost beside messages."""
    starts, ends = job.flights()
    beside = np.zeros_like(times_us)
    until = np.full(starts.shape[0], -np.inf)
    for index in np.argsort(starts[0]):
        begin, end = np.maximum(starts[:, index], until), ends[:, index]
        until = np.maximum(until, end)
        width = np.maximum(end - begin, 0.0)[:, None, None]
        beside += np.clip(times_us - begin[:, None, None], 0.0, width)
    progress: Values = times_us - job.begin_us[:, :, None] - (1 - 1 / contention) * beside
    return progress
