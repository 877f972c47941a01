"""Measured times, kept in one SQLite file so that a second run measures only what is new."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sample (
    environment TEXT NOT NULL,
    signature TEXT NOT NULL,
    median_us REAL NOT NULL,
    p10_us REAL NOT NULL,
    p90_us REAL NOT NULL,
    repeats INTEGER NOT NULL,
    PRIMARY KEY (environment, signature)
)
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Repeated measurements of one thing, in microseconds."""

    median_us: float
    p10_us: float
    p90_us: float
    repeats: int

    @classmethod
    def of(cls, times_us: Sequence[float]) -> Sample:
        """The sample that repeated measurements make."""
        p10, median, p90 = (float(p) for p in np.percentile(times_us, [10, 50, 90]))
        return cls(median_us=median, p10_us=p10, p90_us=p90, repeats=len(times_us))

    def __post_init__(self) -> None:
        if not 0.0 <= self.p10_us <= self.median_us <= self.p90_us < float("inf"):
            raise ValueError(f"{self} is not a measurement: 0 <= p10 <= median <= p90 must hold")


class ProfileDatabase:
    """Samples by (environment, signature).

    ``environment`` names everything a time depends on beside the kernel: processor, target,
    library versions. Used as a context manager; every ``store`` is one transaction.

    Parameters
    ----------
    path : Path or None
        The file, created where missing; None keeps everything in memory.

    Raises
    ------
    ValueError
        The file is no profile database, or one of another schema version.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection = sqlite3.connect(path or ":memory:", timeout=30.0)
        try:
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if version not in (0, _SCHEMA_VERSION):
                raise ValueError(
                    f"{path} has profile schema {version}; this version reads {_SCHEMA_VERSION}"
                )
            with self._connection:
                self._connection.execute(_SCHEMA)
                self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise ValueError(f"{path} is not a profile database: {error}") from error
        except ValueError:
            self._connection.close()
            raise

    def __enter__(self) -> ProfileDatabase:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def load(self, environment: str, signatures: Iterable[str]) -> dict[str, Sample]:
        """The samples there are for ``signatures``."""
        wanted = set(signatures)
        rows = self._connection.execute(
            "SELECT signature, median_us, p10_us, p90_us, repeats FROM sample "
            "WHERE environment = ?",
            (environment,),
        )
        return {
            signature: Sample(median_us=median, p10_us=p10, p90_us=p90, repeats=repeats)
            for signature, median, p10, p90, repeats in rows
            if signature in wanted
        }

    def store(self, environment: str, samples: dict[str, Sample]) -> None:
        """Keep ``samples``; newer ones replace older ones."""
        rows = [
            (environment, signature, s.median_us, s.p10_us, s.p90_us, s.repeats)
            for signature, s in samples.items()
        ]
        with self._connection:
            self._connection.executemany(
                "INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?, ?)", rows
            )
