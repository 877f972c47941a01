"""The tutorials that start no ranks run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the tutorials import torch models")

TUTORIALS = Path(__file__).parents[3] / "tutorials"


def output(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TUTORIALS / f"{name}.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect_strategy() -> None:
    text = output("inspect_strategy")
    ((ours, best),) = re.findall(
        r"ops, ([\d.]+) ms on 1gbit-cpu, the best .* ([\d.]+)$", text, re.M
    )
    assert 0 < float(ours) < float(best)
    assert re.search(r"exposed for [\d.]+ us; ready at [\d.]+ us with #\d+ grad_", text)
    assert re.search(r"^  fusion: +\d+ x +[\d.]+ us for .*#\d+", text, re.M)
    assert re.search(r"^  bucket: +\d+ x +[\d.]+ us for ", text, re.M)
    assert "illegal by rule 'pattern'" in text


def test_mixed_results() -> None:
    text = output("mixed_results")
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:8]}
    # Tensor fusion in one message sends least and is slowest, op fusion saves compute.
    assert float(rows["single"][4]) < float(rows["none"][4])
    assert float(rows["single"][5]) > float(rows["none"][5])
    assert float(rows["op_fusion"][3]) < float(rows["none"][3])
    hurting = re.findall(r"compute ([+-][\d.]+) us, step \+([\d.]+) us", text)
    assert hurting
    assert all(float(compute) <= 0 and float(step) >= 1 for compute, step in hurting)
    assert re.search(r"\d+ gradients in bucket #\d+ grad_.*, not cut before .*: [\d.]+ ms", text)
    (last,) = re.findall(r"([\d.]+) ms; fusion .* ([\d.]+); .* ([\d.]+)$", text)
    best, ours, bound = map(float, last)
    assert bound <= ours < best
