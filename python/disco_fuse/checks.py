"""Checks of what people put into configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

_T = TypeVar("_T")


def require(ok: bool, what: str, allowed: str, value: object) -> None:
    """ValueError that names ``what``, what is allowed, and the value, unless ``ok``."""
    if not ok:
        raise ValueError(f"{what} must be {allowed}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite int or float (a bool is neither)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether ``value`` is an integer >= 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


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
