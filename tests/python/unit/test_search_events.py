"""Events of a search as lines, and timelines short enough to be drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from graphs import CLUSTER, DEVICE, fork
from hypothesis import example, given
from hypothesis import strategies as st

from disco_fuse import __version__
from disco_fuse.cli.main import main
from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.fuse_ops import Emission
from disco_fuse.search import SearchEvent
from disco_fuse.simulate import Event, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning import Problem, tune
from disco_fuse.tuning.events import SearchEvents, end_event, lanes_of, start_event

GRAPH = fork()
UNFUSED = Strategy.unfused(GRAPH)
TIMELINE = simulate(GRAPH, UNFUSED, RooflineCostModel(DEVICE), CLUSTER)


def problem() -> Problem:
    emission = Emission(groups=((0, 1),), order=(0, 1, 2, 3, 4))
    return Problem(name="fork", graph=GRAPH, emission=emission)


def at(elapsed_s: float, candidates: int, *, improved: bool = False) -> SearchEvent:
    return SearchEvent(
        num_steps=1,
        num_candidates=candidates,
        makespan_us=90.0 - candidates / 100,
        improved=improved,
        elapsed_s=elapsed_s,
        num_queued=7,
        best=UNFUSED if improved else None,
        timeline=(lambda: TIMELINE) if improved else None,
    )


def lines_of(*events: SearchEvent) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    tell = SearchEvents(GRAPH, lines.append)
    for event in events:
        tell(event)
    return lines


def test_few_lines_however_many_events() -> None:
    lines = lines_of(*(at(i / 1000, i) for i in range(1, 2001)))
    assert len(lines) == 8
    gaps = [b["elapsed_s"] - a["elapsed_s"] for a, b in pairwise(lines)]
    assert min(gaps) >= 0.25
    assert lines[-1]["candidates_per_s"] == pytest.approx(1000.0, rel=0.01)
    assert lines[-1]["queued"] == 7
    assert {line["event"] for line in lines} == {"progress"}


def test_a_new_best_that_came_too_fast_is_told_later() -> None:
    lines = lines_of(
        at(0.3, 1, improved=True),
        at(0.4, 2, improved=True),
        at(0.6, 3),
        at(1.2, 4),
        at(1.4, 5),
        at(2.9, 6),
        at(4.9, 7),
    )
    kinds = ["incumbent", "progress", "progress", "incumbent", "progress"]
    assert [line["event"] for line in lines] == kinds
    assert [line["candidates"] for line in lines] == [1, 3, 4, 6, 7]
    assert lines[0]["lanes"]["makespan_us"] == TIMELINE.makespan_us


def test_no_strategy_that_fits_is_null() -> None:
    (line,) = lines_of(replace(at(1.0, 1), makespan_us=float("inf")))
    assert line["makespan_us"] is None


def test_lanes_are_the_timeline() -> None:
    lanes = lanes_of(TIMELINE, GRAPH, UNFUSED)
    assert lanes["streams"] == ["compute", "communication"]
    assert lanes["makespan_us"] == TIMELINE.makespan_us
    assert [span[:4] for span in lanes["spans"]] == [
        [int(event.stream == "communication"), event.start_ns / 1e3, duration / 1e3, 1]
        for event in TIMELINE.events
        for duration in [event.finish_ns - event.start_ns]
    ]
    assert [span[5] == "bucket" for span in lanes["spans"]] == [s[0] == 1 for s in lanes["spans"]]
    assert lanes["spans"][0][4] == GRAPH.ops[TIMELINE.events[0].unit].name


@example([(1, 0)] * 200)
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 300)), min_size=1, max_size=100))
def test_lanes_are_few_and_lose_no_time(units: list[tuple[int, int]]) -> None:
    events, now = [], 0
    for duration, idle in units:
        events.append(
            Event(unit=0, stream="compute", start_ns=now + idle, finish_ns=now + idle + duration)
        )
        now = events[-1].finish_ns
    timeline = replace(TIMELINE, events=tuple(events), makespan_us=now / 1000)
    spans = lanes_of(timeline, GRAPH, UNFUSED, max_spans=20)["spans"]
    assert len(spans) <= 20 * 2 + 1
    assert sum(span[3] for span in spans) == len(units)
    assert spans[0][1] == pytest.approx(events[0].start_ns / 1e3)
    assert spans[-1][1] + spans[-1][2] == pytest.approx(now / 1e3, abs=0.01)
    for a, b in pairwise(spans):
        assert a[1] + a[2] <= b[1] + 0.002


def test_first_and_last_line() -> None:
    result = tune(problem(), CLUSTER, SearchConfig(max_steps=20, seed=5))
    first = start_event(problem(), CLUSTER, result.config, "paper")
    assert (first["model"], first["cluster"], first["seed"]) == ("fork", "test", 5)
    assert first["versions"]["disco-fuse"] == __version__
    last = end_event(result)
    assert last["makespan_us"] == result.makespan_us == last["lanes"]["makespan_us"]
    assert last["lower_bound_us"] <= last["makespan_us"] <= last["best_baseline_us"]
    assert last["reason"] == "max-steps"


@pytest.mark.parametrize("option", ["--events", "-O"])
def test_tune_writes_them(option: str, tmp_path: Path) -> None:
    problem().save(tmp_path / "problem.json.gz")
    where = tmp_path / "logs" / ("events.jsonl" if option == "--events" else "")
    command = ["tune", "--problem", str(tmp_path / "problem.json.gz"), "--max-steps", "2000"]
    result = CliRunner().invoke(main, [*command, option, str(where)])
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "logs" / "events.jsonl").read_text().splitlines()
    assert '"event": "start"' in lines[0]
    assert '"event": "limits", "best_baseline": "' in lines[1]
    assert '"event": "end"' in lines[-1]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    problem().save(tmp_path / "problem.json.gz")
    (tmp_path / "file").write_text("")
    command = ["tune", "--problem", str(tmp_path / "problem.json.gz"), "--max-steps", "20"]
    result = CliRunner().invoke(
        main, [*command, "--events", str(tmp_path / "file" / "events.jsonl")]
    )
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'}" in result.stderr
    assert isinstance(result.exception, SystemExit)
