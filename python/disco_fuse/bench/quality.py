"""How close a search came: tables like the paper's Table 1, from the results of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.bench.exposed import explain
from disco_fuse.bench.paper import GAINS_PERCENT
from disco_fuse.tuning.tune import gain, share_closed

SHARE_GOAL = 0.90
HEADER = (
    "model",
    "best baseline",
    "ms",
    "disco_fuse ms",
    "FO* ms",
    "bound ms",
    "gain %",
    "largest %",
    "paper %",
    "share %",
)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """One model on one cluster; all times microseconds.

    Attributes
    ----------
    name : str
    best_baseline : str
    best_us, ours_us : float
        Makespans of the best baseline and of the strategy found.
    fo_us : float
        FO*: least total compute or least total AllReduce over all strategies of all runs,
        whichever is larger.
    bound_us : float
        Lower bound of every strategy.
    """

    name: str
    best_baseline: str
    best_us: float
    ours_us: float
    fo_us: float
    bound_us: float

    @classmethod
    def of(cls, run: Mapping[str, Any], all_runs: Sequence[Mapping[str, Any]]) -> Quality:
        """Of one run; ``all_runs`` are those of the same graph on the same cluster."""
        runs = [run, *all_runs]
        fo_us = max(
            min(other["least_compute_us"] for other in runs),
            min(other["least_allreduce_us"] for other in runs),
        )
        return cls(
            name=run["name"],
            best_baseline=run["best_baseline"],
            best_us=run["baselines"][run["best_baseline"]],
            ours_us=run["disco_fuse_us"],
            fo_us=fo_us,
            bound_us=run["lower_bound_us"],
        )

    @property
    def limit_us(self) -> float:
        """What nobody is expected to pass."""
        return max(self.fo_us, self.bound_us)

    @property
    def gain(self) -> float:
        """Over the best baseline."""
        return gain(self.best_us, self.ours_us)

    @property
    def largest_gain(self) -> float:
        """That the limit allows."""
        return gain(self.best_us, self.limit_us)

    @property
    def share(self) -> float:
        """Of the distance from the best baseline to the limit."""
        return share_closed(self.best_us, self.ours_us, self.limit_us)

    def row(self) -> tuple[str, ...]:
        """Cells under :data:`HEADER`."""
        paper = GAINS_PERCENT.get(self.name)
        return (
            self.name,
            self.best_baseline,
            f"{self.best_us / 1e3:.2f}",
            f"{self.ours_us / 1e3:.2f}",
            f"{self.fo_us / 1e3:.2f}",
            f"{self.bound_us / 1e3:.2f}",
            f"{100 * self.gain:.1f}",
            f"{100 * self.largest_gain:.1f}",
            "-" if paper is None else f"{paper[0]:.1f}",
            f"{100 * self.share:.1f}",
        )


def missed(quality: Quality, run: Mapping[str, Any]) -> list[str]:
    """One sentence for each goal that is missed, with what cannot overlap."""
    reasons = []
    if quality.share < SHARE_GOAL:
        reasons.append(f"share {100 * quality.share:.1f}% of {100 * SHARE_GOAL:.0f}%")
    paper = GAINS_PERCENT.get(quality.name)
    if paper is not None and 100 * quality.gain < paper[0] <= 100 * quality.largest_gain:
        reasons.append(f"gain {100 * quality.gain:.1f}% of the paper's {paper[0]:.1f}%")
    if not reasons:
        return []
    why = explain(run["exposed"], run["disco_fuse_us"])
    return [f"{quality.name}: {reason}: {why}" for reason in reasons]
