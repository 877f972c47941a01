"""The live page's reading of files: whole lines, bounded memory, whatever the files hold."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from event_files import LANES, SEARCH_START, append, job_start, limits, progress, search_end, step
from hypothesis import given
from hypothesis import strategies as st

from disco_fuse.dashboard import Watch
from disco_fuse.dashboard.history import History
from disco_fuse.dashboard.tail import CHUNK_BYTES, MAX_LINE_BYTES, Tail


def watched(*places: Path) -> Watch:
    watch = Watch(places)
    look(watch)
    return watch


def look(watch: Watch) -> None:
    """Read all there is."""
    watch.scan()
    while any(list(watch.read())):
        pass


def only(watch: Watch) -> dict[str, Any]:
    (run,) = watch.runs.values()
    snapshot = run.snapshot()
    json.dumps(snapshot, allow_nan=False)
    return snapshot


def test_a_line_is_given_out_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    assert tail.failure == "No such file or directory"
    append(path, "one\ntw")
    assert tail.read() == [b"one"]
    assert tail.failure == ""
    assert tail.read() == []
    append(path, "o\n\nthree\n")
    assert tail.read() == [b"two", b"", b"three"]


def test_long_files_are_read_in_chunks_and_long_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, "first\n", "x" * (MAX_LINE_BYTES + CHUNK_BYTES) + "\n", "last\n")
    tail = Tail(path)
    lines = [line for _ in range(40) for line in tail.read()]
    assert lines == [b"first", b"last"]
    assert tail.num_too_long == 1


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_starts_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, "one\n", "half")
    tail = Tail(path)
    assert tail.read() == [b"one"]
    if how == "replaced":
        append(tmp_path / "new", "another\nlonger one\n")
        os.replace(tmp_path / "new", path)
        assert tail.read() == [b"another", b"longer one"]
    else:
        path.write_text("new\n")
        assert tail.read() == [b"new"]
    assert tail.num_restarts == 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.sampled_from([2, 8, 64]))
def test_a_history_is_thinned_out_and_keeps_extremes(values: list[float], size: int) -> None:
    history = History(size)
    for x, y in enumerate(values):
        history.add(x, y)
    points = history.points()
    assert len(points) <= size
    assert points[-1][0] == len(values) - 1
    whole = points[:-1]  # the last one may be filled further
    assert [x + 1 for x, *_ in whole] == [(i + 1) * history.num_merged for i in range(len(whole))]
    assert min(low for _, low, _, _ in points) == min(values)
    assert max(high for *_, high in points) == max(values)
    assert all(low - 1.0 <= mean <= high + 1.0 for _, low, mean, high in points)


def test_a_history_leaves_out_what_cannot_be_drawn() -> None:
    history = History(4)
    for y in (1.0, float("nan"), float("inf"), 3.0):
        history.add(0.0, y)
    assert [p[2] for p in history.points()] == [1.0, 3.0]
    history.rewind(0.0)
    assert history.points() == []


def test_a_search(tmp_path: Path) -> None:
    path = tmp_path / "plan" / "events.jsonl"
    append(
        path,
        SEARCH_START,
        limits(lower_bound_us=70.0),
        progress(100, 120.0),
        progress(200, 90.0, lanes=LANES),
    )
    watch = watched(tmp_path)
    run = only(watch)
    assert (run["kind"], run["title"], run["end"]) == ("search", "bert", None)
    assert run["name"] == f"{tmp_path.name}/plan"
    state = run["state"]
    assert (state["candidates"], state["queued"], state["makespan_us"]) == (200, 5, 90.0)
    assert state["initial_us"] == 120.0
    assert state["lanes"] is None  # progress has none
    assert (state["limits"]["lower_bound_us"], state["end"]) == (70.0, None)
    assert state["best"] == [[0.1, 0.12, 0.12, 0.12], [0.2, 0.09, 0.09, 0.09]]
    append(path, progress(300, 85.0, event="incumbent", lanes=LANES), search_end())
    look(watch)
    state = only(watch)["state"]
    assert [span[5] for span in state["lanes"]["spans"]] == [1, 2]  # library call, AllReduce
    assert [span[:5] for span in state["lanes"]["spans"]] == [s[:5] for s in LANES["spans"]]
    assert state["end"] == {"reason": "patience"}
    assert state["limits"] == {
        "lower_bound_us": 75.0,
        "best_baseline": "horovod",
        "best_baseline_us": 100.0,
    }
    append(path, {**SEARCH_START, "model": "gpt2"})  # another search, into the same file
    look(watch)
    assert (only(watch)["title"], only(watch)["state"]["candidates"]) == ("gpt2", 0)


def test_a_training_and_its_straggler(tmp_path: Path) -> None:
    for rank, busy_us in ((0, 9000.0), (1, 9000.0), (2, 12000.0)):
        steps = [step(i, busy_us, 15000.0 - busy_us) for i in range(1, 41)]
        append(tmp_path / f"events-rank-{rank}.jsonl", job_start(rank, 3), *steps)
    watch = watched(tmp_path)
    run = only(watch)
    assert (run["kind"], run["title"], run["num_files"]) == ("job", "ours", 3)
    state = run["state"]
    assert state["stragglers"] == [2]
    assert [row["rank"] for row in state["rows"]] == [2, 0, 1]
    assert state["rows"][0]["slower"] == pytest.approx(12 / 9)
    assert state["rows"][1]["exposed_ms"] == pytest.approx(6.0)
    assert (state["step"], state["loss"]) == (40, "0.1")
    assert len(state["step_curves"]) == 3
    end = {"event": "end", "step": 40, "reason": "steps", "detail": ""}
    for rank in range(3):
        assert only(watch)["end"] is None
        append(tmp_path / f"events-rank-{rank}.jsonl", end)
        look(watch)
    assert only(watch)["end"] == "steps"
    assert [note["event"] for note in only(watch)["state"]["notes"]][-1] == "end"


@pytest.mark.parametrize(("slow", "stragglers"), [(10500.0, []), (11500.0, [1])])
def test_of_two_ranks_the_slower_one(slow: float, stragglers: list[int], tmp_path: Path) -> None:
    for rank, busy_us in ((0, 10000.0), (1, slow)):
        steps = [step(i, busy_us) for i in range(1, 10)]
        append(tmp_path / f"events-rank-{rank}.jsonl", job_start(rank), *steps)
    watch = watched(tmp_path)
    assert only(watch)["state"]["stragglers"] == []  # of nine steps: nothing to say
    for rank, busy_us in ((0, 10000.0), (1, slow)):
        append(tmp_path / f"events-rank-{rank}.jsonl", step(10, busy_us))
    look(watch)
    assert only(watch)["state"]["stragglers"] == stragglers


def test_a_step_that_was_held_up_once_makes_no_straggler(tmp_path: Path) -> None:
    for rank, held_us in ((0, 100_000.0), (1, 10_000.0)):
        steps = [step(i, held_us if i == 15 else 10_000.0) for i in range(1, 21)]
        append(tmp_path / f"events-rank-{rank}.jsonl", job_start(rank), *steps)
    run = only(watched(tmp_path))
    assert run["state"]["stragglers"] == []
    assert run["figure_ms"] == run["state"]["step_ms"] == pytest.approx(15.5)


def test_a_resumed_training_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "events-rank-0.jsonl"
    append(path, job_start(0, 1), *(step(i) for i in range(1, 9)))
    append(path, job_start(0, 1, step=4), step(5))
    state = only(watched(tmp_path))["state"]
    assert [x for x, *_ in state["loss_curve"]] == [1, 2, 3, 4, 5]
    assert [x for x, *_ in state["step_curves"]["0"]] == [1, 2, 3, 4, 5]
    append(path, job_start(1, 2), job_start(0, 1))  # then on fewer ranks
    assert [row["rank"] for row in only(watched(tmp_path))["state"]["rows"]] == [0]


def test_events_without_exposed_communication(tmp_path: Path) -> None:
    for rank in range(2):
        old = {"event": "step", "step": 1, "loss": "nan", "losses": [], "seconds": 0.01}
        append(tmp_path / f"events-rank-{rank}.jsonl", job_start(rank), old)
    state = only(watched(tmp_path))["state"]
    assert (state["step_ms"], state["exposed_ms"], state["loss"]) == (10.0, None, "nan")
    assert (state["stragglers"], state["loss_curve"]) == ([], [])


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["{broken\n", '["a list"]\n', "[" * 100_000 + "\n"], "3 broken lines left out"),
        (["\xff\x00\n"], "1 broken lines left out"),
        ([{"event": "news"}, {"no": "event"}], "2 unknown events left out"),
        ([{**SEARCH_START, "version": 2}], "events of format 2 left out: known is 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(lines: list[Any], problem: str, tmp_path: Path) -> None:
    append(tmp_path / "events.jsonl", SEARCH_START, progress(1, 5.0), *lines)
    run = only(watched(tmp_path))
    assert problem in run["problems"]
    assert run["state"]["makespan_us"] == 5.0


_FIELDS = sorted({*SEARCH_START, *progress(1, 1.0), *search_end(), *job_start(0), *step(1)})
_ODD_VALUES = (
    *(None, True, -1, 0, 3, 2.5, -0.0, 1e308, 10**400, float("nan"), float("-inf")),
    *("", "nan", "\ud800", "<script>", [], {}, [[0, 1, 1, 1, "x"]], [[9, 1, 1, 1, 1]], [1, 2]),
    *({"streams": ["a"], "spans": [[0, 1, 1, 1, "x"]], "makespan_us": 9}, {"streams": 1}),
    {"streams": ["a"], "spans": [[0, -1, "x", None, {}]], "makespan_us": 9},
)


@pytest.mark.parametrize("start", [SEARCH_START, job_start(0)], ids=["search", "job"])
def test_no_event_breaks_the_page(start: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(0)
    kinds = ("start", "progress", "incumbent", "step", "skip", "end")
    path = tmp_path / "events.jsonl"
    append(path, start)
    watch = watched(tmp_path)
    for _ in range(300):
        fields = draw.sample(_FIELDS, 5)
        event = {name: draw.choice(_ODD_VALUES) for name in fields} | {"event": draw.choice(kinds)}
        append(path, event)
        look(watch)
        only(watch)


def test_several_runs_come_and_go(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    assert watch.overview()["runs"] == []
    append(tmp_path / "a" / "events.jsonl", SEARCH_START)
    append(tmp_path / "a" / "b" / "c" / "d" / "e" / "events.jsonl", SEARCH_START)  # too deep
    append(tmp_path / "b" / "events-rank-0.jsonl", job_start(0))
    append(tmp_path / "b" / "events-rank-1.jsonl", job_start(1))
    append(tmp_path / "b" / "notes.jsonl", "nothing to us\n")
    os.utime(tmp_path / "a" / "events.jsonl", (0, 0))
    look(watch)
    names = [run["name"] for run in watch.overview()["runs"]]
    assert names == [f"{tmp_path.name}/b", f"{tmp_path.name}/a"]
    (tmp_path / "a" / "events.jsonl").unlink()
    look(watch)
    assert [run["kind"] for run in watch.overview()["runs"]] == ["job"]


def test_too_many_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_fuse.dashboard.watch.MAX_FILES", 3)
    for i in range(5):
        append(tmp_path / f"events-{i}.jsonl", SEARCH_START)
    assert watched(tmp_path).overview()["num_left_out"] == 2


@pytest.mark.parametrize("num_events", [3_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_events(num_events: int, tmp_path: Path) -> None:
    def bytes_after(number: int, folder: Path) -> tuple[int, int]:
        steps = [json.dumps(step(i)) for i in range(1, number + 1)]
        append(folder / "events-rank-0.jsonl", job_start(0, 1), "\n".join(steps) + "\n")
        del steps
        tracemalloc.start()
        watch = watched(folder)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size, len(json.dumps(only(watch)))

    few, short = bytes_after(300, tmp_path / "few")
    many, long = bytes_after(num_events, tmp_path / "many")
    # A curve has between half of its points and all of them.
    assert many < 2 * few
    assert long < 2 * short


def test_a_world_of_any_size(tmp_path: Path) -> None:
    append(tmp_path / "events-rank-0.jsonl", job_start(0, 10**15), step(1))
    snapshot = only(watched(tmp_path))
    assert snapshot["state"]["world_size"] == 10**15
    assert snapshot["state"]["num_ranks"] == 1


def test_a_folder_whose_name_no_encoding_knows(tmp_path: Path) -> None:
    append(tmp_path / os.fsdecode(b"x\xff") / "events.jsonl", SEARCH_START, progress(1, 9000.0))
    watch = watched(tmp_path)
    assert only(watch)["title"] == "bert"
    json.dumps(watch.overview()).encode()
