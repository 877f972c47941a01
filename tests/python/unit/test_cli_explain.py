"""``disco-fuse show``, ``explain`` and ``compare``: output, JSON, pictures and exit codes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_choice import choice

from disco_fuse.cli.main import main
from disco_fuse.cli.output import markdown_table
from disco_fuse.strategy import Edit, Strategy, replay
from disco_fuse.tuning.choice import Choice


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    choice().save(tmp_path / "plan", {})
    one = choice()
    plain = Choice(
        problem=one.problem,
        strategy=Strategy.unfused(one.problem.graph),
        cluster=one.cluster,
        simulated_us=1.0,
    )
    plain.save(tmp_path / "plain", {})
    return tmp_path


def test_show(folder: Path) -> None:
    result = run("show", str(folder / "plan"), "--top", "1")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "fork (5 ops), simulated on test, 2 ranks of test"
    assert lines[1].startswith("its file says 0.013 ms: chosen on another cluster")
    for figure in ("predicted step", "lower bound of every strategy", "exposed AllReduce"):
        assert f"| {figure} " in result.stdout
    assert "| #0 x+g | 10x10 " in result.stdout
    assert "largest 1 of 1 buckets, in the order of sending:" in result.stdout
    assert "| #3 avg | 1 gradient | 0.000 | " in result.stdout
    assert result.stderr == ""
    data = json.loads(run("show", str(folder / "plan" / "strategy.json"), "--json", "-").stdout)
    assert [kernel["ops"] for kernel in data["kernels"]] == [[0, 2], [1], [4]]
    assert sorted(data["order"]) == [0, 1, 3, 4]
    assert data["makespan_us"] >= data["lower_bound_us"]
    assert data["plan"] is None
    other = run("show", str(folder / "plan"), "--cluster", "dgx-h100", "--json", "-")
    assert json.loads(other.stdout)["cluster"] == "dgx-h100"


def test_show_places_of_their_own(tmp_path: Path) -> None:
    one = choice()
    graph = one.problem.graph
    strategy = replay(graph, [Edit(kind="reorder", producer=1, consumer=3)])
    replace(one, strategy=strategy).save(tmp_path, {})
    result = run("show", str(tmp_path))
    assert result.exit_code == 0, result.output
    place = strategy.order.index(1)
    before = one.problem.graph.ops[strategy.order[place - 1]].name
    assert "first 1 of 1 units with a place of their own:" in result.stdout
    assert f"| #1 y | {place + 1} of 5 | #{strategy.order[place - 1]} {before} " in result.stdout


def test_numbers_stay_flush_right_beside_a_dash() -> None:
    table = markdown_table([("a", "b", "c"), ("x", "-", "-"), ("y", "-1.5", "-")])
    assert table.splitlines()[1:] == ["|---|-----:|---|", "| x |    - | - |", "| y | -1.5 | - |"]


def test_explain(folder: Path) -> None:
    result = run("explain", str(folder / "plan"))
    assert result.exit_code == 0, result.output
    assert "compute waits" in result.stdout
    assert "waits for #2 g until" in result.stdout
    assert "longest chain, 1 kernels" in result.stdout
    assert "| fusions that gain most " in result.stdout
    assert "| #0 x in kernel #0 x+g " in result.stdout
    assert " us" not in result.stdout
    data = json.loads(run("explain", str(folder / "plan"), "--json", "-").stdout)
    assert data["undone"] == 1
    (fusion,) = data["fusions"]
    assert fusion["undo"] == [{"kind": "take-out", "producer": 0, "consumer": 0}]
    assert (fusion["times"], fusion["sum_us"]) == (1, fusion["gain_us"])
    assert fusion["gain_us"] > 0
    (bucket,) = data["buckets"]
    assert bucket["last_gradient"] == "#2 g"


def test_why(folder: Path) -> None:
    result = run("explain", str(folder / "plan"), "--why", "x", "#1")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "#0 x and #1 y are apart, in kernel #0 x+g and kernel #1 y"
    assert lines[1].startswith("fuse: legal, would ")
    assert lines[2].startswith("fuse-duplicate: ")
    answer = run("explain", str(folder / "plan"), "--why", "g", "avg", "--json", "-")
    data = json.loads(answer.stdout)
    assert data["ops"] == [2, 3]
    assert data["answers"][0]["rule"] == "kind"
    assert data["answers"][0]["meaning"]


def test_compare(folder: Path) -> None:
    result = run("compare", str(folder / "plan"), str(folder / "plain"))
    assert result.exit_code == 0, result.output
    assert "| A       | kernel |   2 | #0 x+g |" in result.stdout
    assert "0 kernels and buckets of several ops are in both, 1 only in A, 0 only in B" in (
        result.stdout
    )
    step = next(line for line in result.stdout.splitlines() if line.startswith("| step ms"))
    _, _, a, b, gained, _ = step.split("|")
    assert float(gained) == pytest.approx(100 * (float(a) / float(b) - 1), abs=0.05)
    assert float(gained) < 0
    assert "gain: by how much less B takes, A / B - 1" in result.stdout
    same = run("compare", str(folder / "plan"), str(folder / "plan"))
    assert "Both are the same." in same.stdout
    text = run("compare", str(folder / "plan"), str(folder / "plain"), "--json").stdout
    data = json.loads(text)
    assert data["first"]["makespan_us"] < data["second"]["makespan_us"]
    assert data["kernels_only_first"][0]["ops"] == [0, 2]


def test_compare_with_a_baseline(folder: Path) -> None:
    plan = str(folder / "plan")
    before = json.loads(run("compare", "baseline:none", plan, "--json").stdout)
    assert before["first"]["kernels"][0]["ops"] == [0]
    assert before["second"]["kernels"][0]["ops"] == [0, 2]
    after = json.loads(run("compare", plan, "baseline:none", "--json").stdout)
    assert after["second"] == before["first"]
    assert after["cluster"] == "test"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(ending: str, folder: Path) -> None:
    picture = folder / f"timeline.{ending}"
    plan, plain = str(folder / "plan"), str(folder / "plain")
    result = run("compare", plan, plain, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 1000
    wrong = run("compare", plan, plain, "--plot", str(folder / "timeline.doc"))
    assert wrong.exit_code == 2
    assert "timeline.doc must end in .png, .svg, .pdf" in wrong.stderr
    assert isinstance(wrong.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "none"], 2, "none is not there"),
        (["show", "."], 2, "holds neither strategy.json nor plan.json"),
        (["explain", "none"], 2, "none is not there"),
        (["compare", "none", "none"], 2, "none is not there"),
        (["show", "plan", "--cluster", "mars"], 2, "no cluster 'mars'"),
        (["show", "plan", "--problem", "nowhere.json"], 2, "no file nowhere.json"),
        (["show", "bare"], 2, "says nothing of the graph it is for, and there is no bare/problem"),
        (["show", "plan", "--top", "-1"], 2, "-1 is not in the range"),
        (["explain", "plan", "--why", "x", "z"], 2, "no op is called 'z'"),
        (["explain", "plan", "--why", "x", "updte"], 2, "'updte'; near: #4 update"),
        (["explain", "plan", "--why", "x", "x"], 2, "#0 x is named twice"),
        (["explain", "plan", "--why", "x", "#99"], 2, "ids are #0 to #4"),
        (["explain", "plan", "--why", "x"], 2, "requires 2 arguments"),
        (["explain"], 2, "Missing argument"),
        (["compare", "plan", "baseline:mine"], 2, "no baseline 'baseline:mine'; allowed: baseline"),
        (["compare", "baseline:none", "baseline:ddp"], 2, "one of A and B must be a plan"),
    ],
)
def test_wrong_calls(
    arguments: list[str],
    status: int,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bare").mkdir()
    shutil.copy(folder / "plan" / "strategy.json", folder / "bare")
    result = run(*arguments)
    assert result.exit_code == status, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_measured_times_belong_to_their_machine(tmp_path: Path) -> None:
    choice(times=(1.0, 1.0, 1.0, 0.0, 1.0)).save(tmp_path, {})
    assert run("show", str(tmp_path)).exit_code == 0
    result = run("show", str(tmp_path), "--cluster", "dgx-h100")
    assert result.exit_code == 1
    assert "has measured times of ops" in result.stderr
