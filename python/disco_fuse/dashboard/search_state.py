"""A search, as far as its events tell."""

from __future__ import annotations

import math
from typing import Any

from disco_fuse.dashboard.fields import Event, finite, number, whole, words
from disco_fuse.dashboard.history import History

FORMAT_VERSION = 1
"""Of ``disco_fuse.tuning.events``, which says what the events hold."""
_POINTS = 400
_MAX_SPANS = 4000
_FACTS = {
    "model": "model",
    "num_ops": "ops",
    "cluster": "cluster",
    "world_size": "ranks",
    "device": "device",
    "preset": "preset",
    "seed": "seed",
}
_KINDS = ("kernel", "library", "bucket")


class SearchState:
    """What a page shows of a search."""

    kind = "search"

    def __init__(self, start: Event) -> None:
        self._facts = {shown: words(start, name) for name, shown in _FACTS.items()}
        versions = start.get("versions")
        if isinstance(versions, dict):
            self._facts["versions"] = ", ".join(
                f"{str(name)[:40]} {words(versions, name)[:40]}" for name in list(versions)[:10]
            )
        self._elapsed_s = 0.0
        self._candidates = self._queued = 0
        self._candidates_per_s = self._makespan_us = self._first_us = math.nan
        self._best, self._rate = History(_POINTS), History(_POINTS)
        self._lanes: Event | None = None
        self._limits: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None

    def fold(self, source: str, event: Event) -> bool:
        """Take one event; whether it is known."""
        del source  # a search has one file
        kind = event.get("event")
        if kind == "limits":
            self._compare(event)
        if kind not in ("progress", "incumbent", "end"):
            return kind in ("start", "limits")
        self._elapsed_s = number(event, "elapsed_s", self._elapsed_s)
        self._candidates = whole(event, "candidates", self._candidates)
        self._makespan_us = number(event, "makespan_us", self._makespan_us)
        if math.isnan(self._first_us):
            self._first_us = self._makespan_us
        self._best.add(self._elapsed_s, self._makespan_us / 1e3)
        if kind == "end":
            self._finish(event)
        else:
            self._queued = whole(event, "queued", self._queued)
            self._candidates_per_s = number(event, "candidates_per_s")
            self._rate.add(self._elapsed_s, self._candidates_per_s)
        if kind != "progress":
            self._lanes = _checked_lanes(event.get("lanes")) or self._lanes
        return True

    def _finish(self, event: Event) -> None:
        self._first_us = number(event, "initial_us", self._first_us)
        self._end = {"reason": words(event, "reason")}
        self._compare(event)

    def _compare(self, event: Event) -> None:
        """What the best step is compared with: known before the search, or with its end."""
        self._limits = {
            "lower_bound_us": finite(number(event, "lower_bound_us")),
            "best_baseline": words(event, "best_baseline"),
            "best_baseline_us": finite(number(event, "best_baseline_us")),
        }

    def brief(self) -> dict[str, Any]:
        """The line of the list of runs."""
        return {
            "title": self._facts["model"],
            "figure_ms": finite(self._makespan_us / 1e3),
            "progress": f"{self._candidates} candidates",
            "end": self._end and self._end["reason"],
        }

    def snapshot(self) -> dict[str, Any]:
        """All that a page shows, of bounded size."""
        return {
            "facts": self._facts,
            "elapsed_s": self._elapsed_s,
            "candidates": self._candidates,
            "candidates_per_s": finite(self._candidates_per_s),
            "queued": self._queued,
            "makespan_us": finite(self._makespan_us),
            "initial_us": finite(self._first_us),
            "best": self._best.points(),
            "rate": self._rate.points(),
            "lanes": self._lanes,
            "limits": self._limits,
            "end": self._end,
        }


def _checked_lanes(lanes: Any) -> Event | None:
    """A timeline that can be drawn, or None for anything else."""
    if not isinstance(lanes, dict):
        return None
    streams, spans = lanes.get("streams"), lanes.get("spans")
    makespan_us = number(lanes, "makespan_us")
    if not (isinstance(streams, list) and isinstance(spans, list) and makespan_us > 0):
        return None
    names = [str(name)[:40] for name in streams[:16]]
    drawn = []
    for span in spans[:_MAX_SPANS]:
        if not (isinstance(span, list) and len(span) in (5, 6)):
            return None
        row = dict(zip(("stream", "start", "duration", "units"), span, strict=False))
        stream = whole(row, "stream", len(names))
        start, duration = number(row, "start"), number(row, "duration")
        if not (stream < len(names) and start >= 0 and duration >= 0):
            return None
        kind = _KINDS.index(span[5]) if span[5:] and span[5] in _KINDS else 2 * bool(stream)
        units, name = whole(row, "units", 1), str(span[4])[:80]
        drawn.append([stream, start, duration, units, name, kind])
    return {"streams": names, "makespan_us": makespan_us, "spans": drawn}
