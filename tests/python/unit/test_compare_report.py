"""The table, the report and the check of losses."""

from __future__ import annotations

import json

import pytest

from disco_fuse.compare.report import (
    StrategyResult,
    best_baseline,
    check_losses,
    format_table,
    to_json,
)
from disco_fuse.compare.trace import measured_trace


def _result(name: str, times: tuple[float, ...], loss: float, **kw) -> StrategyResult:
    values = {"kernels": 10, "allreduces": 2, "makespan_us": 900.0, "overlap": 0.5} | kw
    return StrategyResult(name=name, step_times_us=times, losses=(3.0, loss), **values)


RESULTS = [
    _result("none", (1000.0, 1200.0, 1100.0), 2.0),
    _result("ddp", (1000.0, 1000.0, 1000.0), 2.0),
    _result("disco_fuse", (900.0, 800.0, 850.0), 2.0),
    _result(
        "pytorch_ddp",
        (500.0, 500.0, 500.0),
        2.0,
        kernels=None,
        allreduces=None,
        makespan_us=None,
        overlap=None,
    ),
]


def test_best_baseline_is_neither_ours_nor_pytorch() -> None:
    assert best_baseline(RESULTS).name == "ddp"
    with pytest.raises(ValueError, match="no baseline among"):
        best_baseline(RESULTS[2:])


def test_table_has_a_line_each_and_the_ratio() -> None:
    lines = format_table(RESULTS).splitlines()
    assert len(lines) == 2 + len(RESULTS)
    assert " 0.850 " in lines[4]
    assert lines[5].split()[1:4] == ["-", "-", "-"]


def test_json_has_the_promised_keys() -> None:
    report = json.loads(json.dumps(to_json("m", 2, RESULTS)))
    assert (report["model"], report["world_size"]) == ("m", 2)
    none = report["strategies"][0]
    assert none["step_time_us"]["median"] == 1100.0
    assert set(none) == {
        "name",
        "kernels",
        "allreduces",
        "makespan_us",
        "step_time_us",
        "overlap",
        "loss",
        "breakdown",
    }


@pytest.mark.parametrize("loss", [2.003, 1.997, float("nan"), float("inf")])
def test_a_differing_loss_is_named(loss: float) -> None:
    assert check_losses(RESULTS) == []
    problems = check_losses([*RESULTS[:3], _result("odd", (1.0,), loss), RESULTS[3]])
    assert len(problems) == 1
    assert "loss of odd after step 2" in problems[0]
    assert "pytorch_ddp has 2.0" in problems[0]


def test_a_small_difference_is_allowed() -> None:
    assert check_losses([*RESULTS, _result("close", (1.0,), 2.0019)]) == []


def test_trace_has_a_process_per_rank_and_microseconds() -> None:
    rank = {
        "rows": [[3, 0, 1000, 3500], [0, 1, 2000, 5000]],
        "kernel_names": ["fused_add"],
        "begin_ns": 70_000,
    }
    events = measured_trace([rank, {**rank, "begin_ns": 74_000}])["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0, 1}
    kernel, allreduce = spans[:2]
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("fused_add", 1.0, 2.5)
    assert allreduce["args"] == {"bucket": 1}
    assert kernel["tid"] != allreduce["tid"]
    # The other rank began 4 us later.
    assert [e["ts"] for e in spans if e["pid"] == 1] == [5.0, 6.0]
