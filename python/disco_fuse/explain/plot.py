"""Timelines as a picture; one of the files that import matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no display

from matplotlib.figure import Figure

from disco_fuse.explain.summary import Summary
from disco_fuse.files import replacing

_COLOURS = {"kernel": "#4878a8", "library": "#9db8d2", "bucket": "#d9793b"}
_LABELS = {"kernel": "generated kernels", "library": "library calls", "bucket": "AllReduce"}
# Bars closer than this share of the picture are drawn as one: nobody could tell them apart.
_INVISIBLE = 2e-4


def plot_timelines(summaries: Mapping[str, Summary], path: Path) -> None:
    """One panel per strategy with the lanes of its step, on a common axis.

    Parameters
    ----------
    summaries : mapping of str to Summary
        By title.
    path : Path
        The image; its ending tells the format.

    Raises
    ------
    ValueError
        matplotlib knows no format of that ending.
    """
    figure = Figure(figsize=(10, 1.6 * len(summaries)), layout="constrained")
    panels = figure.subplots(len(summaries), 1, squeeze=False, sharex=True)[:, 0]
    end_ms = max(summary.timeline.makespan_us for summary in summaries.values()) / 1000
    for axes, (title, summary) in zip(panels, summaries.items(), strict=True):
        kinds = {kernel.unit.id: kernel.unit.kind for kernel in summary.kernels}
        for kind, colour in _COLOURS.items():
            bars = [
                (event.start_ns / 1e6, event.finish_ns / 1e6)
                for event in summary.timeline.events
                if kinds.get(event.unit, "bucket") == kind
            ]
            lane = 0 if kind == "bucket" else 1
            spans = [(a, b - a) for a, b in _merged(bars, _INVISIBLE * end_ms)]
            axes.broken_barh(spans, (lane + 0.1, 0.8), color=colour, label=_LABELS[kind])
        makespan_ms = summary.timeline.makespan_us / 1000
        axes.axvline(makespan_ms, color="black", linewidth=1)
        axes.set(yticks=(0.5, 1.5), yticklabels=("communication", "compute"), ylim=(0, 2))
        axes.set_xlim(0, 1.01 * end_ms)
        axes.set_title(f"{title}: {makespan_ms:.1f} ms", loc="left", fontsize="medium")
    panels[-1].set_xlabel("ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _merged(bars: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Bars, ascending, of which those that lie closer than ``gap`` are one."""
    merged: list[tuple[float, float]] = []
    for begin, end in bars:
        if merged and begin - merged[-1][1] <= gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
