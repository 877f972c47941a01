"""Measured times in place of predictions."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE
from measured_groups import chain

from disco_fuse.cost_model import Group, RooflineCostModel
from disco_fuse.cost_model.measured import MeasuredCostModel
from disco_fuse.graph import Edge, ExternalRead, OpGraph
from disco_fuse.search import search

ROOFLINE = RooflineCostModel(DEVICE)


def two_layers() -> OpGraph:
    """Two equal chains of three ops that know nothing of each other."""
    one, _ = chain(3, 1600)
    edges = [
        Edge(producer=e.producer + at, consumer=e.consumer + at, bytes=e.bytes)
        for at in (0, 3)
        for e in one.edges
    ]
    reads = [ExternalRead(op=at, value=at, bytes=6400) for at in (0, 3)]
    return OpGraph.create([*one.ops, *one.ops], edges, reads)


def test_a_measured_group_counts_wherever_it_is() -> None:
    graph = two_layers()
    first, twin = Group(ops=(0, 1), outputs=(1,)), Group(ops=(3, 4), outputs=(4,))
    others = [Group(ops=(0, 1), outputs=(0, 1)), Group(ops=(1, 2), outputs=(2,))]
    model = MeasuredCostModel(ROOFLINE, graph, [first], np.array([77.0]))
    times = model.predict(graph, [others[0], first, twin, others[1]])
    predicted = ROOFLINE.predict(graph, others)
    assert times.tolist() == [predicted[0], 77.0, 77.0, predicted[1]]


def test_sizes_tell_groups_apart() -> None:
    graph, group = chain(2, 1600)
    larger, same = chain(2, 3200)
    model = MeasuredCostModel(ROOFLINE, graph, [group], np.array([77.0]))
    assert model.predict(graph, [group])[0] == 77.0
    assert model.predict(larger, [same])[0] == ROOFLINE.predict(larger, [same])[0]


def test_the_search_believes_measurements() -> None:
    graph, whole = chain(4, 1600)
    found = search(graph, ROOFLINE, CLUSTER)
    assert found.makespan_us == pytest.approx(ROOFLINE.predict(graph, [whole])[0])
    dear = MeasuredCostModel(ROOFLINE, graph, [whole], np.array([1e6]))
    again = search(graph, dear, CLUSTER)
    assert len(again.best.units(graph)) == 2
    assert found.makespan_us < again.makespan_us < 1e6
    assert 0 < again.num_priced < again.num_looked_up


def test_what_the_model_is_called_and_what_it_depends_on() -> None:
    graph, group = chain(2, 1600)
    models = [MeasuredCostModel(ROOFLINE, graph, [group], np.array([us])) for us in (1.0, 2.0)]
    assert (models[0].name, models[0].thread_safe) == ("roofline", True)
    assert len({ROOFLINE.digest, *(model.digest for model in models)}) == 3


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_times_that_are_none_are_refused(bad: float) -> None:
    graph, group = chain(2, 1600)
    model = MeasuredCostModel(ROOFLINE, graph, [group], np.array([bad]))
    with pytest.raises(ValueError, match="cost model 'measured' predicts"):
        model.predict(graph, [group])


def test_groups_of_other_graphs_are_refused() -> None:
    graph, _ = chain(2, 1600)
    with pytest.raises(ValueError, match="holds op 9"):
        MeasuredCostModel(ROOFLINE, graph, [Group(ops=(9,), outputs=(9,))], np.array([1.0]))
