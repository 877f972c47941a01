"""What a search does with cost models that lie and with graphs at the edge of what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE, fork, op

from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import CostModel, Group, RooflineCostModel
from disco_fuse.graph import Edge, OpGraph, OpKind, OpPattern
from disco_fuse.search import SearchResult, exhaustive, search
from disco_fuse.strategy import Strategy, replay

FULL = SearchConfig.preset("full", max_steps=500)
Answer = Callable[[Sequence[Group]], Sequence[float]]


class Liar(CostModel):
    """Tells the truth about single ops only."""

    name = "liar"
    digest = "0"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> np.ndarray:
        del graph
        if all(len(group.ops) == 1 for group in groups):
            return np.full(len(groups), 10.0)
        return np.array(self.answer(groups))


def profile_missing(groups: Sequence[Group]) -> Sequence[float]:
    raise RuntimeError(f"no profile of {groups[0].ops}")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda groups: [np.nan] * len(groups), ValueError, "'liar' predicts nan us"),
        (lambda groups: [np.inf] * len(groups), ValueError, "'liar' predicts inf us"),
        (lambda groups: [-1.0] * len(groups), ValueError, "'liar' predicts -1.* us"),
        (lambda groups: [1.0] * (len(groups) + 1), ValueError, r"'liar' made \d predictions for"),
        (lambda groups: groups[:0], ValueError, "'liar' made 0 predictions for"),
        (profile_missing, RuntimeError, r"no profile of \(0"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_bad_predictions_end_the_search(
    answer: Answer, error: type[Exception], message: str, threads: int
) -> None:
    config = SearchConfig(num_starts=threads, num_threads=threads)
    with pytest.raises(error, match=message):
        search(fork(), Liar(answer), CLUSTER, config)


def run(graph: OpGraph, config: SearchConfig = FULL) -> SearchResult:
    """Searches, and checks what holds for every result."""
    found = search(graph, RooflineCostModel(DEVICE), CLUSTER, config)
    assert found.lower_bound_us <= found.makespan_us <= found.initial_makespan_us
    assert replay(graph, found.edits, limits=config.limits).hash == found.best.hash
    return found


def test_no_ops() -> None:
    found = run(OpGraph.create([]))
    assert (found.makespan_us, found.edits, found.num_unseen) == (0.0, (), 0)


def test_one_op() -> None:
    graph = OpGraph.create([op("a")])
    found = run(graph)
    assert found.best == Strategy.unfused(graph)
    assert found.num_unseen == 0
    assert exhaustive(graph, RooflineCostModel(DEVICE), CLUSTER).num_candidates == 1


def test_no_gradients() -> None:
    ops = [op(f"op{i}") for i in range(6)]
    edges = [Edge(producer=i, consumer=i + 1, bytes=400) for i in range(5)]
    found = run(OpGraph.create(ops, edges))
    assert len(found.best.order) == 1
    assert {edit.kind for edit in found.edits} <= {"fuse", "fuse-duplicate", "take-out"}


def test_one_huge_op() -> None:
    """Its time stands for all there is; nothing overflows."""
    huge = op("huge", kind=OpKind.LIBRARY, pattern=OpPattern.OPAQUE)
    huge = type(huge)(**{**vars(huge), "flops": 1e13, "bytes_written": 2**43})
    graph = OpGraph.create([op("a"), huge, op("b")], [Edge(producer=1, consumer=2, bytes=2**43)])
    found = run(graph)
    assert found.makespan_us > 1e9
    assert found.makespan_us == pytest.approx(found.lower_bound_us, rel=0.5)


@pytest.mark.parametrize("config", [SearchConfig(), SearchConfig.preset("full")])
def test_many_parallel_ops_are_not_judged_again_and_again(config: SearchConfig) -> None:
    graph = OpGraph.create([op("a") for _ in range(100_000)])
    found = run(graph, config)
    assert found.num_unseen == 0
    assert found.stop_reason in ("patience", "queue-empty")


def test_a_collective_for_every_op() -> None:
    """Buckets are all there is to choose."""
    ops = [op(f"g{i}", kind=OpKind.LIBRARY) for i in range(8)]
    ops += [op(f"avg{i}", kind=OpKind.ALLREDUCE) for i in range(8)]
    graph = OpGraph.create(ops, [Edge(producer=i, consumer=8 + i, bytes=400) for i in range(8)])
    found = run(graph)
    assert found.makespan_us < found.initial_makespan_us
    assert "merge-buckets" in {edit.kind for edit in found.edits}


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [0.99, 0, -1, float("nan"), "1", None])
def test_alpha_and_beta_are_at_least_one(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"SearchConfig.{name} must be .*, got {value!r}"):
        SearchConfig(**{name: value})  # type: ignore[arg-type]
