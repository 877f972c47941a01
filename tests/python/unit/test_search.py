"""Backtracking and exhaustive search through the Python interface."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from graphs import CLUSTER, DEVICE, fork, op_graphs
from hypothesis import given, settings

from disco_fuse.config import FusionLimits, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.graph import OpGraph
from disco_fuse.search import SearchEvent, SearchResult, exhaustive, search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy, replay

MODEL = RooflineCostModel(DEVICE)


@settings(max_examples=40)
@given(graph=op_graphs(max_ops=7))
def test_exhaustive_search_is_reached_and_not_beaten(graph: OpGraph) -> None:
    oracle = exhaustive(graph, MODEL, CLUSTER)
    assert search(graph, MODEL, CLUSTER).makespan_us >= oracle.makespan_us
    # The default alpha may cut off the only way to the optimum; a large one follows every way.
    loose = SearchConfig(alpha=100.0, patience=3000, refill=True, drop_stale=True)
    found = search(graph, MODEL, CLUSTER, loose)
    assert found.makespan_us == oracle.makespan_us
    assert oracle.stop_reason == "exhausted"
    assert oracle.lower_bound_us <= oracle.makespan_us


@settings(max_examples=40)
@given(graph=op_graphs())
def test_results_are_legal_replayable_and_as_fast_as_simulated(graph: OpGraph) -> None:
    found = search(graph, MODEL, CLUSTER, SearchConfig(max_steps=150))
    assert found.lower_bound_us <= found.makespan_us <= found.initial_makespan_us
    assert replay(graph, found.edits).hash == found.best.hash
    best = found.best
    assert Strategy.create(graph, best.group_of, best.duplicated, best.order) == best
    assert simulate(graph, best, MODEL, CLUSTER).makespan_us == found.makespan_us


def run(**options: object) -> SearchResult:
    return search(fork(), MODEL, CLUSTER, SearchConfig(**options))  # type: ignore[arg-type]


def test_a_seed_is_a_plan() -> None:
    assert run(seed=3) == run(seed=3)
    assert run(seed=3).stop_reason == "patience"


def test_presets() -> None:
    paper = SearchConfig.preset("paper")
    assert paper == SearchConfig()
    assert (paper.alpha, paper.beta, paper.patience, paper.queue_cap) == (1.05, 10, 1000, None)
    assert paper.methods == ("fuse", "fuse-duplicate", "merge-buckets")
    assert paper.limits.bucket_neighbours == "producer-consumer"
    assert (paper.refill, paper.drop_stale) == (False, False)
    code = SearchConfig.preset("reference-code")
    assert (code.alpha, code.beta, code.num_chains, code.queue_cap) == (1.1, 10, 5, 50)
    found = search(fork(), MODEL, CLUSTER, code)
    assert {edit.kind for edit in found.edits} <= {"fuse-duplicate"}
    assert (found.stop_reason, found.num_candidates) == ("max-steps", 1000)
    assert found.num_steps == 100
    assert SearchConfig.preset("full", seed=7).seed == 7
    assert SearchConfig.preset("full").limits.bucket_neighbours == "production-order"
    with pytest.raises(ValueError, match=r"the preset must be one of .*'full'.*, got 'fast'"):
        SearchConfig.preset("fast")


def test_limits() -> None:
    stopped = run(max_steps=17)
    assert (stopped.stop_reason, stopped.num_candidates) == ("max-steps", 17)
    late = run(time_limit_s=0.0, report_every=1)
    assert (late.stop_reason, late.num_candidates) == ("time-limit", 1)
    assert run(queue_cap=1, children_per_pop=10).makespan_us == run().makespan_us


def test_initial_strategies_are_starting_points() -> None:
    graph = fork()
    best = exhaustive(graph, MODEL, CLUSTER).best
    found = search(graph, MODEL, CLUSTER, SearchConfig(max_steps=0), [best])
    assert found.best == best
    assert (found.start, found.edits) == (1, ())
    assert (found.best_start, found.best_start_us) == (1, found.makespan_us)
    assert found.found_us > found.makespan_us
    assert (found.num_candidates, found.num_found_candidates) == (0, 0)


def test_full_preset_replays_with_its_limits() -> None:
    config = SearchConfig.preset("full", max_steps=300)
    graph = fork()
    found = search(graph, MODEL, CLUSTER, config)
    assert replay(graph, found.edits, limits=config.limits).hash == found.best.hash
    assert 0 < found.num_unseen < found.num_candidates


def test_threads_do_not_change_the_result() -> None:
    one = run(num_starts=3, max_steps=50)
    assert one == run(num_starts=3, num_threads=2, max_steps=50)
    assert one.num_candidates == 150
    assert one.makespan_us <= run(max_steps=50).makespan_us


def test_ctrl_c_reaches_threads() -> None:
    def interrupt(event: SearchEvent) -> None:
        if event.num_candidates >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    config = SearchConfig(report_every=1, patience=10**6, num_starts=8, num_threads=2)
    found = search(fork(), MODEL, CLUSTER, config, on_event=interrupt)
    assert found.stop_reason == "interrupted"
    assert found.makespan_us <= found.initial_makespan_us


def test_time_limit_is_shared_by_starts_and_phases() -> None:
    config = SearchConfig(report_every=1, patience=10**6, time_limit_s=0.4, num_starts=2)
    events: list[SearchEvent] = []
    found = search(fork(), MODEL, CLUSTER, config, [Strategy.unfused(fork())], events.append)
    assert found.stop_reason == "time-limit"
    # The first phase of two of the first search of two.
    assert found.num_found_candidates < found.num_candidates
    assert 0.4 <= events[-1].elapsed_s < 5.0


def test_events() -> None:
    events: list[SearchEvent] = []
    config = SearchConfig(max_steps=100, report_every=50)
    found = search(fork(), MODEL, CLUSTER, config, on_event=events.append)
    assert [e.num_candidates for e in events if e.num_candidates % 50 == 0] == [50, 100]
    improvements = [e.makespan_us for e in events if e.improved]
    assert improvements == sorted(improvements, reverse=True)
    assert improvements[-1] == found.makespan_us
    assert events[-1].num_queued > 0


@pytest.mark.parametrize("num_threads", [1, 2])
def test_events_hold_the_new_best(num_threads: int) -> None:
    events: list[SearchEvent] = []
    config = SearchConfig(max_steps=100, num_starts=2, num_threads=num_threads)
    search(fork(), MODEL, CLUSTER, config, on_event=events.append)
    assert any(event.improved for event in events)
    for event in events:
        assert event.improved == (event.best is not None) == (event.timeline is not None)
        if event.best is not None:
            assert simulate(fork(), event.best, MODEL, CLUSTER) == event.timeline()
            assert event.timeline().makespan_us == event.makespan_us


def test_ctrl_c_keeps_the_best() -> None:
    def interrupt(event: SearchEvent) -> None:
        if event.num_candidates >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    config = SearchConfig(report_every=1, patience=10**6, max_steps=1000)
    found = search(fork(), MODEL, CLUSTER, config, on_event=interrupt)
    assert found.stop_reason == "interrupted"
    assert 20 <= found.num_candidates <= 22
    assert found.makespan_us <= found.initial_makespan_us
    assert signal.getsignal(signal.SIGINT) is before


def test_search_works_outside_the_main_thread() -> None:
    results: list[SearchResult] = []
    thread = threading.Thread(target=lambda: results.append(run(max_steps=10)))
    thread.start()
    thread.join()
    assert results[0] == run(max_steps=10)


def test_errors_in_on_event_pass_through() -> None:
    def fail(event: SearchEvent) -> None:
        raise RuntimeError(f"at {event.num_candidates}")

    with pytest.raises(RuntimeError, match="at 1"):
        search(fork(), MODEL, CLUSTER, SearchConfig(report_every=1), on_event=fail)


def test_exhaustive_is_for_tiny_graphs() -> None:
    with pytest.raises(ValueError, match="more than 2 strategies"):
        exhaustive(fork(), MODEL, CLUSTER, max_states=2)


def test_limits_bound_the_space() -> None:
    alone = exhaustive(fork(), MODEL, CLUSTER, limits=FusionLimits(max_group_ops=1))
    assert alone.num_candidates == 1
    found = search(fork(), MODEL, CLUSTER, SearchConfig(limits=FusionLimits(max_group_ops=1)))
    assert found.best.hash == Strategy.unfused(fork()).hash


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", 0.5),
        ("beta", 0),
        ("num_chains", -1),
        ("num_chains", 5),
        ("patience", 0),
        ("seed", -1),
        ("max_steps", -1),
        ("time_limit_s", -1.0),
        ("queue_cap", 0),
        ("methods", ()),
        ("methods", ("split",)),
        ("num_starts", 0),
        ("num_threads", 0),
        ("report_every", 0),
    ],
)
def test_config_is_checked(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"SearchConfig.{field}"):
        SearchConfig(**{field: value})  # type: ignore[arg-type]
