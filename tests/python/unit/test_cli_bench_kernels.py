"""``disco-fuse bench-kernels``: its options, its table, its JSON, what it does about failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the command runs torch models")

from click.testing import CliRunner, Result

from disco_fuse.bench.kernels.model import build_model, model_row, time_synthetic
from disco_fuse.bench.kernels.peak import step_peak_bytes
from disco_fuse.bench.kernels.steps import CHECKED_STEPS, measure_steps, wrong_losses
from disco_fuse.cli import bench_kernels
from disco_fuse.cli.main import main

TINY = str(Path(__file__).parents[1] / "shared" / "small_workload.py") + ":workload"
KEYS = {
    "name",
    "disco_fuse_ms",
    "unfused_ms",
    "fuse_ops_ms",
    "torch_eager_ms",
    "torch_compile_ms",
    "peak_mb",
    "torch_peak_mb",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench-kernels", *arguments])


def measured(**changes: float) -> dict[str, Any]:
    """What the process that times steps returns: 3 rounds of 4 sides, equal losses."""
    names = ("disco_fuse", "unfused", "fuse_ops", "torch_eager")
    times = {name: [3.0 + i, 1.0 + i, 2.0 + i] for i, name in enumerate(names)}
    losses = {name: [2.5, changes.get(name, 2.25)] for name in names}
    failed = {"torch_compile": "RuntimeError: no compiler"}
    return {"times_ms": times, "cpu_ms": times, "losses": losses, "failed": failed}


ARENA = {"arena_bytes": 2_000_000, "live_bytes": 1_500_000}
GROUP = {
    "model": "gpt2",
    "name": "sum",
    "rule": "columns",
    "bytes": 80 * 2**20,
    "ms": 4.0,
    "copy_ms": 2.0,
    "share": 0.5,
    "big": True,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replaces the child processes; what they would have been asked."""
    calls: list[tuple[Any, ...]] = []

    def apart(function: Any, *arguments: Any) -> Any:
        calls.append((function, *arguments))
        if function is build_model:
            if arguments[0] == "bert":
                raise ValueError("this model is broken")
            kernels = {"disco_fuse": 4, "unfused": 9, "fuse_ops": 6}
            groups = [GROUP] if arguments[-1] else []
            return {"kernels": kernels, "ops": 9, "groups": groups, **ARENA}
        if function is measure_steps:
            return measured(unfused=2.3) if "rnnlm" in arguments[0] else measured()
        if function is step_peak_bytes:
            return {"disco_fuse": 3_000_000, "torch_eager": 2_500_000}[arguments[0]]
        assert function is time_synthetic
        return [{**GROUP, "model": "synthetic", "share": 0.9}]

    monkeypatch.setattr(bench_kernels, "apart", apart)
    return calls


def test_json_has_the_agreed_keys_medians_and_spread(asked: list[tuple[Any, ...]]) -> None:
    result = run("--models", "gpt2", "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert set(data) == {"models", "groups"}
    (row,) = data["models"]
    assert set(row) >= KEYS
    assert (row["disco_fuse_ms"], row["torch_eager_ms"]) == (2.0, 5.0)
    assert row["best_ms"]["disco_fuse"] == 1.0
    assert row["spread_ms"]["disco_fuse"] == pytest.approx([1.2, 2.8])
    assert (row["peak_mb"], row["torch_peak_mb"]) == (3.0, 2.5)
    assert (row["arena_mb"], row["live_mb"]) == (2.0, 1.5)
    assert row["torch_compile_ms"] is None
    assert row["torch_compile_failure"] == "RuntimeError: no compiler"
    assert [group["model"] for group in data["groups"]] == ["gpt2", "synthetic"]
    assert len(asked) == 5


@pytest.mark.usefixtures("asked")
def test_table_shows_ratios_and_groups_below_the_goal() -> None:
    result = run("--models", "gpt2")
    assert result.exit_code == 0, result.output
    cells = [cell.strip() for cell in result.stdout.splitlines()[2].split("|")]
    assert cells[1:] == ["gpt2", "2.0", "3.0", "4.0", "5.0", "-", "0.40", "-", "3", "2", ""]
    assert "| gpt2  | sum   | columns |" in result.stdout
    assert "synthetic" not in result.stdout  # it reaches 90%


def test_options_reach_the_processes(asked: list[tuple[Any, ...]]) -> None:
    arguments = "--models gpt2 --rounds 3 --time-limit 7 --no-compile --no-groups"
    assert run(*arguments.split()).exit_code == 0
    build, steps, *_ = asked
    assert build[1:3] == ("gpt2", "disco_fuse.zoo.medium:gpt2")
    assert build[-1] is False
    assert steps[3:] == (3, 7.0, False)
    assert time_synthetic not in [call[0] for call in asked]


@pytest.mark.usefixtures("asked")
def test_wrong_losses_are_an_error() -> None:
    result = run("--models", "rnnlm,gpt2", "--json", "-")
    assert result.exit_code == 1
    assert "rnnlm: loss of unfused in step 2 is 2.300000, but PyTorch has 2.25" in result.stderr
    assert "failed: rnnlm\n" in result.stderr
    assert len(json.loads(result.stdout)["models"]) == 2


@pytest.mark.usefixtures("asked")
def test_a_model_that_fails_does_not_stop_the_others() -> None:
    result = run("--models", "bert,gpt2", "--json", "-")
    assert result.exit_code == 1
    assert "failed: bert" in result.stderr
    assert [row["name"] for row in json.loads(result.stdout)["models"]] == ["gpt2"]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models vgg", "no model 'vgg'; allowed: bert, resnet18, gpt2, rnnlm"),
        ("--rounds 0", "0 is not in the range x>=1"),
        ("--time-limit 0", "0.0 is not in the range x>0"),
        ("--json /no/such/folder/k.json --models gpt2", "cannot write /no/such/folder/k.json"),
    ],
)
def test_bad_options_are_refused(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code != 0
    assert message in result.output


def test_losses_are_compared_step_by_step() -> None:
    good = {"disco_fuse": [2.0, 1.0], "unfused": [2.0, 1.0], "fuse_ops": [2.0, 1.0005]}
    assert wrong_losses({**good, "torch_eager": [2.0, 1.0]}) == []
    (problem,) = wrong_losses({**good, "torch_eager": [2.1, 1.0], "unfused": [2.1, 1.0]})[:1]
    assert problem.startswith("loss of disco_fuse in step 1 is 2.000000")
    late = {name: [2.0] * CHECKED_STEPS + [1.0] for name in (*good, "torch_eager")}
    assert wrong_losses({**late, "torch_eager": [2.0] * CHECKED_STEPS + [1.1]}) == []
    nan = wrong_losses({**good, "torch_eager": [2.0, 1.0], "unfused": [2.0, float("nan")]})
    assert [p.split(" is ")[0] for p in nan] == ["loss of unfused in step 2"]


def test_a_row_counts_rounds_of_the_side_with_fewest() -> None:
    times = measured()
    times["times_ms"]["unfused"] = [1.0]
    peaks = {"disco_fuse": 1, "torch_eager": 1}
    assert model_row("m", {"ops": 1, "kernels": {}, **ARENA}, times, peaks)["rounds"] == 1


def test_the_whole_command_on_a_tiny_model() -> None:
    result = run("--models", TINY, "--rounds", "2", "--no-compile", "--no-groups", "--json", "-")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["models"]
    assert row["rounds"] == 2
    assert 0 < row["live_mb"] <= row["arena_mb"] < 1.0
    assert all(row[f"{side}_ms"] > 0 for side in ("disco_fuse", "unfused", "torch_eager"))
    assert row["kernels"]["disco_fuse"] < row["kernels"]["fuse_ops"] < row["kernels"]["unfused"]
    assert row["losses"]["disco_fuse"] == pytest.approx(row["losses"]["torch_eager"], rel=1e-4)
