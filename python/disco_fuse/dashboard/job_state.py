"""A training on ranks, as far as their events tell."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from disco_fuse.dashboard.fields import MAX_WORDS, Event, finite, number, whole, words
from disco_fuse.dashboard.history import History

_POINTS = 240
_MAX_CURVES = 16  # ranks with curves of their own
_MAX_ROWS = 64  # ranks in the table
_RECENT = 20  # steps that a rank is judged by
_STRAGGLER = 1.1  # times the busy time of the median rank
_FEW = 10  # steps that say nothing yet
_MAX_NOTES = 50


class _Rank:
    """One rank; recent steps in milliseconds."""

    def __init__(self) -> None:
        self.step = 0
        self.end: str | None = None
        self.step_ms: deque[float] = deque(maxlen=_RECENT)
        self.busy_ms: deque[float] = deque(maxlen=_RECENT)
        self.exposed_ms: deque[float] = deque(maxlen=_RECENT)


class JobState:
    """What a page shows of a training; the events are those of ``disco_fuse.trainer.events``."""

    kind = "job"

    def __init__(self, start: Event) -> None:
        self._plan = words(start, "plan")
        self._world_size = whole(start, "world_size", 0)
        self._rank_of: dict[str, int] = {}
        self._ranks: dict[int, _Rank] = {}
        self._step_curves: dict[int, History] = {}
        self._exposed_curves: dict[int, History] = {}
        self._loss = History(_POINTS)
        self._loss_step = 0
        self._loss_words = ""
        self._notes: deque[dict[str, Any]] = deque(maxlen=_MAX_NOTES)

    def fold(self, source: str, event: Event) -> bool:
        """Take one event of the file `source`; whether it is known."""
        kind = event.get("event")
        if kind == "start":
            self._start(source, event)
        index = self._rank_of.get(source)
        if index is None:
            return False
        rank = self._ranks[index]
        if kind == "step":
            self._step(index, rank, event)
        elif kind in ("start", "skip", "checkpoint", "evaluation", "end"):
            if kind == "end":
                rank.end = words(event, "reason")
            self._note(index, event)
        else:
            return False
        return True

    def _start(self, source: str, event: Event) -> None:
        """A rank begins, perhaps again: what is after its step did not happen."""
        self._plan = words(event, "plan", self._plan)
        self._world_size = size = whole(event, "world_size", self._world_size)
        index, step = whole(event, "rank", 0), whole(event, "step", 0)
        self._rank_of[source] = index
        self._ranks[index] = _Rank()
        # Of an earlier training on more ranks, perhaps.
        self._ranks = {i: rank for i, rank in self._ranks.items() if i == index or i < size}
        self._rank_of = {name: i for name, i in self._rank_of.items() if i in self._ranks}
        for curves in (self._step_curves, self._exposed_curves):
            if index < _MAX_CURVES:
                curves.setdefault(index, History(_POINTS)).rewind(step + 1)
        self._loss.rewind(step + 1)
        self._loss_step = min(self._loss_step, step)

    def _step(self, index: int, rank: _Rank, event: Event) -> None:
        rank.step = step = whole(event, "step", rank.step)
        rank.end = None
        step_ms = number(event, "seconds") * 1e3
        rank.step_ms.append(step_ms)
        rank.busy_ms.append(number(event, "busy_us") / 1e3)
        rank.exposed_ms.append(number(event, "exposed_us") / 1e3)
        if index in self._step_curves:
            self._step_curves[index].add(step, step_ms)
            self._exposed_curves[index].add(step, rank.exposed_ms[-1])
        if step > self._loss_step:
            self._loss_step, self._loss_words = step, words(event, "loss")
            self._loss.add(step, number(event, "loss"))

    def _note(self, index: int, event: Event) -> None:
        """Keep what is no step; ranks that say the same say it once."""
        facts = {k: v for k, v in event.items() if k not in ("event", "step", "rank")}
        said = [(k, v) for k, v in list(facts.items())[:8] if v not in (None, "")]
        text = ", ".join(f"{str(k).replace('_', ' ')}: {v}" for k, v in said)
        note = {
            "event": words(event, "event"),
            "step": whole(event, "step", 0),
            "text": text[:MAX_WORDS],
        }
        if all({k: v for k, v in old.items() if k != "rank"} != note for old in self._notes):
            self._notes.append({**note, "rank": index})

    def _rows(self) -> list[dict[str, Any]]:
        """The ranks, those that hold up the others first."""
        busy_ms = {index: _median(rank.busy_ms) for index, rank in self._ranks.items()}
        known = [value for value in busy_ms.values() if math.isfinite(value)]
        # Of two ranks the faster one is the median.
        usual_ms = statistics.median_low(known) if len(known) > 1 else math.nan
        rows: list[dict[str, Any]] = [
            {
                "rank": index,
                "step": rank.step,
                "step_ms": finite(_mean(rank.step_ms)),
                "last_ms": finite(rank.step_ms[-1]) if rank.step_ms else None,
                "busy_ms": finite(busy_ms[index]),
                "exposed_ms": finite(_mean(rank.exposed_ms)),
                "slower": finite(busy_ms[index] / usual_ms) if usual_ms > 0 else None,
                "straggler": bool(
                    usual_ms > 0
                    and busy_ms[index] > _STRAGGLER * usual_ms
                    and len(rank.busy_ms) >= _FEW
                ),
                "end": rank.end,
            }
            for index, rank in sorted(self._ranks.items())
        ]
        return sorted(rows, key=lambda row: -(row["slower"] or 0.0))[:_MAX_ROWS]

    def _step_ms(self) -> float | None:
        """Of the slowest rank, the mean of recent steps."""
        known = [mean for rank in self._ranks.values() if finite(mean := _mean(rank.step_ms))]
        return max(known, default=None)

    def _end(self) -> str | None:
        """Why it ended; None while a rank goes on."""
        ends = [rank.end for rank in self._ranks.values()]
        return None if None in ends or not ends else ends[0]

    def brief(self) -> dict[str, Any]:
        """The line of the list of runs."""
        return {
            "title": self._plan,
            "figure_ms": self._step_ms(),
            "progress": f"step {max((rank.step for rank in self._ranks.values()), default=0)}",
            "end": self._end(),
        }

    def snapshot(self) -> dict[str, Any]:
        """All that a page shows, of bounded size."""
        rows = self._rows()
        exposed = [row["exposed_ms"] for row in rows if row["exposed_ms"] is not None]
        return {
            "plan": self._plan,
            "world_size": self._world_size,
            "num_ranks": len(self._ranks),
            "step": min((rank.step for rank in self._ranks.values()), default=0),
            "loss": self._loss_words,
            "exposed_ms": statistics.mean(exposed) if exposed else None,
            "step_ms": self._step_ms(),
            "stragglers": [row["rank"] for row in rows if row["straggler"]],
            "rows": rows,
            "step_curves": {str(i): h.points() for i, h in self._step_curves.items()},
            "exposed_curves": {str(i): h.points() for i, h in self._exposed_curves.items()},
            "loss_curve": self._loss.points(),
            "notes": list(self._notes),
            "end": self._end(),
        }


def _median(values: deque[float]) -> float:
    """Which a step that was held up for once does not move."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan


def _mean(values: deque[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan
