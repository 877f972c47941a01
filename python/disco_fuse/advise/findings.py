"""What traces say of a job as it is, and what they could not tell."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse.advise.job import Job
from disco_fuse.advise.line import Line
from disco_fuse.tensor_fusion import MIB

_FEW_STEPS = 3
_BAD_REPLAY = 0.05
_BAD_LINE = 0.15
_IDLE = 0.3
_UNSTEADY = 0.1


def measured_figures(job: Job) -> dict[str, float]:
    """Figures of the job as it runs; times in microseconds, medians over steps.

    ``compute_us`` is the step without waiting for messages after the backward pass, hence with
    whatever else the ranks wait for, the mean of what :func:`rank_rows` says of each;
    ``allreduce_us`` is how long some message is under way.
    """
    starts, ends = job.flights()
    exposed = job.exposed_us()
    lengths = (job.end_us - job.begin_us).mean(axis=1)
    low, high = np.quantile(lengths, (0.1, 0.9))
    figures = {
        "step_us": job.step_us,
        "step_spread": float((high - low) / job.step_us),
        "compute_us": float(_compute_us(job).mean()),
        "allreduce_us": float(np.median([_union(s, e) for s, e in zip(starts, ends, strict=True)])),
        "exposed_us": float(np.median(exposed.mean(axis=1))),
        "steps": float(job.num_steps),
        "gradient_mb": float(job.gradient_bytes.sum() / MIB),
    }
    if job.gpu:
        figures["kernels_us"] = float(np.median(job.busy_us.mean(axis=1)))
    return figures


def rank_rows(job: Job) -> tuple[dict[str, Any], ...]:
    """Per trace: its rank, its own compute, and how long its messages waited for later ranks."""
    compute = _compute_us(job)
    waited = np.median(job.waited_us(), axis=0)
    return tuple(
        {"trace": name, "rank": rank, "compute_us": float(c), "waited_us": float(w)}
        for name, rank, c, w in zip(job.names, job.ranks, compute, waited, strict=True)
    )


def _compute_us(job: Job) -> npt.NDArray[np.float64]:
    """Per rank the median over steps, float[R]."""
    alone: npt.NDArray[np.float64] = np.median(job.end_us - job.begin_us - job.exposed_us(), axis=0)
    return alone


def own_buckets(job: Job) -> list[list[int]]:
    """The buckets of the job, by their sizes in order of arrival."""
    arrived = job.sent_share * np.cumsum(job.gradient_bytes)
    ends = np.cumsum(job.bucket_bytes)
    cuts = [0, *(int(np.argmin(np.abs(arrived - end))) + 1 for end in ends)]
    cuts[-1] = len(arrived)
    return [list(range(a, b)) for a, b in pairwise(cuts) if b > a]


def in_arrival_order(job: Job) -> bool:
    """Whether each bucket holds the gradients that arrive next, as after DDP's rebuild."""
    arrived = job.sent_share * np.cumsum(job.gradient_bytes)[job.num_ready - 1]
    return bool(np.allclose(np.cumsum(job.bucket_bytes), arrived, rtol=1e-3))


def notes(job: Job, line: Line | None, replayed_us: float | None) -> tuple[str, ...]:
    """What the traces could not tell, and how far predictions can be trusted."""
    return (*_notes_on_ranks(job), *_notes_on_steps(job), *_notes_on_line(line, replayed_us, job))


def _notes_on_ranks(job: Job) -> list[str]:
    found = []
    if job.world_size is not None and len(job.names) < job.world_size:
        found.append(
            f"{len(job.names)} of {job.world_size} ranks: how late the others are is not known"
        )
    if len(job.names) == 1:
        found.append(
            "one rank: its AllReduces include waiting for later ranks, so the line is fitted to "
            "the quicker ones and stragglers are not seen"
        )
    return found


def _notes_on_steps(job: Job) -> list[str]:
    found = []
    if job.num_steps < _FEW_STEPS:
        found.append(f"{job.num_steps} usable step(s): no spread; profile at least five")
    lengths = (job.end_us - job.begin_us).mean(axis=1)
    low, high = np.quantile(lengths, (0.1, 0.9))
    if high - low > _UNSTEADY * job.step_us:
        found.append(f"steps are unsteady: from {low / 1e3:.2f} to {high / 1e3:.2f} ms (p10, p90)")
    if not job.sizes_known:
        found.append(
            "sizes of gradients are not in the trace (record_shapes=True), so each bucket was "
            "shared out evenly: caps below the present one are uncertain"
        )
    if not in_arrival_order(job):
        found.append(
            "buckets do not hold gradients in order of arrival (find_unused_parameters, or the "
            "job's first steps): predictions suppose that they do"
        )
    if abs(job.sent_share - 1) > 0.01:
        found.append(
            f"a communication hook sends {100 * job.sent_share:.0f}% of the gradients' bytes; "
            "other buckets are supposed to be sent likewise"
        )
    if job.contention is None:
        found.append(
            "the trace does not tell by how much compute is slower beside a message: supposed not "
            "at all"
        )
    elif max(job.contentions) > (1 + _UNSTEADY) * min(job.contentions):
        low, high = min(job.contentions), max(job.contentions)
        found.append(
            f"beside messages compute is {low:.2f} to {high:.2f} times as long, by rank; the "
            f"median, {job.contention:.2f}, is taken for all"
        )
    if job.gpu:
        computing = job.end_us - job.begin_us - job.exposed_us()
        idle = float(np.median(1 - job.busy_us / computing))
        if idle > _IDLE:
            found.append(
                f"the GPU is idle for {100 * idle:.0f}% of the step without waiting for messages: "
                "the host or the data are slow, which no cap mends"
            )
    return found


def _notes_on_line(line: Line | None, replayed_us: float | None, job: Job) -> list[str]:
    if line is None or replayed_us is None:
        return []
    found = []
    if line.is_narrow and not line.latency_given:
        found.append(
            "messages are of nearly one size: latency and bandwidth are hard to tell apart; the "
            "trace of a run with a smaller cap would say more"
        )
    if line.error > _BAD_LINE:
        found.append(f"messages are {100 * line.error:.0f}% off the line (median)")
    off = replayed_us / job.step_us - 1
    if abs(off) > _BAD_REPLAY:
        found.append(
            f"the replay of the job's own buckets is {100 * off:+.0f}% off the measured step: "
            "trust differences between caps more than the times"
        )
    return found


def _union(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    total, until = 0.0, -np.inf
    for index in np.argsort(starts):
        total += max(0.0, ends[index] - max(starts[index], until))
        until = max(until, ends[index])
    return float(total)
