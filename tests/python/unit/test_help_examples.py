"""Every example of every --help, and every command line of the README.

All of them are parsed as the program parses them. The examples are run as well, the long ones with
smaller sizes, as the table of ``help_runs.py`` says; those that start ranks in
``tests/python/distributed/test_help_ranks.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("torch", reason="the commands import torch models")

from click.testing import CliRunner, Result
from help_runs import RUNS, line_of, runs, shortened, written_by
from kineto_traces import GpuJob
from measured_groups import HEADER, measured_groups, op_samples

from disco_fuse.baselines import emitted_baseline
from disco_fuse.cli.main import main
from disco_fuse.dashboard import serve
from disco_fuse.dataset import SampleFile
from disco_fuse.explain.source import open_choice
from disco_fuse.tuning.choice import Choice
from disco_fuse_autoload.commands import COMMANDS

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
TRACED = GpuJob(
    buckets=[[0, 1], [2]],
    elements=[300_000, 1000, 50_000],
    backward_us=[500, 100, 300],
    num_steps=5,
)


def run(line: str) -> Result:
    return CliRunner().invoke(main, shlex.split(line))


def command_called(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def examples(command: str) -> list[str]:
    """The examples of a command, without ``disco-fuse`` and what starts it."""
    epilog = command_called(command).epilog or ""
    return lines_of(r"^ *\$ (?:.* )?disco-fuse (.*)$", epilog)


def lines_of(pattern: str, text: str) -> list[str]:
    """What follows ``disco-fuse``, without comments and the ``&`` of a shell."""
    found = re.findall(pattern, text, re.MULTILINE)
    return [shlex.join(shlex.split(line, comments=True)).removesuffix(" '&'") for line in found]


def readme_lines() -> list[str]:
    return lines_of(r"^ {4}disco-fuse (.*)$", README.read_text(encoding="utf-8"))


def all_lines() -> list[str]:
    return [*(line for name in COMMANDS for line in examples(name)), *readme_lines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(command: str) -> None:
    assert examples(command), f"{command} --help has no example"
    assert all(shlex.split(line)[0] == command for line in examples(command))
    assert run(f"{command} --help").exit_code == 0


@pytest.mark.parametrize("line", all_lines())
def test_example_is_a_right_call(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether files are there is not what is asked here.
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _context: value)
    name, *arguments = shlex.split(line)
    command_called(name).make_context(name, arguments)


def test_every_example_is_run() -> None:
    found = [
        line
        for name in COMMANDS
        for line in re.findall(r"^ *\$ (.*)$", command_called(name).epilog or "", re.MULTILINE)
    ]
    texts = [shlex.join(shlex.split(line, comments=True)) for line in found]
    assert {text.removeprefix("disco-fuse ") for text in texts} == set(RUNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples read: ``plan``, as the first one of build makes it, and all the rest."""
    place = tmp_path_factory.mktemp("examples")
    (first, *_) = examples("build")
    result = run(line_of(first).replace("-O plan", f"-O {place / 'plan'}"))
    assert result.exit_code == 0, result.output
    assert f"disco-fuse run {place / 'plan'} -n 2" in result.stdout
    found = open_choice(place / "plan")
    problem = found.problem
    Choice(
        problem=problem,
        strategy=emitted_baseline("default", problem.graph, problem.emission),
        cluster=found.cluster,
        simulated_us=0.0,
    ).save(place / "plan2", {})
    (place / "plan" / "events.jsonl").touch()
    (place / "logs").mkdir()
    (place / "token").write_text("a-token-of-the-tests\n")
    (place / "tutorials").symlink_to(ROOT / "tutorials")
    for rank, name in enumerate(("rank0.json", "rank1.json.gz")):
        (place / name).write_text(json.dumps(TRACED.trace(rank)))
    groups = measured_groups(40)
    with SampleFile(place / "samples.db", HEADER) as file:
        file.add(groups)
        file.add_ops(op_samples(groups))
    return place


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own current folder, in which links stand for what the examples read."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def _serve_once(*arguments: Any, on_ready: Any, **options: Any) -> None:
    """The server, until Ctrl-C when it is there."""

    def ready(port: int) -> None:
        on_ready(port)
        os.kill(os.getpid(), signal.SIGINT)

    await serve(*arguments, on_ready=ready, **options)


# The first example of build has made what the others read; the other two have tests below.
@pytest.mark.parametrize("example", [p for p in runs(ranks=False) if "build " not in p.values[0]])
def test_example_runs(example: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_fuse.cli.dashboard.serve", _serve_once)
    line = line_of(example)
    for path in written_by(line):
        (here / path).unlink(missing_ok=True)  # the link, so that nothing is written behind it
    with shortened(example):
        result = run(line)
    assert result.exit_code == 0, result.output
    assert result.stdout
    for path in written_by(line):
        assert path.is_dir() or path.stat().st_size > 100, path


def test_what_build_writes(folder: Path) -> None:
    data = json.loads((folder / "plan" / "plan.json").read_text())
    assert data["world_size"] == 2
    assert data["model"] == "gpt2_small"
    found = open_choice(folder / "plan")
    assert (
        found.strategy.hash == json.loads((folder / "plan" / "strategy.json").read_text())["hash"]
    )
    assert data["graph_digest"] == found.problem.graph.digest
    assert data["predicted"]["makespan_us"] == pytest.approx(found.simulated_us)
    shown = run(f"show {folder / 'plan'}").stdout
    assert f"| kernels, AllReduces compiled    | {data['num_kernels']}, " in shown
    assert "its file says" not in shown


def test_a_plan_of_earlier_can_be_built_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = examples("build")[2]
    assert "--strategy plan" in line
    monkeypatch.chdir(folder)
    result = run(line)
    assert result.exit_code == 0, result.output
    old, new = (json.loads((folder / d / "plan.json").read_text()) for d in ("plan", "again"))
    assert new["strategy"] == old["strategy"]
    assert new["num_kernels"] == old["num_kernels"]
    assert (old["world_size"], new["world_size"]) == (2, 4)
    wrong = run("build bert_small -O wrong --strategy plan")
    assert wrong.exit_code == 1
    assert "bert_small has the graph" in wrong.stderr
    assert not (folder / "wrong").exists()


@pytest.mark.slow
def test_a_plan_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = examples("build")[1]
    assert "--target sm_90" in line
    result = run(line)
    assert result.exit_code == 0, result.output
    assert "where an sm_90 GPU is" in result.stdout
    assert "cuda" in json.loads((tmp_path / "plan_gpu" / "plan.json").read_text())["target"]
    assert run("show plan_gpu").exit_code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build gpt2_small", "Missing option '-O'"),
        ("build bart -O x", "no model 'bart' in the zoo"),
        ("build gpt2_small -O x --target sm_12", "'sm_12' is not one of"),
        ("build gpt2_small -O x --cluster mars", "no cluster 'mars'"),
        ("build gpt2_small -O x --strategy y --cluster cluster-a", "--cluster is for searching"),
        ("build gpt2_small -O x -n 0", "0 is not in the range"),
        ("build gpt2_small -O x --patience 0", "patience must be an integer from 1"),
    ],
)
def test_wrong_calls_of_build(line: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_fuse.planning.import_step", None)
    result = run(line)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_a_strategy_that_is_not_there(tmp_path: Path) -> None:
    result = run(f"build gpt2_small -O {tmp_path / 'x'} --strategy {tmp_path / 'none'}")
    assert result.exit_code == 2
    assert "none is not there" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    asked = {"_DISCO_FUSE_COMPLETE": f"{shell}_complete", "COMP_WORDS": "disco-fuse wha"}
    words = {"COMP_CWORD": "wha" if shell == "fish" else "1"}
    result = CliRunner(env={**os.environ, **asked, **words}).invoke(
        main, prog_name="disco-fuse", standalone_mode=True
    )
    assert "whatif" in result.output
    assert "Traceback" not in result.output
