"""By how much compute is slower while a message is under way.

Equal work (the same kernel and launch, or the same operator and shapes) is done many times a step,
sometimes beside a message and sometimes not. The factor is the ratio of both medians, averaged in
logarithms over kinds of work, each weighted by the time that it takes beside messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from disco_fuse.advise.rank import RankStep, Work

_INSIDE, _OUTSIDE = 0.9, 0.1  # shares of the work's time beside a message
_MIN_REPEATS = 3
# Kinds with both sides must be at least this share of the work beside messages.
_MIN_COVERED = 0.2
_LARGEST = 4.0  # the largest slowdown reported for overlap, measured for memory-bound kernels


def contention_factor(work: Sequence[Work], steps: Sequence[RankStep]) -> float | None:
    """The factor, at least 1; None where the trace does not tell.

    Parameters
    ----------
    work, steps
        Of one rank, on one clock.
    """
    spans = _merged((f.start_us, f.end_us) for step in steps for f in (*step.flights, *step.others))
    starts = [start for start, _ in spans]
    seen = _merged((step.begin_us, step.end_us) for step in steps)
    begins = [begin for begin, _ in seen]
    inside: dict[str, list[float]] = defaultdict(list)
    outside: dict[str, list[float]] = defaultdict(list)
    for item in work:
        duration = item.end_us - item.start_us
        # Messages of steps that were left out are not known, so their work is left out too.
        if duration <= 0 or _beside(item, seen, begins) < duration:
            continue
        share = _beside(item, spans, starts) / duration
        if share >= _INSIDE:
            inside[item.kind].append(duration)
        elif share <= _OUTSIDE:
            outside[item.kind].append(duration)
    total = sum(map(sum, inside.values()))
    both = [
        kind
        for kind, durations in inside.items()
        if min(len(durations), len(outside.get(kind, []))) >= _MIN_REPEATS
    ]
    weights = np.array([sum(inside[kind]) for kind in both])
    if total == 0 or weights.sum() < _MIN_COVERED * total:
        return None
    ratios = [np.log(np.median(inside[kind]) / np.median(outside[kind])) for kind in both]
    return float(np.clip(np.exp(np.average(ratios, weights=weights)), 1.0, _LARGEST))


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _beside(item: Work, spans: Sequence[tuple[float, float]], starts: Sequence[float]) -> float:
    """Time of ``item`` during which a message is under way."""
    total = 0.0
    place = max(bisect_right(starts, item.start_us) - 1, 0)
    while place < len(spans) and spans[place][0] < item.end_us:
        start, end = spans[place]
        total += max(0.0, min(end, item.end_us) - max(start, item.start_us))
        place += 1
    return total
