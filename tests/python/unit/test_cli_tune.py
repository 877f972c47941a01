"""``disco-fuse extract``, ``tune`` and ``bench-search``: examples, output, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the commands import torch models")

from click.testing import CliRunner, Result
from graphs import fork

from disco_fuse.cli.main import main
from disco_fuse.config import FusionLimits, SearchConfig
from disco_fuse.fuse_ops import Emission
from disco_fuse.strategy import Edit, Strategy, replay
from disco_fuse.tuning import Problem

QUICKSTART = Path(__file__).parents[3] / "tutorials" / "quickstart.py"
TINY = ("--max-steps", "50")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def problem(name: str = "fork") -> Problem:
    emission = Emission(groups=((0, 1),), order=(0, 1, 2, 3, 4))
    return Problem(name=name, graph=fork(), emission=emission)


@pytest.fixture
def file(tmp_path: Path) -> str:
    problem().save(tmp_path / "problem.json.gz")
    return str(tmp_path / "problem.json.gz")


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replaces the import of models by a tiny graph; what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def import_problem(name: str, reference: str, *, library_convolutions: bool) -> Problem:
        asked.append((name, reference, library_convolutions))
        return problem(name)

    def apart(function: Any, *arguments: Any) -> Any:
        if function.__name__ != "import_and_save":
            return {"simulated": 4, "scheduled": 5}
        name, reference, library_convolutions, path = arguments
        import_problem(name, reference, library_convolutions=library_convolutions).save(path)
        return None

    monkeypatch.setattr("disco_fuse.cli.tune.import_problem", import_problem)
    monkeypatch.setattr("disco_fuse.cli.extract.import_problem", import_problem)
    monkeypatch.setattr("disco_fuse.cli.bench_search.apart", apart)
    monkeypatch.setattr(
        "disco_fuse.bench.runs.ProcessPoolExecutor", lambda *_, **__: _Here(), raising=True
    )
    return asked


class _Here:
    """A pool that works in this process."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def submit(self, function: Any, *arguments: Any) -> Any:
        value = function(*arguments)
        return type("Future", (), {"result": lambda _: value})()


def examples(command: str) -> list[str]:
    result = run(command, "--help")
    assert result.exit_code == 0
    found = re.findall(r"^ *\$ disco-fuse (.*)$", result.stdout, re.MULTILINE)
    assert found, f"{command} --help has no example"
    return found


@pytest.mark.parametrize("example", [*examples("tune"), *examples("extract")])
def test_example(
    example: str, imported: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tutorials").symlink_to(QUICKSTART.parent)
    monkeypatch.chdir(tmp_path)
    result = run(*shlex.split(example))
    assert result.exit_code == 0, result.output
    assert len(imported) == 1
    for written in re.findall(r"(?:--json|-o|-O) (\S+)", example):
        assert (tmp_path / written).exists()


def test_what_tune_prints(file: str) -> None:
    result = run("tune", "--problem", file, *TINY)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "fork (5 ops), simulated on cluster-a, 12 ranks of GTX 1080 Ti"
    names = [line.split()[1] for line in lines if line.startswith("| ")]
    assert names[1:9] == [
        "none",
        "op_fusion",
        "allreduce_fusion",
        "default",
        "ddp",
        "horovod",
        "single",
        "disco_fuse",
    ]
    assert result.stdout.count("(best baseline)") == 1
    for figure in (
        "gain over",
        "found without the baselines",
        "FO of this strategy",
        "lower bound of every strategy",
        "share of the distance closed",
        "unseen candidates a second",
        "search seconds",
        "stopped by",
    ):
        assert f"| {figure}" in result.stdout
    assert result.stderr == ""


def test_json_and_strategy_can_be_replayed(file: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run("tune", "--problem", file, *TINY, "--json", "-", "-O", str(folder), "--seed", "4")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["simulated"] is True
    assert data["seed"] == 4
    plan = json.loads((folder / "strategy.json").read_text())
    graph = problem().graph
    assert plan["graph_digest"] == data["digest"] == graph.digest
    assert plan["simulated_us"] == data["disco_fuse_us"]
    start = None
    if plan["start_strategy"] is not None:
        start = Strategy.from_json(graph, json.dumps(plan["start_strategy"]))
    limits: FusionLimits = SearchConfig.preset("full").limits
    edits = [Edit(**edit) for edit in plan["edits"]]
    assert replay(graph, edits, start, limits=limits).hash == plan["hash"]
    strategy = Strategy.from_json(graph, json.dumps(plan["strategy"]))
    assert strategy.hash == plan["hash"]
    trace = json.loads((folder / "timeline.trace.json").read_text())
    assert {row["ph"] for row in trace["traceEvents"]} == {"X", "M"}


def test_ctrl_c_gives_the_best_so_far(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("disco_fuse.cli.search_bar.tqdm.update", interrupt)
    result = run("tune", "--problem", file, "--patience", "100000000")
    assert result.exit_code == 0, result.output
    assert "interrupted: this is the best so far" in result.stderr
    assert re.search(r"\| stopped by +\| interrupted", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune"], "give either MODEL or --problem FILE"),
        (["tune", "bert_small", "--problem", "x"], "give either MODEL or --problem FILE"),
        (["tune", "bart"], "no model 'bart' in the zoo"),
        (["tune", "bert_small", "--cluster", "mars"], "no cluster 'mars': presets are"),
        (["tune", "bert_small", "--preset", "best"], "'best' is not one of"),
        (["tune", "bert_small", "--patience", "0"], "--patience must be an integer from 1"),
        (["tune", "bert_small", "--max-steps", "9" * 30], "--max-steps must be"),
        (["tune", "bert_small", "--time-limit", "nan"], "--time-limit must be"),
        (["tune", "bert_small", "--time-limit", "-1"], "--time-limit must be"),
        (["extract", "bert_small"], "Missing option '-O'"),
        (["extract", "bart", "-o", "x.json"], "no model 'bart' in the zoo"),
        (["bench-search"], "give models or --all; the paper's are vgg19"),
        (["bench-search", "--all", "bert"], "give models or --all"),
        (["bench-search", "bart"], "no model 'bart' in the zoo"),
        (["bench-search", "bert", "--cluster", "mars"], "no cluster 'mars'"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, imported: list[Any]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert imported == []


@pytest.mark.usefixtures("imported")
def test_failures(tmp_path: Path) -> None:
    result = run("tune", "--problem", str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert "no file" in result.stderr
    (tmp_path / "broken.json").write_text("{}")
    result = run("tune", "--problem", str(tmp_path / "broken.json"))
    assert result.exit_code == 1
    assert "not a problem file" in result.stderr
    result = run("extract", "bert_small", "-o", str(tmp_path / "nowhere" / "x.json"))
    assert result.exit_code == 2
    assert f"-O: cannot write {tmp_path / 'nowhere' / 'x.json'}: No such file" in result.stderr
    assert "Traceback" not in result.output


def test_a_cluster_file_that_is_no_text_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / "cluster.toml").write_bytes(b"\xff\xfe")
    result = run("tune", "--problem", file, "--cluster", str(tmp_path / "cluster.toml"))
    assert result.exit_code == 2
    assert "cluster.toml: cannot be read: 'utf-8' codec" in " ".join(result.stderr.split())


def test_a_cache_that_cannot_be_written(tmp_path: Path, imported: list[Any]) -> None:
    (tmp_path / "file").write_text("")
    result = run("bench-search", "bert_small", "--cache", str(tmp_path / "file" / "cache"))
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert isinstance(result.exception, SystemExit)
    assert imported == []


def test_a_memory_limit_that_nobody_meets(file: str) -> None:
    result = run("tune", "--problem", file, "--memory-limit", "5")
    assert result.exit_code == 1
    assert "no strategy fits a memory limit of 5 bytes" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_real_model_is_extracted(tmp_path: Path) -> None:
    path = tmp_path / "gpt2_small.json.gz"
    result = run("extract", "gpt2_small", "-o", str(path))
    assert result.exit_code == 0, result.output
    loaded = Problem.load(path)
    assert f"{path}: {loaded.graph.num_ops} ops" in result.stdout
    assert loaded.library_convolutions
    assert loaded.emission.groups


def test_bench_search(tmp_path: Path, imported: list[Any]) -> None:
    command = ["bench-search", "bert_small", "gpt2_small", "--vary", "--sweep", "--check-launches"]
    command += ["--cache", str(tmp_path / "cache"), "--patience", "50"]
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert [name for name, *_ in imported] == ["bert_small", "gpt2_small"]
    assert (
        len(re.findall(r"^\| bert_small +\| compute x1.3, AllReduce x1", result.stdout, re.M)) == 1
    )
    assert len(re.findall(r"^\| gpt2_small +\| beta=30 ", result.stdout, re.M)) == 1
    assert re.search(r"\| bert_small +\| +4 \| +5 \| +-20.0", result.stdout)

    again = run(*command, "--json", "-")
    assert len(imported) == 2  # neither imported nor searched again
    data = json.loads(again.stdout)
    (row, _) = data["models"]
    assert list(row)[:9] == [
        "name",
        "ops",
        "search_s",
        "peak_rss_mb",
        "candidates_per_s",
        "baselines",
        "disco_fuse_us",
        "fo_us",
        "lower_bound_us",
    ]
    assert row["name"] == "bert_small"
    assert row["lower_bound_us"] <= row["disco_fuse_us"] <= min(row["baselines"].values())
    assert data["scaling"] == []
    assert len(data["varied"]) == 8
    assert len(data["sweep"]) == 2 * 11
    assert run(*command, "--fresh").exit_code == 0
    assert len(imported) == 4


def test_a_model_that_fails_is_named(
    tmp_path: Path, imported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    del imported

    def apart(*_: object) -> None:
        raise ValueError("no such operator")

    monkeypatch.setattr("disco_fuse.cli.bench_search.apart", apart)
    result = run("bench-search", "bert_small", "--cache", str(tmp_path))
    assert result.exit_code == 1
    assert "bert_small: import: ValueError: no such operator" in result.stderr
    assert "failed: bert_small" in result.stderr
