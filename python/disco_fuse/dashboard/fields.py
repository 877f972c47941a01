"""What is read from an event, whatever a file may hold: of the wanted type, or a default."""

from __future__ import annotations

import math
from typing import Any

Event = dict[str, Any]
MAX_WORDS = 400  # letters of a text that a page shows


def number(event: Event, name: str, default: float = math.nan) -> float:
    """A number that sums and squares of stay finite, or `default`."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return float(value) if abs(value) < 1e18 else default


def whole(event: Event, name: str, default: int) -> int:
    """A whole number from 0 to 10**15, or `default`."""
    value = number(event, name)
    return int(value) if 0 <= value <= 1e15 else default


def words(event: Event, name: str, default: str = "") -> str:
    """A text, or a number as one; cut where it is too long to be shown."""
    value = event.get(name)
    if value is None or isinstance(value, dict | list):
        return default
    return str(value)[:MAX_WORDS]


def finite(value: float) -> float | None:
    """For JSON, which knows no NaN."""
    return value if math.isfinite(value) else None
