"""The picture of a what-if; one of the files that import matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no display

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from disco_fuse.files import replacing
from disco_fuse.whatif.points import AXES, Outcome
from disco_fuse.whatif.takeover import takeovers, with_unit

# Widest first, so that lines that lie on each other are all seen.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#999999", "linewidth": 5.0},
    {"color": "#d9793b", "linewidth": 3.5},
    {"color": "#9db8d2", "linewidth": 3.5, "linestyle": "--"},
    {"color": "#1f4e79", "linewidth": 1.8, "marker": "o", "markersize": 4},
    {"color": "#bb2222", "linewidth": 1.0, "linestyle": ":"},
)
_LABELS = {
    "world_size": "ranks",
    "bandwidth_gbps": "bandwidth between hosts, GB/s",
    "batch": "samples a rank",
}


def plot_outcomes(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Step, compute and AllReduce along the first axis that varies; a panel per other combination.

    Parameters
    ----------
    path : Path
        The image; its ending tells the format.

    Raises
    ------
    ValueError
        Nothing but the device varies, or matplotlib knows no format of that ending.
    """
    varying = [a for a in AXES if len({getattr(o.point, a) for o in outcomes}) > 1]
    axis = next((a for a in varying if a in _LABELS), None)
    if axis is None:
        raise ValueError("a plot needs two world sizes, bandwidths or batches")
    panels: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        labels = outcome.point.labels()
        name = ", ".join(with_unit(a, labels[a]) for a in varying if a != axis)
        panels.setdefault(name, []).append(outcome)
    figure = Figure(figsize=(5.0 * len(panels), 4.0), layout="constrained")
    figure.suptitle(title)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, members) in zip(all_axes, panels.items(), strict=True):
        members.sort(key=lambda outcome: getattr(outcome.point, axis))
        x = [getattr(outcome.point, axis) for outcome in members]
        lines = _lines(members)
        for (label, values), style in zip(lines.items(), _STYLES, strict=True):
            axes.loglog(x, values, **style, label=label)
        for takeover in takeovers(members):
            if takeover.axis == axis and takeover.at is not None:
                axes.axvline(takeover.at, color="black", linewidth=0.8, linestyle=":")
        axes.set(title=name, xlabel=_LABELS[axis])
        axes.set_xticks(x, labels=[f"{value:g}" for value in x], minor=False)
        axes.minorticks_off()
    set_ticks(all_axes[0])
    all_axes[0].set_ylabel("ms")
    all_axes[0].legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _lines(members: Sequence[Outcome]) -> dict[str, list[float]]:
    """Milliseconds by label, in the order of ``_STYLES``."""
    results = [outcome.result for outcome in members]
    return {
        "best baseline": [result.best_baseline.makespan_us / 1e3 for result in results],
        "AllReduce": [result.timeline.allreduce_us / 1e3 for result in results],
        "compute": [result.timeline.compute_us / 1e3 for result in results],
        "step": [result.makespan_us / 1e3 for result in results],
        "lower bound": [result.lower_bound_us / 1e3 for result in results],
    }


def set_ticks(axes: Axes) -> None:
    """Numbers beside the vertical axis: 1, 2 and 5 times powers of ten, or closer ones.

    Within a power of ten those may be a single number or none, which tells nothing.
    """
    low, high = axes.get_ylim()
    locator = LogLocator(subs=(1, 2, 5)) if high > 10 * low else MaxNLocator(6)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
