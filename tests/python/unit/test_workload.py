"""Naming what is to be trained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="workloads are torch models")

from disco_fuse.workload import load_workload

QUICKSTART = Path(__file__).parents[3] / "tutorials" / "quickstart.py"


def test_workload_of_a_file() -> None:
    workload = load_workload(f"{QUICKSTART}:byte_gpt")
    tokens, targets = workload.example_batch()
    assert workload.name == "byte_gpt"
    assert tokens.shape == targets.shape == (8, 128)
    assert (tokens[0, 1:] == targets[0, :-1]).all()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("quickstart", "names no function; allowed"),
        (":f", "names no function; allowed"),
        ("no_such_module_:f", "no module 'no_such_module_'"),
        ("/nowhere/x.py:f", "no file /nowhere/x.py"),
        (f"{QUICKSTART}:nothing", "has no function 'nothing'"),
        ("os:getcwd", "returned str, not a Workload"),
    ],
)
def test_bad_references(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_workload(reference)
