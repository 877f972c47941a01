"""The lower bound: below the best of all strategies and orders, and below every strategy drawn."""

from __future__ import annotations

import random

import pytest
from graphs import CLUSTER, DEVICE, op, op_graphs
from hypothesis import given
from hypothesis import strategies as st

from disco_fuse.bound import lower_bound_us
from disco_fuse.config import EDIT_KINDS, AllReduceModel, ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import CostModel, RooflineCostModel
from disco_fuse.graph import Edge, OpGraph, OpKind
from disco_fuse.search import exhaustive, search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Edit, Strategy, check, replay

NO_LAUNCH = DeviceSpec(name="free", peak_gflops=1.0, bandwidth_gbps=0.4, launch_us=0.0)
SLOW_NETWORK = AllReduceModel.linear(latency_us=20.0, us_per_byte=0.1)
TWO_LINES = AllReduceModel(
    small_latency_us=2.0,
    small_us_per_byte=0.05,
    large_latency_us=15.0,
    large_us_per_byte=0.02,
    threshold_bytes=600,
)

clusters = st.builds(
    ClusterSpec,
    name=st.just("drawn"),
    world_size=st.just(2),
    device=st.sampled_from([DEVICE, NO_LAUNCH]),
    allreduce=st.sampled_from([CLUSTER.allreduce, SLOW_NETWORK, TWO_LINES]),
    contention=st.sampled_from([1.0, 1.25, 3.0]),
)


@given(op_graphs(max_ops=5), clusters)
def test_never_above_the_best_of_all_strategies_and_orders(
    graph: OpGraph, cluster: ClusterSpec
) -> None:
    model = RooflineCostModel(cluster.device)
    best = exhaustive(graph, model, cluster, methods=EDIT_KINDS, all_orders=True)
    assert lower_bound_us(graph, model, cluster) <= best.makespan_us
    assert best.lower_bound_us == lower_bound_us(graph, model, cluster)


@given(op_graphs(max_ops=40), clusters, st.integers(0, 2**32))
def test_never_above_a_random_strategy_in_a_random_order(
    graph: OpGraph, cluster: ClusterSpec, seed: int
) -> None:
    rng = random.Random(seed)
    model = RooflineCostModel(cluster.device)
    strategy = _in_random_order(graph, _random_strategy(graph, rng), rng)
    makespan_us = simulate(graph, strategy, model, cluster).makespan_us
    assert lower_bound_us(graph, model, cluster) <= makespan_us


@given(op_graphs(max_ops=14), clusters)
def test_never_above_what_a_search_finds(graph: OpGraph, cluster: ClusterSpec) -> None:
    model = RooflineCostModel(cluster.device)
    found = search(graph, model, cluster, SearchConfig.preset("full", patience=100))
    assert found.lower_bound_us <= found.makespan_us


def test_it_is_reached_where_nothing_can_be_chosen() -> None:
    ops = [op("g", kind=OpKind.LIBRARY), op("a", kind=OpKind.ALLREDUCE), op("u", is_output=True)]
    edges = [Edge(producer=p, consumer=p + 1, bytes=400) for p in (0, 1)]
    graph = OpGraph.create(ops, edges)
    model = RooflineCostModel(DEVICE)
    makespan_us = simulate(graph, Strategy.unfused(graph), model, CLUSTER).makespan_us
    # 12 us the gradient, 9 us the message, 12 us the update
    assert makespan_us == pytest.approx(33)
    assert lower_bound_us(graph, model, CLUSTER) == pytest.approx(makespan_us, abs=0.01)


class _Silly(CostModel):
    name = "silly"
    digest = "0"

    def predict(self, graph, groups):  # type: ignore[no-untyped-def]  # noqa: ARG002
        return [float("nan")] * len(groups)


def test_a_bad_prediction_is_an_error() -> None:
    graph = OpGraph.create([op("call", kind=OpKind.LIBRARY)])
    with pytest.raises(ValueError, match="cost model 'silly' predicts nan us"):
        lower_bound_us(graph, _Silly(), CLUSTER)


def _random_strategy(graph: OpGraph, rng: random.Random) -> Strategy:
    strategy = Strategy.unfused(graph)
    pairs = [(edge.producer, edge.consumer) for edge in graph.edges if not edge.order_only]
    collectives = [i for i, node in enumerate(graph.ops) if node.kind == OpKind.ALLREDUCE]
    for _ in range(30):
        kind = rng.choice(["fuse", "fuse-duplicate", "merge-buckets"])
        if kind == "merge-buckets" and len(collectives) > 1:
            producer, consumer = rng.sample(collectives, 2)
        elif kind != "merge-buckets" and pairs:
            producer, consumer = rng.choice(pairs)
        else:
            continue
        edit = Edit(kind=kind, producer=producer, consumer=consumer)
        if check(graph, strategy, edit) == "":
            strategy = replay(graph, [edit], strategy)
    return strategy


def _in_random_order(graph: OpGraph, strategy: Strategy, rng: random.Random) -> Strategy:
    """Any topological order of the units, which follow their own order's dependencies."""
    units = strategy.units(graph)
    holders: dict[int, list[int]] = {}
    for unit in units:
        for member in unit.ops:
            holders.setdefault(member, []).append(unit.id)
    home = strategy.group_of.tolist()
    needs: dict[int, set[int]] = {unit.id: set() for unit in units}
    members = {unit.id: set(unit.ops) for unit in units}
    for edge in graph.edges:
        if edge.order_only:
            needs[home[edge.consumer]].update(holders[edge.producer])
            continue
        for holder in holders[edge.consumer]:
            if edge.producer not in members[holder]:
                needs[holder].add(home[edge.producer])
    order: list[int] = []
    while len(order) < len(units):
        free = [u for u in needs if u not in order and needs[u] - {u} <= set(order)]
        order.append(rng.choice(free))
    return Strategy.create(graph, strategy.group_of, strategy.duplicated, order)
