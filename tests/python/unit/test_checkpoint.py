"""Checkpoint files: what they hold, and what is noticed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from disco_fuse.trainer.checkpoint_file import (
    Header,
    StoredTensor,
    check_tensors,
    read_header,
    read_tensors,
    write_checkpoint,
)

VALUES = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.array([1.5, np.nan, -np.inf], ml_dtypes.bfloat16),
    "flag": np.array([True, False]),
    "step": np.array(2**53 + 1, np.float64),
    "count": np.array(-7, np.int64),
    "empty": np.zeros((0, 3), np.float16),
}


def header(**changes: object) -> Header:
    tensors = tuple(
        StoredTensor(name=name, shape=value.shape, dtype=str(value.dtype))
        for name, value in VALUES.items()
    )
    facts = {"step": 7, "world_size": 2, "plan": "p", "plan_digest": "d", "tensors": tensors}
    facts["positions"] = ({"seen": 2**70}, None)
    return Header(**(facts | changes))  # type: ignore[arg-type]


def write(path: Path, written: Header | None = None) -> Path:
    write_checkpoint(path, written or header(), lambda tensor: VALUES[tensor.name])
    return path


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    assert read_header(path) == header()
    for tensor, value in zip(header().tensors, read_tensors(path, header()), strict=True):
        expected = VALUES[tensor.name]
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.tobytes() == expected.tobytes()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_cuts_and_changed_bytes_are_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "a").read_bytes()
    damaged = tmp_path / "b"
    for length in range(0, len(whole), 7):
        damaged.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut short or damaged|no checkpoint"):
            read_header(damaged)
    for position in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 4
        damaged.write_bytes(changed)
        with pytest.raises(ValueError, match=r"cut short or damaged|no checkpoint"):
            read_header(damaged)
    damaged.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="cut short or damaged"):
        read_header(damaged)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", header(format_version=2))
    with pytest.raises(ValueError, match="format version 2; this release reads 1"):
        read_header(path)


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Every write beyond that fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_failed_write_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    before = path.read_bytes()
    with largest_file(len(before) - 5), pytest.raises(OSError, match="File too large"):
        write(path, header(step=8))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root and mount")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_the_earlier_file_and_nothing_else(small_disk: Path) -> None:
    path = write(small_disk / "a")
    before = path.read_bytes()
    big = StoredTensor(name="big", shape=(1 << 20,), dtype="uint8")
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint(path, header(tensors=(big,)), lambda _: np.ones(big.shape, np.uint8))
    assert path.read_bytes() == before
    assert [file.name for file in small_disk.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"flag": None}, "it lacks \\[\\], it holds \\['count', 'empty', 'half'\\] beyond"),
        ({"other": ((1,), "float32")}, "it lacks \\['other'\\]"),
        ({"weight": ((4, 3), "float32")}, "has 'weight' as .*the plan wants \\(\\(4, 3\\)"),
        ({"weight": ((3, 4), "float64")}, "has 'weight' as"),
    ],
)
def test_tensors_of_another_model_are_refused(wanted: dict[str, object], message: str) -> None:
    right = {tensor.name: (tensor.shape, tensor.dtype) for tensor in header().tensors}
    check_tensors(header(), right)
    changed = {"flag": right["flag"]} if "flag" in wanted else right | wanted
    with pytest.raises(ValueError, match=message):
        check_tensors(header(), changed)  # type: ignore[arg-type]
