"""The command line: its examples, its output, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the commands import torch models")

from click.testing import CliRunner, Result

from disco_fuse import zoo
from disco_fuse.cli.graph_facts import GraphFacts, graph_facts
from disco_fuse.cli.main import main
from disco_fuse.cli.output import markdown_table
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend.torch.verified import VERIFIED_OPERATORS

QUICKSTART = Path(__file__).parents[3] / "tutorials" / "quickstart.py"
COMMANDS = ("graphs", "ops")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replaces the child process; what it would have been asked."""
    asked: list[tuple[str, str]] = []

    def facts(name: str, reference: str) -> GraphFacts:
        asked.append((name, reference))
        if name == "vit":
            raise UnsupportedOperatorError("operator aten.nothing.default")
        return GraphFacts(
            name=name, import_s=1.25, peak_rss_mb=512.5, ops=7, gradients=2, bytes=1_500_000
        )

    monkeypatch.setattr("disco_fuse.cli.graphs._in_own_process", facts)
    return asked


def examples() -> list[str]:
    """Every example of every --help."""
    found = []
    for command in COMMANDS:
        result = run(command, "--help")
        assert result.exit_code == 0
        here = re.findall(r"^ *\$ disco-fuse (.*)$", result.stdout, re.MULTILINE)
        assert here, f"{command} --help has no example"
        found += here
    return found


@pytest.mark.parametrize("example", examples())
def test_example(
    example: str, measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tutorials").symlink_to(QUICKSTART.parent)
    monkeypatch.chdir(tmp_path)
    every = "--all" in example
    result = run(*shlex.split(example))
    assert result.exit_code == (1 if every else 0), result.output  # "vit" fails here
    written = [path.name for path in tmp_path.glob("*.json")]
    assert written == re.findall(r"--json (\w+\.json)", example)
    if every:
        assert [name for name, _ in measured] == list(zoo.models())
        names = [row["name"] for row in json.loads(Path(written[0]).read_text())["models"]]
        assert names == [name for name in zoo.models() if name != "vit"]


def test_graph_of_a_small_model_in_its_own_process(tmp_path: Path) -> None:
    file = tmp_path / "graphs.json"
    result = run("graphs", "vit_small", "--json", str(file))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())["models"]
    assert list(row) == ["name", "import_s", "peak_rss_mb", "ops", "gradients", "bytes"]
    model = zoo.workload("vit_small").model
    assert row["name"] == "vit_small"
    assert row["gradients"] == len(list(model.parameters()))
    assert row["bytes"] == 4 * sum(p.numel() for p in model.parameters())
    assert row["ops"] > 4 * row["gradients"]  # forward, backward, AllReduce, update
    assert 0 < row["import_s"] < 60
    assert 200 < row["peak_rss_mb"] < 2000
    assert result.stderr == ""  # no progress bar without a terminal
    assert result.stdout.splitlines()[0].startswith("| model ")
    assert result.stdout.splitlines()[2].startswith("| vit_small ")


def test_json_to_standard_output_is_all_that_is_printed(measured: list[Any]) -> None:
    result = run("graphs", "bert", "disco_fuse.zoo.vit:vit", "--json", "-")
    assert [row["name"] for row in json.loads(result.stdout)["models"]] == [
        "bert",
        "disco_fuse.zoo.vit:vit",
    ]
    assert measured == [
        ("bert", "disco_fuse.zoo.bert:bert"),
        ("disco_fuse.zoo.vit:vit", "disco_fuse.zoo.vit:vit"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graphs"], "give names or --all; names are vgg19"),
        (["graphs", "bert", "--all"], "give names or --all"),
        (["graphs", "bart"], "no model 'bart' in the zoo; allowed: vgg19"),
        (["graphs", "bert", "--json", "."], "is a directory"),
        (["ops", "bert"], "unexpected extra argument"),
        (["graph"], "No such command 'graph'"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, measured: list[Any]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert measured == []


def test_a_failure_is_told_and_the_others_go_on(measured: list[Any]) -> None:
    result = run("graphs", "vit", "bert")
    assert result.exit_code == 1
    assert "vit: UnsupportedOperatorError: operator aten.nothing.default" in result.stderr
    assert "Error: 1 of 2 failed: vit" in result.stderr
    assert "| bert " in result.stdout
    assert len(measured) == 2


def test_what_fails_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f():\n    return 1 / 0\n")
    result = run("graphs", f"{tmp_path / 'broken.py'}:f")
    assert result.exit_code == 1
    assert f"broken.py:f raised ZeroDivisionError at {tmp_path / 'broken.py'}" in result.stderr


def die(_name: str, _reference: str) -> GraphFacts:
    os._exit(9)


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_fuse.cli.graphs.graph_facts", die)
    result = run("graphs", "bert_small")
    assert result.exit_code == 1
    assert "bert_small: the process died" in result.stderr


def test_facts_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    facts = graph_facts("mine", f"{QUICKSTART}:byte_gpt")
    assert facts["name"] == "mine"
    assert facts["gradients"] == 52
    assert capsys.readouterr().out == ""


def test_ops_are_the_verified_ones() -> None:
    result = run("ops", "--json", "-")
    operators = json.loads(result.stdout)["operators"]
    assert {row["name"] for row in operators} == VERIFIED_OPERATORS
    assert all(row["definition"] for row in operators)
    table = run("ops").stdout
    assert all(f"| {name} " in table for name in VERIFIED_OPERATORS)


@pytest.mark.usefixtures("measured")
def test_unwritable_file() -> None:
    result = run("graphs", "bert", "--json", "/nowhere/graphs.json")
    assert result.exit_code == 2
    assert "cannot write /nowhere/graphs.json" in result.stderr


def test_table() -> None:
    rows = [("name", "n", "x"), ("a", "1,000", "yes"), ("bb", "2.5", "7")]
    assert markdown_table(rows).splitlines() == [
        "| name |     n | x   |",
        "|------|------:|-----|",
        "| a    | 1,000 | yes |",
        "| bb   |   2.5 | 7   |",
    ]
