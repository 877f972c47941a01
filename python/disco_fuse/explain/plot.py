"""Timelines as a picture; one of the files that import matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no display

from matplotlib.figure import Figure

from disco_fuse.explain.exposure import waits
from disco_fuse.explain.summary import Summary
from disco_fuse.files import replacing

# What is drawn -> colour, lane and name.
_PARTS = {
    "kernel": ("#4878a8", 1, "generated kernels"),
    "library": ("#9db8d2", 1, "library calls"),
    "wait": ("#f6cdc9", 1, "compute waits"),
    "bucket": ("#d9793b", 0, "AllReduce"),
}
# Bars closer than this share of the picture are drawn as one: nobody could tell them apart.
_INVISIBLE = 2e-4
# Longer messages have a white line at their ends, so that neighbours are told apart.
_WIDE = 3e-3


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
    figure = Figure(figsize=(10, 1.6 * len(summaries) + 0.3), layout="constrained")
    panels = figure.subplots(len(summaries), 1, squeeze=False, sharex=True)[:, 0]
    end_ms = max(summary.timeline.makespan_us for summary in summaries.values()) / 1000
    drawn = [_bars(summary, _INVISIBLE * end_ms) for summary in summaries.values()]
    parts = {part: look for part, look in _PARTS.items() if any(bars[part] for bars in drawn)}
    for axes, bars, (title, summary) in zip(panels, drawn, summaries.items(), strict=True):
        for part, (colour, lane, label) in parts.items():
            spans = [(a, b - a) for a, b in bars[part]]
            axes.broken_barh(spans, (lane + 0.1, 0.8), color=colour, linewidth=0, label=label)
            ends = [at for a, b in bars[part] if b - a > _WIDE * end_ms for at in (a, b)]
            if part == "bucket":
                axes.vlines(ends, lane + 0.1, lane + 0.9, color="white", linewidth=0.6)
        makespan_ms = summary.timeline.makespan_us / 1000
        axes.axvline(makespan_ms, color="black", linewidth=1)
        axes.set(yticks=(0.5, 1.5), yticklabels=("communication", "compute"), ylim=(0, 2))
        axes.set_xlim(0, 1.01 * end_ms)
        axes.set_title(
            f"{title}: {makespan_ms:.1f} ms, {len(summary.buckets)} AllReduces, "
            f"{summary.exposed_us / 1000:.1f} ms of them exposed",
            loc="left",
            fontsize="medium",
        )
    panels[-1].set_xlabel("ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _bars(summary: Summary, gap_ms: float) -> dict[str, list[tuple[float, float]]]:
    """Begin and end of the bars of each part, milliseconds, ascending; close kernels are one."""
    kinds = {kernel.unit.id: kernel.unit.kind for kernel in summary.kernels}
    events = summary.timeline.events
    compute = [event for event in events if event.unit in kinds]
    messages = [event for event in events if event.unit not in kinds]
    bars: dict[str, list[tuple[float, float]]] = {part: [] for part in _PARTS}
    for event in compute:
        bars[kinds[event.unit]].append((event.start_ns / 1e6, event.finish_ns / 1e6))
    bars = {part: _merged(spans, gap_ms) for part, spans in bars.items()}
    bars["bucket"] = [(event.start_ns / 1e6, event.finish_ns / 1e6) for event in messages]
    end_ns = round(summary.timeline.makespan_us * 1000)
    bars["wait"] = [(begin / 1e6, end / 1e6) for begin, end in waits(compute, end_ns)]
    return bars


def _merged(bars: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Bars, ascending, of which those that lie closer than ``gap`` are one."""
    merged: list[tuple[float, float]] = []
    for begin, end in bars:
        if merged and begin - merged[-1][1] <= gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
