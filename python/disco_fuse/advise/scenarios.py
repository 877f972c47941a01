"""Advice for a job whose messages all have one size: one table row for each assumed latency.

One size tells what a message takes, not how much of that is latency. Of each latency that networks
have, the rest of the measured time is bandwidth, and a table of caps follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.advise.caps import cap_results
from disco_fuse.advise.job import Job
from disco_fuse.advise.line import Line, fit_line
from disco_fuse.advise.replay import Replay
from disco_fuse.advise.verdict import Verdict, present_of_job

ASSUMED_US = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""From what NVLink takes for an AllReduce to what gloo takes over a slow network."""
_EQUAL = 1e-3


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What to take if an AllReduce has the latency of ``line``."""

    line: Line
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        line = self.line
        return {
            "latency_us": line.latency_us,
            "us_per_byte": line.us_per_byte,
            **self.verdict.to_json(),
        }


def scenarios(job: Job, on_cap: Callable[[float], None] = lambda _: None) -> tuple[Scenario, ...]:
    """One for each latency that leaves time for the bytes, the smallest in any case.

    Parameters
    ----------
    on_cap : callable
        Called with each cap after it was replayed.
    """
    found: list[Scenario] = []
    for latency_us in ASSUMED_US:
        line = fit_line(job, latency_us)
        assert line is not None
        if found and line.us_per_byte == 0.0:
            break
        replay = Replay.of(job, line, job.contention or 1.0)
        caps = cap_results(replay, on_cap)
        present = present_of_job(job, replay, caps)
        found.append(Scenario(line=line, verdict=Verdict(caps=caps, present=present)))
    return tuple(found)


def safest(found: Sequence[Scenario]) -> tuple[float, float]:
    """The cap that is least behind the fastest of each scenario, and by which part in the worst.

    Of those that are so far behind, to a thousandth, the one in the middle.
    """
    rows = [scenario.verdict for scenario in found]
    behind = {
        caps[0].cap_mb: max(
            cap.step_us / verdict.fastest.step_us - 1
            for cap, verdict in zip(caps, rows, strict=True)
        )
        for caps in zip(*(verdict.caps for verdict in rows), strict=True)
    }
    least = min(behind.values()) + _EQUAL
    equal = [(cap_mb, part) for cap_mb, part in behind.items() if part <= least]
    return equal[len(equal) // 2]
