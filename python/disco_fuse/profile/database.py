"""Measured times, kept in one SQLite file so that a second run measures only what is new."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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


_REMEDIES = {
    sqlite3.SQLITE_BUSY: "is in use by another program; wait until that has ended",
    sqlite3.SQLITE_LOCKED: "is in use by another program; wait until that has ended",
    sqlite3.SQLITE_READONLY: "cannot be written; make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; its folder must exist and be writable",
    sqlite3.SQLITE_PERM: "cannot be opened; make the file readable and writable",
    sqlite3.SQLITE_FULL: "cannot grow; free space on its disk",
    sqlite3.SQLITE_IOERR: "cannot be read or written; look at its disk",
    sqlite3.SQLITE_CORRUPT: "is damaged; delete it to measure anew",
}
"""What is wrong with a file and what to do, by SQLite's result code without its extension."""

_NOT_OURS = "is not a profile database; delete it if nobody needs it"


class ProfileDatabase:
    """Samples by (environment, signature).

    ``environment`` names everything a time depends on beside the kernel: processor, target,
    library versions. Used as a context manager; every ``store`` is one transaction. A file that
    cannot be written can still be read.

    Parameters
    ----------
    path : Path or None
        The file, created where missing; None keeps everything in memory.
    wait_s : float
        How long to wait for another program that is writing, in seconds.

    Raises
    ------
    ValueError
        Here and from every method: the file is no profile database, or one of another schema
        version, or damaged, or in use for too long, or cannot be opened, or (when something is to
        be stored) written. The message names the file and what to do.
    """

    def __init__(self, path: Path | None, *, wait_s: float = 30.0) -> None:
        self._path = path
        with self._explained():
            self._connection = sqlite3.connect(path or ":memory:", timeout=wait_s)
        try:
            with self._explained():
                self._prepare()
        except ValueError:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        """Check the schema; make it in a new file."""
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version == _SCHEMA_VERSION:
            return
        if version != 0:
            raise ValueError(
                f"{self._path} has profile schema {version}; this version reads "
                f"{_SCHEMA_VERSION}: delete the file to measure anew, or name another file"
            )
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")  # of two that create it, one waits
            tables = self._connection.execute("SELECT name FROM sqlite_master").fetchall()
            if any(name != "sample" for (name,) in tables if not name.startswith("sqlite_")):
                raise ValueError(f"{self._path} {_NOT_OURS}, or name another file")
            self._connection.execute(_SCHEMA)
            self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what SQLite says into an error that names the file and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF
            remedy = _REMEDIES.get(code, _NOT_OURS)
            raise ValueError(f"{self._path} {remedy}, or name another file ({error})") from error

    def __enter__(self) -> ProfileDatabase:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def require_writable(self) -> None:
        """Notice before a long measurement that its result could not be stored.

        Raises
        ------
        ValueError
            The file, its folder or its disk does not allow it.
        """
        with self._explained(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def load(self, environment: str, signatures: Iterable[str]) -> dict[str, Sample]:
        """The samples there are for ``signatures``."""
        wanted = set(signatures)
        with self._explained():
            rows = self._connection.execute(
                "SELECT signature, median_us, p10_us, p90_us, repeats FROM sample "
                "WHERE environment = ?",
                (environment,),
            ).fetchall()
        return {row[0]: self._sample(*row) for row in rows if row[0] in wanted}

    def _sample(self, signature: str, median: float, p10: float, p90: float, num: int) -> Sample:
        """One row; what is no measurement was not written by this program."""
        try:
            return Sample(median_us=median, p10_us=p10, p90_us=p90, repeats=num)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._path} {_REMEDIES[sqlite3.SQLITE_CORRUPT]}, or name another file "
                f"(row {signature!r}: {error})"
            ) from error

    def store(self, environment: str, samples: dict[str, Sample]) -> None:
        """Keep ``samples``; newer ones replace older ones."""
        rows = [
            (environment, signature, s.median_us, s.p10_us, s.p90_us, s.repeats)
            for signature, s in samples.items()
        ]
        with self._explained(), self._connection:
            self._connection.executemany(
                "INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?, ?)", rows
            )
