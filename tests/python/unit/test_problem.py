"""Search problems in files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from graphs import fork

from disco_fuse.fuse_ops import Emission
from disco_fuse.tuning import Problem

PROBLEM = Problem(
    name="fork",
    graph=fork(),
    emission=Emission(groups=((0, 1),), order=(0, 1, 2, 3, 4)),
    library_convolutions=True,
)


@pytest.mark.parametrize("name", ["problem.json", "problem.json.gz"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    PROBLEM.save(path)
    assert Problem.load(path) == PROBLEM
    first = path.read_bytes()
    PROBLEM.save(path)
    assert path.read_bytes() == first
    assert (first[:2] == b"\x1f\x8b") == name.endswith(".gz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "its format is 'x', allowed is 'disco_fuse.problem/1'"),
        ({"order": [0, 1, 2, 3, 3]}, "'order' must hold each of the ops 0 to 4 once"),
        ({"groups": [[0, 1], [1, 2]]}, "'groups' must hold ops from 0 to 4, each at most once"),
        ({"groups": [[4, 5]]}, "'groups' must hold ops from 0 to 4"),
        ({"graph": {"ops": []}}, "not the JSON of an OpGraph"),
        ({"groups": 3}, "not a problem file"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "problem.json"
    PROBLEM.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as error:
        Problem.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("number", [2**70, -(2**70)])
def test_a_number_that_is_too_large(number: int, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    PROBLEM.save(path)
    data = json.loads(path.read_text())
    data["graph"]["ops"][0]["bytes_read"] = number
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="a number does not fit into 64 bits") as error:
        Problem.load(path)
    assert str(path) in str(error.value)


def test_an_order_without_end(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    PROBLEM.save(path)
    text = path.read_text().replace('"order": [0,', '"order": [Infinity,')
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot convert float infinity"):
        Problem.load(path)


def test_a_field_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    PROBLEM.save(path)
    data = json.loads(path.read_text())
    del data["name"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="'name' is missing"):
        Problem.load(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "Expecting property name"),
        ("a.json", b"[1]", "its format is 'list'"),
        ("a.json", b"[" * 100_000, "cannot be read: .*recursion"),
        ("a.json", b'"\xff"', "cannot be read: 'utf-8' codec"),
        ("a.json.gz", b"{}", "Not a gzipped file"),
        ("a.json.gz", gzip.compress(b"{}" * 100, mtime=0)[:-9], "ended before"),
    ],
)
def test_no_problem_at_all(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Problem.load(tmp_path / name)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file"):
        Problem.load(tmp_path / "none.json")
