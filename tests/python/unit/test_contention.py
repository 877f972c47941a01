"""The plan that stays fast around the measured contention."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from graphs import CLUSTER, DEVICE, fork, op_graphs
from hypothesis import given, settings

from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.graph import OpGraph
from disco_fuse.search import search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning import contention

MODEL = RooflineCostModel(DEVICE)
CONFIG = SearchConfig(max_steps=40, seed=3)


def test_contentions_lie_around_the_measured_one() -> None:
    around = contention.contentions_around
    assert around(replace(CLUSTER, contention=1.5)) == pytest.approx([1.25, 1.5, 1.75])
    assert around(replace(CLUSTER, contention=1.0)) == [1.0]


@pytest.mark.parametrize("fast_at", [0, 1, 2, "start"])
def test_the_best_on_the_mean_is_taken(fast_at: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the search for one of the contentions finds it, or it is one of the starts."""
    graph = fork()
    slow, fast = Strategy.unfused(graph), search(graph, MODEL, CLUSTER, CONFIG).best
    assert simulate(graph, fast, MODEL, CLUSTER).makespan_us < (
        simulate(graph, slow, MODEL, CLUSTER).makespan_us
    )
    asked = []

    def found(_graph: OpGraph, _model: Any, cluster: ClusterSpec, *_: Any) -> SimpleNamespace:
        asked.append(cluster.contention)
        return SimpleNamespace(best=fast if fast_at == len(asked) - 1 else slow)

    monkeypatch.setattr(contention, "search", found)
    starts = [slow, fast] if fast_at == "start" else [slow]
    best = contention.search_contentions(graph, MODEL, CLUSTER, CONFIG, starts)
    assert best is fast
    assert asked == contention.contentions_around(CLUSTER)


@given(op_graphs())
@settings(max_examples=20)
def test_without_contention_it_is_one_search(graph: OpGraph) -> None:
    cluster = replace(CLUSTER, contention=1.0)
    best = contention.search_contentions(graph, MODEL, cluster, CONFIG, [])
    assert best.to_json() == search(graph, MODEL, cluster, CONFIG).best.to_json()
