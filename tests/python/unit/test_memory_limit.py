"""Strategies that need too much memory are illegal."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from graphs import CLUSTER, DEVICE, op, op_graphs
from hypothesis import assume, given, settings

from disco_fuse.config import AllReduceModel, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.graph import Edge, OpGraph, OpKind
from disco_fuse.search import SearchEvent, SearchResult, search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy

MODEL = RooflineCostModel(DEVICE)
# Messages cost their latency, so that one bucket is fastest.
SLOW_START = replace(CLUSTER, allreduce=AllReduceModel.linear(latency_us=500.0, us_per_byte=0.0))


def two_gradients() -> OpGraph:
    """Ops 0 and 1 compute gradients of 400 bytes, 2 and 3 average them, 4 and 5 update."""
    ops = [op("g0"), op("g1")]
    ops += [op("a0", kind=OpKind.ALLREDUCE), op("a1", kind=OpKind.ALLREDUCE)]
    ops += [replace(op(name, is_output=True), is_donated=True) for name in ("w0", "w1")]
    pairs = [(0, 2), (1, 3), (2, 4), (3, 5)]
    return OpGraph.create(ops, [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs])


def wide() -> OpGraph:
    """Op 8 adds up what ops 0 to 7 compute: without fusion all of that is alive at once."""
    ops = [op(f"x{i}") for i in range(8)] + [op("sum", num_inputs=8, is_output=True)]
    return OpGraph.create(ops, [Edge(producer=i, consumer=8, bytes=400) for i in range(8)])


def tuned(graph: OpGraph, limit: int | None, **options: object) -> SearchResult:
    config = SearchConfig.preset("full", memory_limit_bytes=limit, **options)
    return search(graph, MODEL, SLOW_START, config)


def peak(graph: OpGraph, strategy: Strategy) -> int:
    return simulate(graph, strategy, MODEL, SLOW_START).memory.peak_bytes


def test_a_bucket_that_does_not_fit_is_not_made() -> None:
    graph = two_gradients()
    free = tuned(graph, None)
    assert peak(graph, free.best) == 1600  # the gradients and a buffer for both
    bounded = tuned(graph, 1599)
    assert peak(graph, bounded.best) == 800
    assert bounded.makespan_us > free.makespan_us + 400
    assert tuned(graph, 1600).best == free.best


def test_a_search_that_starts_beyond_the_limit_finds_its_way() -> None:
    graph = wide()
    assert peak(graph, Strategy.unfused(graph)) == 9 * 400
    found = tuned(graph, 1000)
    assert peak(graph, found.best) <= 1000
    assert math.isinf(found.best_start_us)
    assert found.found_us == found.makespan_us
    assert found.initial_makespan_us == tuned(graph, None).initial_makespan_us


def test_until_then_there_is_no_makespan() -> None:
    events: list[SearchEvent] = []
    config = SearchConfig.preset("full", memory_limit_bytes=1000, report_every=1)
    search(wide(), MODEL, SLOW_START, config, on_event=events.append)
    infinite = [math.isinf(event.makespan_us) for event in events]
    assert infinite == sorted(infinite, reverse=True)
    assert infinite[0]
    assert not infinite[-1]


@pytest.mark.parametrize("starts", [1, 3])
def test_a_limit_nobody_meets_is_an_error_that_says_the_least(starts: int) -> None:
    message = (
        "no strategy fits a memory limit of 399 bytes: the smallest that was found needs 400 bytes"
    )
    with pytest.raises(ValueError, match=message):
        tuned(wide(), 399, num_starts=starts)


@pytest.mark.parametrize("limit", [-1, 2**61, 1.5])
def test_limits_that_are_none(limit: object) -> None:
    with pytest.raises(ValueError, match="memory_limit_bytes must be None or an int"):
        SearchConfig(memory_limit_bytes=limit)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(graph=op_graphs())
def test_no_result_is_beyond_its_limit(graph: OpGraph) -> None:
    most = peak(graph, tuned(graph, None, max_steps=200).best)
    assert peak(graph, tuned(graph, most, max_steps=200).best) <= most
    assume(most > 0)
    with suppress(ValueError):  # nothing that small need exist
        assert peak(graph, tuned(graph, most - 1, max_steps=200).best) < most
