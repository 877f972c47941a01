"""What to change in a DDP job: step times for twenty bucket caps, and the bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.advise.findings import measured_figures, notes, own_buckets, rank_rows
from disco_fuse.advise.job import Job
from disco_fuse.advise.line import Line, fit_line
from disco_fuse.advise.replay import Replay
from disco_fuse.tensor_fusion import DDP_FIRST_CAP_BYTES, MIB, ddp_caps_bytes, ddp_partition

NUM_CAPS = 20
# Caps that people write; the one of DDP's default, 25 MiB, is among them.
_MANTISSAS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
# Predictions that differ by less are equal.
_AS_GOOD = 0.01
# Where DDP's constructor changed, read off torch/nn/parallel/distributed.py of the releases 2.3.1,
# 2.4.1, 2.10.0 and 2.11.0: bucket_cap_mb_list appears in 2.11, and since 2.4 a cap that was given
# is that of the first bucket too.
LIST_SINCE = "2.11"
PLAIN_CAP_SINCE = "2.4"


@dataclass(frozen=True, kw_only=True)
class CapResult:
    """Predictions for one cap.

    Attributes
    ----------
    cap_mb : float
        ``bucket_cap_mb``, in MiB.
    num_buckets : int
    step_us : float
        With ``bucket_cap_mb=cap_mb``.
    small_first_us : float
        With a first bucket of 1 MiB, as torch before 2.4 always makes it.
    first_cap_mb : float
        Best first entry of ``bucket_cap_mb_list=[first_cap_mb, cap_mb]``.
    list_us : float
        With that list.
    """

    cap_mb: float
    num_buckets: int
    step_us: float
    small_first_us: float
    first_cap_mb: float
    list_us: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Measured figures of a job, and predictions for other buckets; microseconds.

    Attributes
    ----------
    measured : mapping
        Figures of the job as it is: ``step_us``, ``compute_us`` (everything but waiting for
        messages), ``allreduce_us`` (some message under way), ``exposed_us`` and more.
    ranks : tuple of mapping
        Per trace: ``rank``, ``compute_us``, ``waited_us``.
    line : Line, optional
        None if it cannot be fitted; there are no predictions then.
    contention : float, optional
    replayed_us : float, optional
        Prediction for the buckets that the job has.
    bound_us : float, optional
    caps : tuple of CapResult
        Ascending.
    notes : tuple of str
        What the traces could not tell, and how far the predictions can be trusted.
    """

    measured: dict[str, float]
    ranks: tuple[dict[str, Any], ...]
    bucket_mb: tuple[float, ...]
    line: Line | None
    contention: float | None
    replayed_us: float | None
    bound_us: float | None
    caps: tuple[CapResult, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> CapResult | None:
        """The cap to take; see :func:`middle_of_best`."""
        return middle_of_best(self.caps, lambda cap: cap.step_us)

    @property
    def best_list(self) -> CapResult | None:
        """The list of two caps to take."""
        return middle_of_best(self.caps, lambda cap: cap.list_us)

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        best, best_list, line = self.best, self.best_list, self.line
        return {
            **self.measured,
            "ranks": list(self.ranks),
            "bucket_mb": list(self.bucket_mb),
            "latency_us": line and line.latency_us,
            "us_per_byte": line and line.us_per_byte,
            "line_error": line and line.error,
            "contention": self.contention,
            "replayed_us": self.replayed_us,
            "bound_us": self.bound_us,
            "caps": [vars(cap) for cap in self.caps],
            "bucket_cap_mb": best and best.cap_mb,
            "bucket_cap_mb_list": best_list and [best_list.first_cap_mb, best_list.cap_mb],
            "predicted_us": best and best.step_us,
            "predicted_list_us": best_list and best_list.list_us,
            "notes": list(self.notes),
        }


def advise(
    job: Job,
    latency_us: float | None = None,
    on_cap: Callable[[float], None] = lambda _: None,
) -> Advice:
    """Advice for the job that the traces are of.

    Parameters
    ----------
    latency_us : float, optional
        Of an AllReduce, where all messages of the job have one size.
    on_cap : callable
        Called with each cap after it was replayed.
    """
    line = fit_line(job, latency_us)
    measured = measured_figures(job)
    ranks = rank_rows(job)
    bucket_mb = tuple((job.bucket_bytes / MIB).tolist())
    if line is None:
        return Advice(
            measured=measured,
            ranks=ranks,
            bucket_mb=bucket_mb,
            line=None,
            contention=job.contention,
            replayed_us=None,
            bound_us=None,
            caps=(),
            notes=(
                f"no advice on caps: all messages have {job.bucket_bytes[0]:.0f} bytes, which "
                "tells no latency; state it with --latency-us, or trace a run with another cap",
                *notes(job, None, None),
            ),
        )
    replay = Replay.of(job, line, job.contention or 1.0)
    replayed = replay.step_us(own_buckets(job))
    return Advice(
        measured=measured,
        ranks=ranks,
        bucket_mb=bucket_mb,
        line=line,
        contention=job.contention,
        replayed_us=replayed,
        bound_us=replay.bound_us(),
        caps=cap_results(replay, on_cap),
        notes=notes(job, line, replayed),
    )


def middle_of_best(
    caps: Sequence[CapResult], time_us: Callable[[CapResult], float]
) -> CapResult | None:
    """The cap in the middle of those that are as good as the fastest, within 1 %.

    Smaller ones are wrong if messages cost more than the line says, larger ones if gradients come
    otherwise than in the trace; so the middle of the plateau is the safest. Caps that make equally
    many buckets count once, by the largest of them.
    """
    fastest = min((time_us(cap) for cap in caps), default=0.0)
    good = [cap for cap in caps if time_us(cap) <= (1 + _AS_GOOD) * fastest]
    distinct = list({cap.num_buckets: cap for cap in good}.values())
    return distinct[len(distinct) // 2] if distinct else None


def candidate_caps(total_bytes: float) -> tuple[float, ...]:
    """Twenty caps in MiB, ascending; the last one holds all gradients."""
    total_mb = total_bytes / MIB
    series = [mantissa * 10.0**power for power in range(-9, 7) for mantissa in _MANTISSAS]
    last = min(bisect_left(series, total_mb), len(series) - 1)
    return tuple(float(f"{cap:g}") for cap in series[last - NUM_CAPS + 1 : last + 1])


def cap_results(replay: Replay, on_cap: Callable[[float], None]) -> tuple[CapResult, ...]:
    """Replays all candidate caps, alone and behind every smaller first cap."""
    sizes = replay.gradient_bytes.tolist()
    caps = candidate_caps(sum(sizes))
    known: dict[tuple[int, ...], float] = {}

    def step_us(caps_bytes: Sequence[int]) -> float:
        buckets = ddp_partition(sizes, caps_bytes)
        key = tuple(bucket[0] for bucket in buckets)
        if key not in known:
            known[key] = replay.step_us(buckets)
        return known[key]

    results = []
    for cap in caps:
        (cap_bytes,) = ddp_caps_bytes(cap)
        firsts = [first for first in caps if first <= cap]
        times = [step_us((*ddp_caps_bytes(first), cap_bytes)) for first in firsts]
        best = min(range(len(firsts)), key=lambda i: (times[i], -firsts[i]))
        results.append(
            CapResult(
                cap_mb=cap,
                num_buckets=len(ddp_partition(sizes, (cap_bytes,))),
                step_us=times[-1],
                small_first_us=step_us((DDP_FIRST_CAP_BYTES, cap_bytes)),
                first_cap_mb=firsts[best],
                list_us=times[best],
            )
        )
        on_cap(cap)
    return tuple(results)
