"""Strategies and edits through the Python interface."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE, fork, op, op_graphs
from hypothesis import given
from hypothesis import strategies as st

from disco_fuse.config import FusionLimits
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.graph import Edge, OpGraph, OpKind
from disco_fuse.simulate import schedule
from disco_fuse.strategy import Edit, Strategy, Unit, check, replay

MODEL = RooflineCostModel(DEVICE)


def all_edits(graph: OpGraph) -> list[Edit]:
    edits = [
        Edit(kind=kind, producer=edge.producer, consumer=edge.consumer)
        for edge in graph.edges
        if not edge.order_only
        for kind in ("fuse", "fuse-duplicate", "take-out", "reorder")
    ]
    edits += [Edit(kind="take-out", producer=i, consumer=i) for i in range(graph.num_ops)]
    edits += [Edit(kind="reorder", producer=i, consumer=-1) for i in range(graph.num_ops)]
    collectives = [i for i, item in enumerate(graph.ops) if item.kind is OpKind.ALLREDUCE]
    edits += [
        Edit(kind=kind, producer=a, consumer=b)
        for a in collectives
        for b in collectives
        for kind in ("merge-buckets", "split-bucket", "move-gradient")
        if a != b
    ]
    return edits


@st.composite
def edited(draw: st.DrawFn) -> tuple[OpGraph, list[Edit], Strategy]:
    """A random graph and a random sequence of legal edits."""
    graph = draw(op_graphs())
    candidates = all_edits(graph)
    strategy, edits = Strategy.unfused(graph), []
    for _ in range(draw(st.integers(0, 8))):
        if not candidates:
            break
        edit = draw(st.sampled_from(candidates))
        if check(graph, strategy, edit) == "":
            edits.append(edit)
            strategy = replay(graph, [edit], strategy)
    return graph, edits, strategy


def dependencies(graph: OpGraph, units: list[Unit]) -> set[tuple[int, int]]:
    """Pairs (before, after) of units, from first principles."""
    home = {o: unit.id for unit in units for o in unit.ops if o in unit.outputs}
    pairs = set()
    for unit in units:
        for edge in graph.edges:
            if edge.order_only:
                continue
            if edge.consumer in unit.ops and edge.producer not in unit.ops:
                pairs.add((home[edge.producer], unit.id))
    return pairs


@given(case=edited())
def test_edits_replay_to_the_same_strategy(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, edits, strategy = case
    assert replay(graph, edits).hash == strategy.hash
    assert replay(graph, edits) == strategy


@given(case=edited())
def test_strategies_are_canonical(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, _, strategy = case
    again = Strategy.create(
        graph, strategy.group_of, strategy.duplicated, strategy.order, strategy.priorities
    )
    assert again == strategy
    assert Strategy.from_json(graph, strategy.to_json()) == strategy
    for i, group in enumerate(strategy.group_of):
        assert group <= i
        assert strategy.group_of[group] == group


@given(case=edited())
def test_units_cover_all_ops_and_are_ordered(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, _, strategy = case
    units = strategy.units(graph)
    assert [unit.id for unit in units] == list(strategy.order)
    assert {o for unit in units for o in unit.ops} == set(range(graph.num_ops))
    assert sum(len(unit.ops) for unit in units) == graph.num_ops + len(strategy.duplicated)
    place = {unit.id: i for i, unit in enumerate(units)}
    for before, after in dependencies(graph, units):
        assert place[before] < place[after]
    for edge in graph.edges:
        if not edge.order_only:
            continue
        writer = int(strategy.group_of[edge.consumer])
        readers = [unit.id for unit in units if edge.producer in unit.ops]
        assert all(place[reader] <= place[writer] for reader in readers)


@given(case=edited())
def test_outputs_are_what_others_read(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, _, strategy = case
    units = strategy.units(graph)
    for unit in units:
        for o in unit.ops:
            readers = {e.consumer for e in graph.edges if e.producer == o and not e.order_only}
            leaves = graph.ops[o].is_output or not readers
            for other in units:
                leaves |= o not in other.ops and bool(readers & set(other.ops))
            leaves &= int(strategy.group_of[o]) == unit.id
            assert (o in unit.outputs) == leaves


@given(case=edited())
def test_copies_and_homes_are_needed(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, _, strategy = case
    units = {unit.id: unit for unit in strategy.units(graph)}
    for o, group in strategy.duplicated:
        readers = {e.consumer for e in graph.edges if e.producer == o and not e.order_only}
        assert readers & set(units[group].ops)
        home = units[int(strategy.group_of[o])]
        assert o in home.outputs or readers & set(home.ops)


def test_fields() -> None:
    graph = fork()
    strategy = replay(graph, [Edit(kind="fuse-duplicate", producer=0, consumer=2)])
    assert strategy.group_of.dtype == np.int32
    assert strategy.group_of.tolist() == [0, 1, 2, 3, 4]
    assert strategy.duplicated == ((0, 2),)
    assert strategy.units(graph)[2] == Unit(id=2, kind="kernel", ops=(0, 2), outputs=(2,))
    assert [unit.kind for unit in strategy.units(graph)][3] == "bucket"
    assert strategy != Strategy.unfused(graph)
    assert (
        len({strategy, replay(graph, [Edit(kind="fuse-duplicate", producer=0, consumer=2)])}) == 1
    )
    with pytest.raises(ValueError, match="read-only"):
        strategy.group_of[0] = 1


def test_priorities() -> None:
    graph = fork()
    reorder = Edit(kind="reorder", producer=1, consumer=2)
    strategy = replay(graph, [reorder])
    # Op 2 produces the only gradient and is as urgent as that.
    assert strategy.priorities == ((1, 2),)
    assert strategy.hash != Strategy.unfused(graph).hash
    assert check(graph, strategy, reorder).startswith("urgency: the unit of op 1")
    back = replay(graph, [Edit(kind="reorder", producer=1, consumer=-1)], strategy)
    assert back == Strategy.unfused(graph)
    assert schedule(graph, Strategy.unfused(graph), MODEL, CLUSTER).order == (0, 2, 3, 1, 4)
    assert schedule(graph, strategy, MODEL, CLUSTER).order == (0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"priority: op must be in .0, 5., got 5"):
        Strategy.create(graph, range(5), priorities=[(5, 0)])


def test_errors_carry_the_reason() -> None:
    graph = fork()
    with pytest.raises(ValueError, match=r"kind: op 3 .'avg'. is a collective"):
        Strategy.create(graph, [0, 0, 0, 0, 4])
    with pytest.raises(ValueError, match=r"size: .* allowed are 1"):
        Strategy.create(graph, [0, 0, 2, 3, 4], limits=FusionLimits(max_group_ops=1))
    with pytest.raises(ValueError, match=r"edit 1 .fuse 2 -> 3. is illegal: kind: "):
        replay(
            graph,
            [Edit(kind="fuse", producer=0, consumer=1), Edit(kind="fuse", producer=2, consumer=3)],
        )
    with pytest.raises(ValueError, match=r"Edit.kind must be one of"):
        Edit(kind="cut", producer=0, consumer=1)
    with pytest.raises(ValueError, match="not the JSON of a Strategy"):
        Strategy.from_json(graph, "{}")


def test_cycles_name_the_edit() -> None:
    ops = [op("a"), op("lib", kind=OpKind.LIBRARY), op("b"), op("c")]
    pairs = [(0, 1), (0, 2), (1, 2), (2, 3)]
    graph = OpGraph.create(ops, [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs])
    with pytest.raises(ValueError, match=r"edit 1 .* is illegal: cycle: the group of op 2"):
        replay(
            graph,
            [Edit(kind="fuse", producer=2, consumer=3), Edit(kind="fuse", producer=0, consumer=2)],
        )
    with pytest.raises(ValueError, match="cycle: "):
        Strategy.create(graph, [0, 1, 0, 3])


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_group_ops", 0), ("max_group_args", 0), ("bucket_neighbours", "all")],
)
def test_limits_are_checked(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"FusionLimits.{field}"):
        FusionLimits(**{field: value})  # type: ignore[arg-type]


def test_a_strategy_of_another_graph_is_refused() -> None:
    small = OpGraph.create([op("a")])
    foreign = Strategy.unfused(OpGraph.create([op("a"), op("b"), op("c")]))
    edit = Edit(kind="fuse", producer=0, consumer=0)
    for call in (
        lambda: foreign.units(small),
        lambda: replay(small, [], foreign),
        lambda: check(small, foreign, edit),
    ):
        with pytest.raises(ValueError, match="the strategy is one of graph"):
            call()
