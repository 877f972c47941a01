"""The file of measured groups: one SQLite database that several processes may fill."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from disco_fuse.cost_model import Group
from disco_fuse.cost_model.model_file import device_from_json
from disco_fuse.cost_model.standalone import family, from_text, signature, to_text
from disco_fuse.device import DeviceSpec
from disco_fuse.graph import OpGraph
from disco_fuse.profile.database import Sample

FORMAT = 1
"""Version of the tables; files of another version are refused."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS header (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS op_time (
    signature TEXT PRIMARY KEY, median_us REAL, p10_us REAL, p90_us REAL, repeats INTEGER);
CREATE TABLE IF NOT EXISTS fused (
    signature TEXT PRIMARY KEY, family TEXT NOT NULL, model TEXT NOT NULL, content BLOB NOT NULL,
    median_us REAL, p10_us REAL, p90_us REAL, repeats INTEGER, first_us REAL,
    again_us REAL, reference_us REAL, disturbed INTEGER);
CREATE TABLE IF NOT EXISTS failure (signature TEXT PRIMARY KEY, model TEXT, reason TEXT);
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredGroup:
    """A fusion group and what it takes, launch not included.

    Attributes
    ----------
    graph, group
        The group standing alone (see :mod:`disco_fuse.cost_model.standalone`).
    model : str
        The model it was sampled from first.
    sample : Sample
        Of the calls of the kernel in undisturbed rounds.
    first_us, again_us : float
        Medians of the first and of the second pass, seconds apart, which ``sample`` holds together.
    reference_us : float
        Median of the reference kernel between these rounds.
    disturbed : bool
        Too few rounds were undisturbed although they were repeated; see :meth:`SampleFile.judge`.
    """

    graph: OpGraph
    group: Group
    model: str
    sample: Sample
    first_us: float
    again_us: float
    reference_us: float
    disturbed: bool = False

    @property
    def family(self) -> str:
        """Equal for groups that are equal up to sizes."""
        return family(self.graph, self.group)

    @property
    def signature(self) -> str:
        """Name of exactly this group."""
        return signature(to_text(self.graph, self.group))


@dataclass(frozen=True, kw_only=True)
class Header:
    """On what the groups of a file were measured.

    Attributes
    ----------
    environment : str
        Processor, target and versions (see ``profile.kernels.environment_key``).
    device : DeviceSpec
        As measured when the file was made.
    """

    environment: str
    device: DeviceSpec


class SampleFile:
    """Measured groups and ops on disk; every ``add`` is one transaction.

    Parameters
    ----------
    path : Path
    header : Header, optional
        Written where the file is new. A file of another environment is refused.

    Raises
    ------
    ValueError
        No file of samples, another format, another environment, or no file and no header.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        if header is None and not path.is_file():
            raise ValueError(f"no file of samples at {path}; 'disco-fuse sample' makes one")
        self._path = path
        self._connection = sqlite3.connect(path, timeout=60.0)
        try:
            self.header = self._open(header)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise ValueError(f"{path} is not a file of samples: {error}") from error
        except ValueError:
            self._connection.close()
            raise

    def __enter__(self) -> SampleFile:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _open(self, header: Header | None) -> Header:
        # Two processes may start at a time: only one of them writes the header.
        with self._writing() as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version != FORMAT and (version or tables):
                raise ValueError(f"{self._path} has format {version}; this version reads {FORMAT}")
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            row = connection.execute("SELECT value FROM header WHERE name = 'header'").fetchone()
            if row is None and header is None:
                raise ValueError(f"{self._path} holds no samples yet")
            if row is None:
                text = json.dumps(asdict(header))  # type: ignore[arg-type]
                connection.execute("INSERT INTO header VALUES ('header', ?)", (text,))
                assert header is not None
                return header
        data = json.loads(row[0])
        found = Header(environment=data["environment"], device=device_from_json(data["device"]))
        if header is not None and found.environment != header.environment:
            raise ValueError(
                f"{self._path} was measured on '{found.environment}', this is "
                f"'{header.environment}'; samples of both do not belong into one file"
            )
        return found

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._connection.isolation_level = None
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def known(self) -> set[str]:
        """Signatures of all groups that were measured or cannot be built."""
        rows = self._connection.execute(
            "SELECT signature FROM fused UNION SELECT signature FROM failure"
        )
        return {row[0] for row in rows}

    def counts(self) -> dict[str, int]:
        """Number of measured groups per model."""
        rows = self._connection.execute("SELECT model, count(*) FROM fused GROUP BY model")
        return {str(model): int(count) for model, count in rows}

    def failures(self) -> dict[str, str]:
        """Why groups could not be built or run, by signature."""
        return dict(self._connection.execute("SELECT signature, reason FROM failure"))

    def op_times_us(self) -> dict[str, float]:
        """Medians of ops alone, by the ops' signatures."""
        return dict(self._connection.execute("SELECT signature, median_us FROM op_time"))

    def add_ops(self, samples: dict[str, Sample]) -> None:
        """Keep times of ops alone."""
        rows = [(name, *_numbers(sample)) for name, sample in samples.items()]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO op_time VALUES (?,?,?,?,?)", rows)

    def add(self, groups: Iterable[MeasuredGroup]) -> None:
        """Keep measured groups; of two measurements of one group the first stays."""
        rows = []
        for item in groups:
            text = to_text(item.graph, item.group)
            content = zlib.compress(text.encode(), 9)
            names = (signature(text), item.family, item.model, content)
            rest = (item.first_us, item.again_us, item.reference_us, int(item.disturbed))
            rows.append((*names, *_numbers(item.sample), *rest))
        with self._writing() as connection:
            connection.executemany(
                f"INSERT OR IGNORE INTO fused VALUES ({','.join('?' * 12)})", rows
            )

    def judge(self, above: float) -> int:
        """Mark as disturbed what all groups of the file together say was disturbed.

        While groups are measured, only those before are known. A group is disturbed where the
        reference between its rounds took more than ``above`` times the lower quartile of all.

        Returns
        -------
        int
            How many are.
        """
        rows = self._connection.execute("SELECT reference_us FROM fused ORDER BY reference_us")
        times = [row[0] for row in rows]
        if not times:
            return 0
        limit = above * times[len(times) // 4]
        with self._writing() as connection:
            connection.execute("UPDATE fused SET disturbed = reference_us > ?", (limit,))
        return sum(us > limit for us in times)

    def add_failure(self, name: str, model: str, reason: str) -> None:
        """Keep that the group of signature ``name`` cannot be built or run."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO failure VALUES (?,?,?)", (name, model, reason)
            )

    def groups(self) -> list[MeasuredGroup]:
        """All measured groups, in the order of their signatures."""
        rows: Sequence[Any] = self._connection.execute(
            "SELECT model, content, median_us, p10_us, p90_us, repeats, first_us, again_us, "
            "reference_us, disturbed FROM fused ORDER BY signature"
        ).fetchall()
        return [_measured(row) for row in rows]


def _numbers(sample: Sample) -> tuple[float, float, float, int]:
    return sample.median_us, sample.p10_us, sample.p90_us, sample.repeats


def _measured(row: Any) -> MeasuredGroup:
    model, content, median, p10, p90, repeats, first, again, reference, disturbed = row
    graph, group = from_text(zlib.decompress(content).decode())
    return MeasuredGroup(
        graph=graph,
        group=group,
        model=model,
        sample=Sample(median_us=median, p10_us=p10, p90_us=p90, repeats=repeats),
        first_us=first,
        again_us=again,
        reference_us=reference,
        disturbed=bool(disturbed),
    )
