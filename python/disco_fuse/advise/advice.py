"""What to change in a DDP job: step times for twenty bucket caps, and the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from disco_fuse.advise.caps import CapResult, cap_results
from disco_fuse.advise.findings import measured_figures, notes, rank_rows
from disco_fuse.advise.job import Job
from disco_fuse.advise.line import Line, fit_line
from disco_fuse.advise.replay import Replay
from disco_fuse.advise.scenarios import Scenario, safest, scenarios
from disco_fuse.advise.verdict import Verdict, present_of_job
from disco_fuse.tensor_fusion import MIB

# Where DDP's constructor changed, read off torch/nn/parallel/distributed.py of the releases 2.3.1,
# 2.4.1, 2.10.0 and 2.11.0: bucket_cap_mb_list appears in 2.11, and since 2.4 a cap that was given
# is that of the first bucket too.
LIST_SINCE = "2.11"
PLAIN_CAP_SINCE = "2.4"


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
        None if it cannot be fitted, as all messages have one size; what follows is then None, too,
        and there are scenarios instead.
    contention : float, optional
    bound_us : float, optional
    verdict : Verdict, optional
        The caps, and which to take.
    scenarios : tuple of Scenario
        For latencies that are assumed.
    notes : tuple of str
        What the traces could not tell, and how far the predictions can be trusted.
    """

    measured: dict[str, float]
    ranks: tuple[dict[str, Any], ...]
    bucket_mb: tuple[float, ...]
    line: Line | None
    contention: float | None
    bound_us: float | None
    verdict: Verdict | None
    scenarios: tuple[Scenario, ...]
    notes: tuple[str, ...]

    @property
    def caps(self) -> tuple[CapResult, ...]:
        """Ascending."""
        return () if self.verdict is None else self.verdict.caps

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        line, verdict = self.line, self.verdict
        return {
            **self.measured,
            "ranks": list(self.ranks),
            "bucket_mb": list(self.bucket_mb),
            "latency_us": line and line.latency_us,
            "us_per_byte": line and line.us_per_byte,
            "line_error": line and line.error,
            "contention": self.contention,
            "bound_us": self.bound_us,
            "caps": [vars(cap) for cap in self.caps],
            **({} if verdict is None else verdict.to_json()),
            "by_latency": [scenario.to_json() for scenario in self.scenarios],
            "safest_cap_mb": safest(self.scenarios)[0] if self.scenarios else None,
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
    known: dict[str, Any] = {
        "measured": measured_figures(job),
        "ranks": rank_rows(job),
        "bucket_mb": tuple((job.bucket_bytes / MIB).tolist()),
        "contention": job.contention,
    }
    if line is None:
        unknown = (
            f"all messages have {job.bucket_bytes[0]:.0f} bytes, which tells no latency: state it "
            "with --latency-us, or trace a run with another cap"
        )
        return Advice(
            **known,
            line=None,
            bound_us=None,
            verdict=None,
            scenarios=scenarios(job, on_cap),
            notes=(unknown, *notes(job, None, None)),
        )
    replay = Replay.of(job, line, job.contention or 1.0)
    caps = cap_results(replay, on_cap)
    present = present_of_job(job, replay, caps)
    return Advice(
        **known,
        line=line,
        bound_us=replay.bound_us(),
        verdict=Verdict(caps=caps, present=present),
        scenarios=(),
        notes=notes(job, line, present.step_us),
    )
