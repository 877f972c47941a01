"""The cache on disk: entries, damage, limits, folders that cannot be written, many processes."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disco_fuse.kernel_cache import USER_CACHE, KernelCache, user_cache_folder


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _files(cache: KernelCache) -> list[Path]:
    return sorted(file for file in cache.path.rglob("*") if file.is_file())


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(folder=tmp_path / "kernels")


def test_entries_come_back(cache: KernelCache, caplog: pytest.LogCaptureFixture) -> None:
    assert cache.load(_key("a")) is None
    assert not cache.path.exists(), "reading makes no folder"
    assert cache.store([(_key("a"), b"one"), (_key("b"), b"")])
    assert cache.load(_key("a")) == b"one"
    assert cache.load(_key("b")) == b""
    assert cache.load(_key("c")) is None
    assert cache.store([(_key("a"), b"two")])
    assert cache.load(_key("a")) == b"two"
    assert len(_files(cache)) == 2
    assert caplog.records == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "longer"])
def test_a_damaged_entry_is_deleted_and_named(
    cache: KernelCache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store([(_key("a"), b"x" * 100)])
    (file,) = _files(cache)
    data = file.read_bytes()
    changed = {
        "cut": data[:-1],
        "flipped": data[:-1] + b"y",
        "empty": b"",
        "foreign": b"#!/bin/sh\n" * 20,
        "longer": data + b"x",
    }
    file.write_bytes(changed[damage])
    assert cache.load(_key("a")) is None
    assert f"{file} is damaged, it is built anew" in caplog.text
    assert _files(cache) == []
    cache.store([(_key("a"), b"new")])
    assert cache.load(_key("a")) == b"new"


def test_entries_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    cache = KernelCache(folder=tmp_path)
    for age, name in enumerate("abc"):
        cache.store([(_key(name), b"x" * 1000)])
        file = cache.path / _key(name)[:2] / _key(name)[2:]
        os.utime(file, (1000.0 - age, 1000.0 - age))  # "c" is the oldest
    assert cache.load(_key("c")) is not None  # and is used just now
    small = KernelCache(folder=tmp_path, max_bytes=2200)
    small.store([(_key("d"), b"x" * 500)])
    present = {name for name in "abcd" if small.load(_key(name)) is not None}
    assert present == {"c", "d"}
    assert sum(file.stat().st_size for file in _files(small)) <= 2200


def test_no_room_at_all_keeps_nothing(tmp_path: Path) -> None:
    cache = KernelCache(folder=tmp_path, max_bytes=0)
    assert cache.store([(_key("a"), b"one")])
    assert cache.load(_key("a")) is None
    with pytest.raises(ValueError, match="max_bytes is -1; allowed: from 0"):
        KernelCache(max_bytes=-1)


def test_what_a_dead_process_left_is_deleted_later(cache: KernelCache) -> None:
    cache.store([(_key("a"), b"one")])
    folder = _files(cache)[0].parent
    old, young = folder / "old.tmp", folder / "young.tmp"
    for file in (old, young):
        file.write_bytes(b"half")
    hours_ago = time.time() - 7200.0
    os.utime(old, (hours_ago, hours_ago))
    cache.store([(_key("b"), b"two")])
    assert not old.exists()
    assert young.exists(), "another process may be writing it"


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = KernelCache(folder=tmp_path / "file" / "kernels")
    assert cache.load(_key("a")) is None
    assert not cache.store([(_key("a"), b"one")])
    assert f"cannot keep kernels in {cache.path}: Not a directory" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_said(
    cache: KernelCache,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("disco_fuse.kernel_cache.os.replace", fail)
    assert not cache.store([(_key("a"), b"one")])
    assert f"cannot keep kernels in {cache.path}: {os.strerror(number)}" in caplog.text
    assert _files(cache) == [], "the half-written file is gone"


def test_the_default_is_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert USER_CACHE.path == tmp_path / "disco_fuse" / "kernels"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")  # to be ignored, says the specification
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "disco_fuse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "disco_fuse"


_WRITER = """
import hashlib, sys
from pathlib import Path
from disco_fuse.kernel_cache import KernelCache
cache = KernelCache(folder=Path(sys.argv[1]), max_bytes=200_000)
for i in range(150):
    name = str(i % 30)
    key = hashlib.sha256(name.encode()).hexdigest()
    found = cache.load(key)
    assert found is None or found == name.encode() * 5000, name
    assert cache.store([(key, name.encode() * 5000)])
"""


def test_processes_that_write_and_prune_at_once(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], errors
    assert not any("damaged" in error or "cannot" in error for error in errors), errors
    assert not list(tmp_path.rglob("*.tmp"))
