"""Measured times on disk."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from disco_fuse.profile.database import ProfileDatabase, Sample

SAMPLE = Sample(median_us=2.0, p10_us=1.0, p90_us=3.0, repeats=5)


def test_samples_come_back_by_environment_and_signature(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    with ProfileDatabase(path) as database:
        database.store("cpu a", {"k1": SAMPLE, "k2": SAMPLE})
    with ProfileDatabase(path) as database:
        assert database.load("cpu a", ["k1", "k3"]) == {"k1": SAMPLE}
        assert database.load("cpu b", ["k1"]) == {}


def test_newer_samples_replace_older_ones() -> None:
    newer = Sample(median_us=5.0, p10_us=5.0, p90_us=5.0, repeats=9)
    with ProfileDatabase(None) as database:
        database.store("e", {"k": SAMPLE})
        database.store("e", {"k": newer})
        assert database.load("e", ["k"]) == {"k": newer}


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    with ProfileDatabase(path) as one, ProfileDatabase(path) as two:
        for i in range(20):
            (one if i % 2 else two).store("e", {f"k{i}": SAMPLE})
        assert len(one.load("e", [f"k{i}" for i in range(20)])) == 20


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    refused = "profile.sqlite has profile schema 99; this version reads 1: delete the file"
    with pytest.raises(ValueError, match=refused):
        ProfileDatabase(path)


def _filled(path: Path) -> bytes:
    """A database of several pages, and the bytes of its file."""
    with ProfileDatabase(path) as database:
        database.store("e", {f"{'k' * 200}{i}": SAMPLE for i in range(100)})
    return path.read_bytes()


@pytest.mark.parametrize("length", [50, 4096, 5000, 8192])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "profile.sqlite"
    whole = _filled(path)
    assert len(whole) > 12288
    path.write_bytes(whole[:length])
    damaged = r"profile.sqlite is (damaged; delete it to measure anew|not a profile database)"
    with pytest.raises(ValueError, match=damaged), ProfileDatabase(path) as database:
        database.load("e", ["k"])


def test_an_overwritten_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    whole = _filled(path)
    path.write_bytes(whole[:4096] + b"\xff" * 4096 + whole[8192:])
    with ProfileDatabase(path) as database:
        with pytest.raises(ValueError, match="sqlite is damaged; delete it to measure"):
            database.load("e", ["k"])
        with pytest.raises(ValueError, match="sqlite is damaged; delete it to measure"):
            database.store("e", {"k": SAMPLE})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DROP TABLE sample", "is not a profile database; .*no such table"),
        ("ALTER TABLE sample DROP COLUMN p90_us", "is not a profile database; .*no such column"),
        ("UPDATE sample SET median_us = -1", "is damaged; .*row 'k'.*not a measurement"),
        ("UPDATE sample SET p10_us = 'fast'", "is damaged; .*row 'k'"),
        ("UPDATE sample SET signature = CAST(x'ff' AS TEXT)", "profile.sqlite .*decode"),
    ],
)
def test_contents_of_another_kind_are_refused(tmp_path: Path, change: str, reason: str) -> None:
    path = tmp_path / "profile.sqlite"
    with ProfileDatabase(path) as database:
        database.store("e", {"k": SAMPLE})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with ProfileDatabase(path) as database, pytest.raises(ValueError, match=reason):
        database.load("e", ["k"])


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmark (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="sqlite is not a profile database"):
        ProfileDatabase(path)
    assert path.read_bytes() == before


def test_a_file_that_another_program_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    _filled(path)
    with closing(sqlite3.connect(path)) as writer, ProfileDatabase(path, wait_s=0.05) as database:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ValueError, match="sqlite is in use by another program; wait"):
            database.store("e", {"k": SAMPLE})
        with pytest.raises(ValueError, match="sqlite is in use by another program; wait"):
            ProfileDatabase(path, wait_s=0.05)
        writer.rollback()
        database.store("e", {"k": SAMPLE})
        assert database.load("e", ["k"]) == {"k": SAMPLE}


@contextmanager
def _unprivileged() -> Iterator[None]:
    """Without root's right to write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_file_is_read_and_not_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.sqlite"
        with ProfileDatabase(path) as database:
            database.store("e", {"k": SAMPLE})
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with _unprivileged(), ProfileDatabase(path) as database:
            assert database.load("e", ["k"]) == {"k": SAMPLE}
            with pytest.raises(ValueError, match="sqlite cannot be written; make the file"):
                database.store("e", {"k": SAMPLE})
        with _unprivileged(), pytest.raises(ValueError, match="sqlite cannot be opened; its"):
            ProfileDatabase(Path(folder) / "new.sqlite")
        path.chmod(0)
        with _unprivileged(), pytest.raises(ValueError, match="sqlite cannot be opened"):
            ProfileDatabase(path)
        Path(folder).chmod(0o755)


@pytest.mark.parametrize("name", ["", "missing/profile.sqlite"])
def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be opened; its folder must exist"):
        ProfileDatabase(tmp_path / name)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(ValueError, match="sqlite is not a profile database; delete it if"):
        ProfileDatabase(path)
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("median", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(median: float) -> None:
    with pytest.raises(ValueError, match="not a measurement"):
        Sample(median_us=median, p10_us=median, p90_us=median, repeats=1)


def test_a_read_only_file_is_noticed_before_anything_is_measured() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.sqlite"
        with ProfileDatabase(path) as database:
            database.require_writable()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with (
            _unprivileged(),
            ProfileDatabase(path) as database,
            pytest.raises(ValueError, match="sqlite cannot be written; make the file"),
        ):
            database.require_writable()
        Path(folder).chmod(0o755)
