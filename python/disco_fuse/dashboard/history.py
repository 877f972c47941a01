"""Curves of any length in bounded memory."""

from __future__ import annotations

import math


class History:
    """A curve that is thinned out by halves: each point stands for ``num_merged`` values.

        values   1 2 3 4 5 6 7 8        full at 4 points: neighbours are joined
        points   |1 2|3 4|5 6|7 8|      each keeps last x, least, mean and largest y

    Parameters
    ----------
    max_points : int
        Points kept at most; even, from 2.
    """

    def __init__(self, max_points: int) -> None:
        assert max_points >= 2
        assert max_points % 2 == 0
        self.num_merged = 1
        self._max_points = max_points
        self._points: list[tuple[float, float, float, float, int]] = []  # x, least, sum, most, n

    def add(self, x: float, y: float) -> None:
        """Append a value; x does not fall. What is not finite is left out."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        if self._points and self._points[-1][4] < self.num_merged:
            self._points[-1] = _joined(self._points[-1], (x, y, y, y, 1))
            return
        if len(self._points) == self._max_points:
            self._points = [
                _joined(*self._points[i : i + 2]) for i in range(0, self._max_points, 2)
            ]
            self.num_merged *= 2
        self._points.append((x, y, y, y, 1))

    def rewind(self, x: float) -> None:
        """Forget the points from `x` on: a training was resumed there."""
        while self._points and self._points[-1][0] >= x:
            self._points.pop()

    def points(self) -> list[list[float]]:
        """``[x, least, mean, largest]`` of every point."""
        return [[x, low, _short(total / n), high] for x, low, total, high, n in self._points]


def _joined(
    a: tuple[float, float, float, float, int], b: tuple[float, float, float, float, int]
) -> tuple[float, float, float, float, int]:
    return b[0], min(a[1], b[1]), a[2] + b[2], max(a[3], b[3]), a[4] + b[4]


def _short(value: float) -> float:
    """Six digits: what a chart can show."""
    return float(f"{value:.6g}")
