"""`disco-fuse build-all`: what is built, reported, kept and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disco_fuse import zoo
from disco_fuse.cli import build_all as command
from disco_fuse.cli import model_builds
from disco_fuse.cli.main import main
from disco_fuse.cli.model_builds import Run, build_model, code_digest

TINY = f"{Path(__file__).parents[1] / 'shared' / 'small_workload.py'}:workload"


def _runs(name: str, reference: str, jobs: list[tuple[str, str]], cache: Path) -> list[Run]:
    runs: list[Run] = []
    build_model(name, reference, jobs, cache, runs.append)
    return runs


def test_runs_share_kernels_and_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [("none", "sm_90"), ("disco_fuse", "sm_90"), ("random-1", "sm_75")]
    first = _runs("tiny", TINY, jobs, tmp_path)
    assert [(run["strategy"], run["target"]) for run in first] == jobs
    assert [run["reasons"] for run in first] == [[], [], []]
    assert all(run["model"] == "tiny" and run["failed"] == 0 for run in first)
    none, ours, other = first
    assert none["compiled"] == none["built"] > 20
    assert 0 < ours["compiled"] < ours["built"], "kernels that none has were compiled again"
    assert other["compiled"] == other["built"], "another architecture has its own machine code"
    assert ours["launches"] >= ours["built"]

    def unavailable(_reference: str) -> Any:
        raise AssertionError("imported again")

    monkeypatch.setattr(model_builds, "_lowered", unavailable)
    assert _runs("tiny", TINY, jobs, tmp_path) == first


def test_failures_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(functions: dict[str, Any], *_: Any) -> dict[str, str]:
        return {name: "too hard" if i in (1, 2) else "" for i, name in enumerate(functions)}

    monkeypatch.setattr(model_builds, "build_each", fails)
    none, other = _runs("tiny", TINY, [("none", "sm_90"), ("surprise", "sm_90")], tmp_path)
    assert (none["failed"], none["reasons"]) == (2, ["too hard"])
    assert none["built"] == none["compiled"] - 2
    assert (other["built"], other["failed"]) == (0, 1)
    assert other["reasons"][0].startswith("step: ValueError: no strategy 'surprise'; allowed: ")


def test_a_slice_of_the_zoo(tmp_path: Path) -> None:
    jobs = [("default", "sm_90"), ("random-0", "sm_80")]
    for run in _runs("bert_small", zoo.reference("bert_small"), jobs, tmp_path):
        assert (run["failed"], run["reasons"]) == (0, [])
        assert run["built"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.models() if name.endswith("_small")])
def test_small_models(name: str, tmp_path: Path) -> None:
    for run in _runs(name, zoo.reference(name), command.jobs_of(name, ["sm_90"], 3), tmp_path):
        assert (run["failed"], run["reasons"]) == (0, [])


def test_jobs() -> None:
    archs = ["sm_90", "sm_80", "sm_75"]
    assert len(command.jobs_of("bert_small", archs)) == 13 + 3 + 3
    full = command.jobs_of("bert", archs)
    assert full[:5] == [
        (strategy, "sm_90")
        for strategy in ("none", "default", "disco_fuse", "random-0", "random-1")
    ]
    assert full[5:8] == [(s, "sm_80") for s in ("none", "disco_fuse", "random-0")]
    assert command.jobs_of("bert", ["sm_75"], 0) == [("none", "sm_75"), ("disco_fuse", "sm_75")]


def test_the_command_reports_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(failed: int) -> Run:
        return Run(
            model="bert_small",
            strategy="none",
            target="sm_90",
            built=7,
            failed=failed,
            reasons=["why"] * failed,
            compiled=3,
            launches=9,
            seconds=1.0,
        )

    work: list[dict[str, Any]] = []

    def build(asked: dict[str, Any], cache: Path, _jobs: int) -> list[Run]:
        work.append(asked)
        assert cache == tmp_path / code_digest()
        return [run(0), run(len(work) - 1)]

    monkeypatch.setattr(command, "_build", build)
    file = tmp_path / "builds.json"
    arguments = ["build-all", "--models", "bert,bert_small", "--small", "--targets", "sm_90"]
    arguments += ["--random", "1", "--cache", str(tmp_path), "--json", str(file)]
    good = CliRunner().invoke(main, arguments)
    assert good.exit_code == 0, good.output
    assert "| bert_small | none     | sm_90  |     7 |" in good.output
    assert json.loads(file.read_text())["runs"] == [run(0), run(0)]
    assert list(work[0]) == ["bert_small"]
    bad = CliRunner().invoke(main, arguments)
    assert bad.exit_code == 1
    assert "1 of 2 steps have failures" in bad.output


def test_models_that_cannot_be_imported_fail_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.zoo, "reference", lambda _name: "no.such.module:model")
    jobs = [("none", "sm_90"), ("default", "sm_90")]
    runs = command._build({"gone": jobs}, tmp_path, 1)
    assert [(run["model"], run["strategy"], run["failed"]) for run in runs] == [
        ("gone", "none", 1),
        ("gone", "default", 1),
    ]
    assert "no module 'no.such.module'" in runs[0]["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "bort"], "no model 'bort' in the zoo; allowed: vgg19, "),
        (["--targets", "sm_20"], "no GPU architecture 'sm_20'; allowed: sm_75, sm_80, sm_90"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["build-all", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = tmp_path / "file" / "cache"
    result = CliRunner().invoke(main, ["build-all", "--small", "--cache", str(cache)])
    assert result.exit_code == 2
    assert f"cannot write to --cache {cache}: Not a directory" in " ".join(result.output.split())


def test_without_nvcc_kernels_are_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH holds no nvcc: said on standard error, and other results than with it."""
    built: list[Path] = []

    def build(_work: dict[str, Any], cache: Path, _jobs: int) -> list[Run]:
        built.append(cache)
        return []

    monkeypatch.setattr(command, "_build", build)
    arguments = ["build-all", "--models", "bert_small", "--cache", str(tmp_path)]
    monkeypatch.setenv("PATH", str(tmp_path))
    without = CliRunner().invoke(main, arguments)
    assert without.exit_code == 0, without.output
    assert "nvcc is not installed: kernels are made as source, not compiled" in without.stderr
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    present = CliRunner().invoke(main, arguments)
    assert present.exit_code == 0, present.output
    assert present.stderr == ""
    assert built[0] != built[1]
