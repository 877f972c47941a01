"""What a command would write is tried before any work, and failures name what they are about."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from disco_fuse.cli.main import main
from disco_fuse.cli.output import failure, require_folder
from disco_fuse.cli.run_rank import RunOptions, _values

NOWHERE = "/proc/nothing-can-be-made-here"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def plan(tmp_path: Path) -> str:
    (tmp_path / "plan.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "gpt2_small", "-O", NOWHERE],
        ["tune", "gpt2_small", "--events", f"{NOWHERE}/events.jsonl"],
        ["tune", "gpt2_small", "--report", NOWHERE],
        ["tune", "gpt2_small", "--json", NOWHERE],
        ["extract", "gpt2_small", "-o", NOWHERE],
        ["build", "gpt2_small", "-O", NOWHERE],
        ["whatif", "gpt2_small", "--world-size", "2,4", "--plot", NOWHERE + ".png"],
        ["compare", "a", "b", "--plot", NOWHERE + ".svg"],
    ],
)
def test_places_are_tried_first(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tune", "extract"):
        monkeypatch.setattr(f"disco_fuse.cli.{module}.import_problem", None)
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert f"cannot write {NOWHERE}" in done.stderr or f"cannot write to {NOWHERE}" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["advise", "FILE:f", "--cluster", "cluster-a"],
        ["bench", "FILE:f"],
        ["bench-kernels", "--models", "FILE:f"],
        ["bench-search", "FILE:f"],
        ["build", "FILE:f", "-O", "out"],
        ["extract", "FILE:f", "-o", "problem.json"],
        ["fidelity", "FILE:f"],
        ["graphs", "FILE:f"],
        ["profile", "FILE:f"],
        ["run", "PLAN", "--data", "FILE:f"],
        ["sample", "samples.db", "--models", "FILE:f"],
        ["tune", "FILE:f"],
        ["whatif", "FILE:f", "--world-size", "2,4"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 / 0\n",
            "the import of FILE raised ZeroDivisionError at FILE, line 1: division by zero",
        ),
        ("g = 1\n", "FILE has no function 'f'"),
        (None, "no file FILE"),
    ],
)
def test_functions_of_users_that_are_not_there(
    arguments: list[str],
    text: str | None,
    message: str,
    plan: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    words = [word.replace("FILE", str(file)).replace("PLAN", plan) for word in arguments]
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert message.replace("FILE", str(file)) in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert sorted(path.name for path in tmp_path.iterdir() if path != file) == ["plan.json"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["advise", "none.json"],
        ["build", "gpt2_small", "-O", "out", "--strategy", "none"],
        ["compare", "none", "baseline:ddp"],
        ["eval-cost-model", "none"],
        ["explain", "none"],
        ["run", "none"],
        ["run", "PLAN", "--values", "none"],
        ["run", "PLAN", "--hostfile", "none"],
        ["show", "none"],
        ["train-cost-model", "none", "-O", "out"],
        ["tune", "--problem", "none"],
        ["whatif", "--problem", "none", "--world-size", "2,4"],
        ["tune", "gpt2_small", "--cluster", "none.toml"],
        ["whatif", "gpt2_small", "--device", "none.toml,cluster-a"],
    ],
    ids=" ".join,
)
def test_inputs_that_are_not_there(
    arguments: list[str], plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("disco_fuse.planning.import_step", None)
    done = run(*(word.replace("PLAN", plan) for word in arguments))
    assert done.exit_code == 2, done.output
    assert "none" in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("option", ["-O", "--checkpoints", "--trace", "--json"])
def test_places_of_a_training(plan: str, option: str) -> None:
    done = run("run", plan, option, NOWHERE)
    assert done.exit_code == 2, done.output
    assert f"{option}: cannot write" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every", "2"], "--every needs --checkpoints"),
        (["--learning-rate", "nan"], "--learning-rate is nan; allowed: finite, 0 or above"),
        (["--learning-rate", "-1"], "--learning-rate is -1.0"),
        (["--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
    ],
)
def test_wrong_options_of_a_training(plan: str, arguments: list[str], message: str) -> None:
    done = run("run", plan, *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    done = run("run", str(tmp_path), "-n", "2")
    assert done.exit_code == 2
    assert "holds no plan.json" in done.stderr
    (tmp_path / "strategy.json").write_text("{}")
    assert "'disco-fuse build' makes plans" in run("run", str(tmp_path), "-n", "2").stderr


def test_no_folder_is_left_where_one_was_only_tried(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b", "-O")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_a_file_was_only_tried(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("old")
    for name in ("kept.json", "new.json"):
        run("whatif", "gpt2_small", "--json", str(tmp_path / name))
    assert kept.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


@pytest.mark.parametrize("name", ["p.bmp", "p"])
def test_pictures_have_few_formats(name: str) -> None:
    done = run("compare", "a", "b", "--plot", name)
    assert done.exit_code == 2
    assert f"--plot: {name} must end in .png, .svg, .pdf" in done.stderr


@pytest.mark.parametrize("kind", ["empty", "text", "array"])
def test_values_that_are_no_npz(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "values"
    file.write_bytes({"empty": b"", "text": b'{"a": 1}'}.get(kind, b""))
    if kind == "array":
        with file.open("wb") as opened:
            np.save(opened, np.zeros(3))
    options = RunOptions.__new__(RunOptions)
    object.__setattr__(options, "values", file)
    with pytest.raises(ValueError, match="values is no file of named arrays"):
        _values(options, None)  # type: ignore[arg-type]


def test_failures_say_what_they_are_about_once() -> None:
    assert failure("a.gz", ValueError("a.gz: cut off")).message == "a.gz: cut off"
    assert failure("bert", ValueError("no op")).message == "bert: no op"
    assert failure("bert", TypeError("no op")).message == "bert: TypeError: no op"
    full = OSError(errno.ENOSPC, "No space left on device", "out/x")
    assert failure("bert", full).message == "out/x: No space left on device"
