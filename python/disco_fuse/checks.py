"""Checks of what people put into configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

_T = TypeVar("_T")

MAX_US = 86_400e6
"""No kernel and no message takes longer than a day, so that sums of nanoseconds fit 64 bits (also
in src/cost/cost_model.cc)."""
MAX_COUNT = 2**31 - 1


def require(ok: bool, what: str, allowed: str, value: object) -> None:
    """ValueError that names ``what``, what is allowed, and the value, unless ``ok``."""
    if not ok:
        raise ValueError(f"{what} must be {allowed}, got {_shortened(value)}")


def _shortened(value: object) -> str:
    """As Python writes it; numbers of very many digits by their number of bits."""
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def is_number(value: object) -> bool:
    """Whether ``value`` is a float that is finite, or an int in its range (a bool is neither)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_count(value: object) -> bool:
    """Whether ``value`` is an integer from 1 to ``MAX_COUNT``."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT


def require_text(what: str, value: object) -> None:
    """ValueError that names ``what`` unless ``value`` is a text."""
    require(isinstance(value, str), what, "a text", value)


def from_table(kind: type[_T], table: Any, where: str) -> _T:
    """The dataclass ``kind`` with the fields that a table of TOML holds.

    Raises
    ------
    ValueError
        Naming ``where`` and the field that is missing or unknown.
    """
    if table is None:
        raise ValueError(f"{where} is missing; it must be a table")
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {table!r}")
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; allowed are {sorted(known)}")
    try:
        return kind(**table)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
