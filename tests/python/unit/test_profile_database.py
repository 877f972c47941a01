"""Measured times on disk."""

from __future__ import annotations

import sqlite3
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
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ValueError, match="profile schema 99; this version reads 1"):
        ProfileDatabase(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(ValueError, match="not a profile database"):
        ProfileDatabase(path)
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("median", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(median: float) -> None:
    with pytest.raises(ValueError, match="not a measurement"):
        Sample(median_us=median, p10_us=median, p90_us=median, repeats=1)
