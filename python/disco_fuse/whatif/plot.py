"""The picture of a what-if; one of the files that import matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no display

from matplotlib.figure import Figure

from disco_fuse.files import replacing
from disco_fuse.whatif.points import AXES, Outcome
from disco_fuse.whatif.takeover import takeovers

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
        name = ", ".join(f"{a} {labels[a]}" for a in varying if a != axis)
        panels.setdefault(name, []).append(outcome)
    figure = Figure(figsize=(5.0 * len(panels), 4.0), layout="constrained")
    figure.suptitle(title)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, members) in zip(all_axes, panels.items(), strict=True):
        members.sort(key=lambda outcome: getattr(outcome.point, axis))
        x = [getattr(outcome.point, axis) for outcome in members]
        lines = {
            "step": [o.result.makespan_us / 1e3 for o in members],
            "best baseline": [o.result.best_baseline.makespan_us / 1e3 for o in members],
            "lower bound": [o.result.lower_bound_us / 1e3 for o in members],
            "compute": [o.result.timeline.compute_us / 1e3 for o in members],
            "AllReduce": [o.result.timeline.allreduce_us / 1e3 for o in members],
        }
        for label, values in lines.items():
            axes.loglog(x, values, "-o" if label == "step" else "--", markersize=4, label=label)
        for takeover in takeovers(members):
            if takeover.axis == axis and takeover.at is not None:
                axes.axvline(takeover.at, color="black", linewidth=0.8, linestyle=":")
        axes.set(title=name, xlabel=_LABELS[axis])
        axes.set_xticks(x, labels=[f"{value:g}" for value in x], minor=False)
        axes.minorticks_off()
    all_axes[0].set_ylabel("ms")
    all_axes[0].legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)
