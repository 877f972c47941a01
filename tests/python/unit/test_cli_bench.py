"""``disco-fuse bench``: what it refuses, what it keeps, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disco_fuse.cli import bench as command
from disco_fuse.cli import links
from disco_fuse.cli.main import main
from disco_fuse.compare.link_bench import DDP, LinkBench
from disco_fuse.simulate import Event, StepMemory, Timeline

TIMES = {"none": 210.0, "ddp": 200.0, "disco_fuse": 170.0}


def result(model: str, **changes: Any) -> dict[str, Any]:
    times = {**TIMES, **dict.fromkeys(DDP, 300.0), "pytorch_ddp_5mb": 250.0}
    return {
        "model": model,
        "step_time_ms": times,
        "best_baseline": "ddp",
        "fo_ms": 100.0,
        "fo_cpu_ms": 160.0,
        "exposed_ms": 5.0,
        "simulated_exposed_ms": 4.0,
        "simulated_ms": {"disco_fuse": 165.0},
        "lower_bound_ms": 150.0,
        "overhead_ms": 1.0,
        **changes,
    }


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give models or --all"),
        (["--all", "byte_gpt"], "give models or --all"),
        (["nobody"], "no model 'nobody'"),
        (["byte_gpt", "--link", "fast"], "the rate of a link is 'fast'; allowed: '1gbit'"),
        (["byte_gpt", "--steps", "0"], "--steps 0 must be at least 1"),
        (["byte_gpt", "-n", "1"], "-n 1 at least 2"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_links_that_cannot_be_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "why_unavailable", lambda: "network namespaces need root")
    done = invoke("byte_gpt", "--link", "1gbit")
    assert done.exit_code == 1
    assert "no links of a given rate here: network namespaces need root" in done.output


def test_results_are_kept_and_a_failure_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def apart(_function: Any, what: LinkBench) -> Any:
        measured.append(what.model)
        if what.model == "vgg_dense":
            raise RuntimeError("the ranks ended with exit status 1")
        what.folder.mkdir(parents=True, exist_ok=True)
        return result(what.model)

    monkeypatch.setattr(command, "apart", apart)
    file = tmp_path / "bench.json"
    arguments = ["--all", "--cache", str(tmp_path / "cache"), "--json", str(file)]
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert "failed: vgg_dense" in done.output
    assert measured == list(command.MODELS)
    runs = json.loads(file.read_text())["runs"]
    assert [run["model"] for run in runs] == [m for m in command.MODELS if m != "vgg_dense"]
    invoke(*arguments)
    assert measured[len(command.MODELS) :] == ["vgg_dense"]
    invoke(*arguments, "--fresh")
    assert len(measured) == 2 * len(command.MODELS) + 1


def test_table_compares_with_the_best_of_each_kind() -> None:
    row = dict(zip(command.HEADER, command.table([result("m")])[1], strict=True))
    assert (row["best baseline"], row["best ddp"]) == ("ddp", "5mb")
    assert (row["to baseline"], row["to ddp"], row["to FO_cpu"]) == ("0.850", "0.680", "1.062")
    compiler_failed = {**TIMES, "pytorch_ddp_25mb": 340.0, "pytorch_ddp_compile": None}
    row = dict(
        zip(
            command.HEADER,
            command.table([result("m", step_time_ms=compiler_failed)])[1],
            strict=True,
        )
    )
    assert (row["best ddp"], row["to ddp"]) == ("25mb", "0.500")


def test_exposed_time_of_a_timeline_is_where_compute_waits() -> None:
    events = (
        Event(unit=0, stream="compute", start_ns=0, finish_ns=4000),
        Event(unit=1, stream="communication", start_ns=4000, finish_ns=9000),
        Event(unit=2, stream="compute", start_ns=4000, finish_ns=6000),
        Event(unit=3, stream="compute", start_ns=9000, finish_ns=10000),
    )
    memory = StepMemory(external_bytes=0, bucket_bytes=0, peak_bytes=0)
    timeline = Timeline(
        events=events,
        makespan_us=10.0,
        compute_us=7.0,
        allreduce_us=5.0,
        overlap=0.4,
        critical_path=(),
        memory=memory,
    )
    assert timeline.exposed_us == 3.0
