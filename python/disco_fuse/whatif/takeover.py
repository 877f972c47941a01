"""Where communication takes over: more time in AllReduces than in kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from disco_fuse.whatif.points import AXES, Outcome

_AXIS_NAMES = {
    "world_size": "number of ranks",
    "bandwidth_gbps": "bandwidth between hosts",
    "batch": "batch",
}


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """One series of points that differ in one axis only.

    Attributes
    ----------
    axis : str
        "world_size", "bandwidth_gbps" or "batch".
    others : dict
        The values of the other axes.
    at : float, optional
        Where total AllReduce equals total compute, between two points: the ratio of both is taken
        as a power of the axis. None if it is on one side throughout.
    communication_rules : bool
        At the last point, of the largest value.
    """

    axis: str
    others: dict[str, Any]
    at: float | None
    communication_rules: bool

    def in_words(self) -> str:
        """One line."""
        others = ", ".join(with_unit(axis, value) for axis, value in self.others.items())
        where = f" ({others})" if others else ""
        if self.at is None:
            rules = "communication" if self.communication_rules else "compute"
            return f"{rules} takes longer at every {_AXIS_NAMES[self.axis]}{where}"
        # Of what is counted, the first or last whole number on that side.
        side, whole = ("from", math.ceil) if self.communication_rules else ("up to", math.floor)
        at = self.at if self.axis == "bandwidth_gbps" else whole(self.at)
        return f"communication takes longer than compute {side} {with_unit(self.axis, at)}{where}"


def with_unit(axis: str, value: Any) -> str:
    """A value of an axis, in words."""
    if axis == "world_size":
        return f"{value} ranks"
    if axis == "bandwidth_gbps":
        return f"{value:.4g} GB/s between hosts"
    return f"{axis} {value}"


def takeovers(outcomes: Sequence[Outcome]) -> list[Takeover]:
    """A takeover for every series of at least two points, by axis."""
    found = []
    for axis in AXES[:3]:
        series: dict[tuple[Any, ...], list[Outcome]] = {}
        for outcome in outcomes:
            labels = outcome.point.labels()
            key = tuple(labels[other] for other in AXES if other != axis)
            series.setdefault(key, []).append(outcome)
        for key, members in series.items():
            if len(members) < 2:
                continue
            others = zip((a for a in AXES if a != axis), key, strict=True)
            members.sort(key=lambda outcome: getattr(outcome.point, axis))
            found.append(
                Takeover(
                    axis=axis,
                    others={a: value for a, value in others if _varies(outcomes, a)},
                    at=crossing(
                        [float(getattr(outcome.point, axis)) for outcome in members],
                        [outcome.ratio for outcome in members],
                    ),
                    communication_rules=members[-1].ratio >= 1,
                )
            )
    return found


def crossing(values: Sequence[float], ratios: Sequence[float]) -> float | None:
    """Where a ratio passes 1 for the first time, both axes logarithmic; None if it never does.

    Parameters
    ----------
    values : sequence of float
        Ascending, above 0.
    ratios : sequence of float
        At these values.
    """
    for (x0, y0), (x1, y1) in pairwise(zip(values, ratios, strict=True)):
        if (y0 < 1) == (y1 < 1):
            continue
        if y0 == 0:  # no line leads there from the logarithm of nothing
            return x1
        if y1 == 0:
            return x0
        part = math.log(y0) / (math.log(y0) - math.log(y1))
        return math.exp(math.log(x0) + part * (math.log(x1) - math.log(x0)))
    return None


def _varies(outcomes: Sequence[Outcome], axis: str) -> bool:
    return len({getattr(outcome.point, axis) for outcome in outcomes}) > 1
