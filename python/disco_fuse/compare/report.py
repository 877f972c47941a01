"""The result of a comparison: a table for people, JSON for programs, one check for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PYTORCH_DDP = "pytorch_ddp"
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the time of a step goes, with every kernel recorded: medians, means over ranks.

    Attributes
    ----------
    kernels_us : float
        Inside kernels; longer while messages are under way.
    exposed_us : float
        The main thread waits for a bucket.
    overhead_us : float
        The rest of the step: starting kernels and buckets.
    copied_bytes : int
        Gradients that were packed into their bucket, because they could not be computed there.
    """

    kernels_us: float
    exposed_us: float
    overhead_us: float
    copied_bytes: int


@dataclass(frozen=True, kw_only=True)
class UnitTimes:
    """Every kernel and message of a step, recorded: medians, means over ranks, microseconds.

    Attributes
    ----------
    kernels_us : list of float
        Kernels and library calls in the order in which they run.
    messages_us, waits_us : list of float
        By bucket: its AllReduce, and how long the main thread waits for it.
    """

    kernels_us: list[float]
    messages_us: list[float]
    waits_us: list[float]


@dataclass(frozen=True, kw_only=True)
class StrategyResult:
    """One row: what a strategy was predicted to do and what it did.

    Attributes
    ----------
    name : str
    kernels, allreduces : int or None
        Launches and AllReduces a step; None where they are not ours to count (PyTorch).
    makespan_us : float or None
        Simulated time of one step.
    step_times_us : tuple of float
        Measured, one per step after warm-up: the slowest rank's.
    overlap : float or None
        Share of AllReduce time during which a kernel ran, mean over ranks and steps.
    losses : tuple of float
        Loss of every step, warm-up included, mean over ranks.
    breakdown : Breakdown or None
    unit_times : UnitTimes or None
        None for PyTorch.
    """

    name: str
    kernels: int | None
    allreduces: int | None
    makespan_us: float | None
    step_times_us: tuple[float, ...]
    overlap: float | None
    losses: tuple[float, ...]
    breakdown: Breakdown | None = None
    unit_times: UnitTimes | None = None

    def step_time_us(self) -> dict[str, float]:
        """Median, 10th and 90th percentile."""
        p10, median, p90 = np.percentile(self.step_times_us, [10, 50, 90])
        return {"median": float(median), "p10": float(p10), "p90": float(p90)}


def best_baseline(results: Sequence[StrategyResult]) -> StrategyResult:
    """The fastest measured TVM baseline: neither ours nor PyTorch's."""
    candidates = [
        r for r in results if r.name != "disco_fuse" and not r.name.startswith(PYTORCH_DDP)
    ]
    if not candidates:
        raise ValueError(f"no baseline among {[r.name for r in results]}")
    return min(candidates, key=lambda r: r.step_time_us()["median"])


def check_losses(results: Sequence[StrategyResult], tolerance: float = LOSS_TOLERANCE) -> list[str]:
    """Strategies whose last loss differs from the reference by more than ``tolerance``, relative.

    The reference is PyTorch DDP where it ran, else the first strategy.

    Returns
    -------
    list of str
        One sentence per strategy that differs; empty when all agree.
    """
    reference = next((r for r in results if r.name.startswith(PYTORCH_DDP)), results[0])
    expected = reference.losses[-1]
    problems = []
    for result in results:
        loss = result.losses[-1]
        if not math.isfinite(loss) or abs(loss - expected) > tolerance * abs(expected):
            problems.append(
                f"loss of {result.name} after step {len(result.losses)} is {loss:.6f}, but "
                f"{reference.name} has {expected:.6f} (allowed: {tolerance:g} relative)"
            )
    return problems


def format_table(results: Sequence[StrategyResult]) -> str:
    """One line per strategy; the ratio is to the best TVM baseline's median, below 1 is faster."""
    best = best_baseline(results).step_time_us()["median"]
    head = (
        f"{'strategy':<20} {'kernels':>7} {'AllReduces':>10} {'simulated':>10} {'step time':>10} "
        f"{'p10':>9} {'p90':>9} {'ratio':>6} {'overlap':>7} {'loss':>8}"
    )
    lines = [head, "-" * len(head)]
    for result in results:
        time = result.step_time_us()
        lines.append(
            f"{result.name:<20} {_text(result.kernels):>7} {_text(result.allreduces):>10} "
            f"{_milliseconds(result.makespan_us):>10} {_milliseconds(time['median']):>10} "
            f"{_milliseconds(time['p10']):>9} {_milliseconds(time['p90']):>9} "
            f"{time['median'] / best:>6.3f} {_share(result.overlap):>7} {result.losses[-1]:>8.4f}"
        )
    return "\n".join(lines)


def to_json(model: str, world_size: int, results: Sequence[StrategyResult]) -> dict[str, Any]:
    """The report as plain values, times in microseconds."""
    return {
        "model": model,
        "world_size": world_size,
        "strategies": [
            {
                "name": result.name,
                "kernels": result.kernels,
                "allreduces": result.allreduces,
                "makespan_us": result.makespan_us,
                "step_time_us": result.step_time_us(),
                "overlap": result.overlap,
                "loss": result.losses[-1],
                "breakdown": result.breakdown and asdict(result.breakdown),
            }
            for result in results
        ],
    }


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _milliseconds(value_us: float | None) -> str:
    return "-" if value_us is None else f"{value_us / 1e3:.2f} ms"
