"""Features of fusion groups, and groups that stand alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import DEVICE, op_graphs
from hypothesis import given
from hypothesis import strategies as st
from measured_groups import chain

from disco_fuse.cost_model import Group, num_nests
from disco_fuse.cost_model.features import (
    GLOBAL_FEATURES,
    NODE_FEATURES,
    NUM_AGGREGATED,
    GroupFeatures,
    kernel_times_us,
    read_features,
)
from disco_fuse.cost_model.standalone import (
    family,
    from_text,
    signature,
    standalone,
    to_text,
)
from disco_fuse.graph import OpGraph
from disco_fuse.testing import random_strategy


def node(features: GroupFeatures, member: int, name: str) -> float:
    return float(features.nodes[member, NODE_FEATURES.index(name)])


def of_group(features: GroupFeatures, name: str) -> float:
    return float(features.globals[GLOBAL_FEATURES.index(name)])


def fused_groups(graph: OpGraph, seed: int) -> list[Group]:
    units = random_strategy(graph, seed).units(graph)
    kernels = [unit for unit in units if unit.kind == "kernel"]
    return [Group(ops=unit.ops, outputs=unit.outputs) for unit in kernels]


def test_features_of_a_chain_that_ends_in_a_reduction() -> None:
    graph, group = chain(3, 1600, reduces=True)
    (features,) = read_features(graph, [group], DEVICE, np.array([2.0, 3.0, 4.0]))
    assert features.nodes.shape == (3, len(NODE_FEATURES))
    assert features.producer.tolist() == [0, 1]
    assert features.consumer.tolist() == [1, 2]
    assert [node(features, i, "is_inlined") for i in range(3)] == [1, 1, 0]
    assert [node(features, i, "is_output") for i in range(3)] == [0, 0, 1]
    assert node(features, 1, "log_time") == pytest.approx(np.log(3.0))
    assert node(features, 0, "log_bytes_outside") == pytest.approx(np.log1p(6400))
    assert node(features, 0, "log_bytes_inside") == 0
    assert node(features, 2, "log_bytes_inside") == pytest.approx(np.log1p(6400))
    assert node(features, 2, "log_bytes_per_row") == pytest.approx(np.log1p(64))
    assert node(features, 2, "pattern_reduce") == node(features, 2, "class_reduction") == 1
    assert of_group(features, "log_sum_time") == pytest.approx(np.log(9.0))
    assert of_group(features, "log_max_time") == pytest.approx(np.log(4.0))
    assert of_group(features, "log_bytes_in") == pytest.approx(np.log1p(6400))
    assert of_group(features, "log_bytes_out") == pytest.approx(np.log1p(400))
    assert of_group(features, "log_max_elements") == pytest.approx(np.log1p(1600))
    assert of_group(features, "log_nests") == pytest.approx(np.log1p(1))
    assert of_group(features, "num_elemwise") == 2
    assert of_group(features, "log_time_reduction") == pytest.approx(np.log(4.0))
    times = kernel_times_us(graph, [group], DEVICE, np.array([2.0, 3.0, 4.0]))
    assert of_group(features, "log_roofline") == pytest.approx(np.log(times[0]))


def test_aggregates_are_globals_then_mean_maximum_minimum() -> None:
    graph, group = chain(2, 1600, reduces=True)
    (features,) = read_features(graph, [group], DEVICE)
    row = features.aggregated()
    num_globals, num_nodes = len(GLOBAL_FEATURES), NUM_AGGREGATED
    assert row.shape == (num_globals + 3 * num_nodes,)
    at = num_globals + NODE_FEATURES.index("is_output")
    assert row[:num_globals].tolist() == features.globals.tolist()
    assert [row[at], row[at + num_nodes], row[at + 2 * num_nodes]] == [0.5, 1.0, 0.0]


def test_operators_are_told_apart_by_the_names_of_their_kernels() -> None:
    names = ["lv1:multiply12", "lv2:tir_exp", "lv3:multiply", "lv4:my_own_kernel3"]
    ops = [replace(op, name=name) for op, name in zip(chain(4, 1600)[0].ops, names, strict=True)]
    graph = OpGraph.create(ops, chain(4, 1600)[0].edges, [])
    (features,) = read_features(graph, [Group(ops=(0, 1, 2, 3), outputs=(3,))], DEVICE)
    types = ["multiply", "exp", "multiply", "other"]
    for member, name in enumerate(types):
        row = features.nodes[member, NUM_AGGREGATED:]
        assert [NODE_FEATURES[NUM_AGGREGATED + i] for i in np.flatnonzero(row)] == [f"type_{name}"]
    counts = {name: of_group(features, f"num_type_{name}") for name in types}
    assert counts == {"multiply": 2, "exp": 1, "other": 1}


def test_a_value_that_two_members_read_comes_in_once() -> None:
    graph, _ = chain(3, 1600)
    group = Group(ops=(1, 2), outputs=(1, 2))
    (features,) = read_features(graph, [group], DEVICE)
    assert of_group(features, "num_values_in") == 1
    assert of_group(features, "log_bytes_in") == pytest.approx(np.log1p(6400))
    assert of_group(features, "log_bytes_out") == pytest.approx(np.log1p(2 * 6400))


def test_features_name_ops_that_are_not_there() -> None:
    graph, _ = chain(2, 1600)
    with pytest.raises(ValueError, match="holds op 7"):
        read_features(graph, [Group(ops=(0, 7), outputs=(7,))], DEVICE)


@given(graph=op_graphs(), seed=st.integers(0, 9))
def test_a_group_that_stands_alone_is_the_same_group(graph: OpGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = rng.uniform(0.5, 5.0, graph.num_ops)
    for group in fused_groups(graph, seed):
        alone, whole = standalone(graph, group)
        own_times = times[list(group.ops)]
        inside = read_features(graph, [group], DEVICE, times)[0]
        outside = read_features(alone, [whole], DEVICE, own_times)[0]
        np.testing.assert_array_equal(inside.nodes, outside.nodes)
        np.testing.assert_array_equal(inside.globals, outside.globals)
        assert inside.producer.tolist() == outside.producer.tolist()
        assert num_nests(graph, group) == num_nests(alone, whole)
        assert (
            kernel_times_us(graph, [group], DEVICE, times).tolist()
            == kernel_times_us(alone, [whole], DEVICE, own_times).tolist()
        )


@given(graph=op_graphs(), seed=st.integers(0, 9))
def test_text_of_a_group_holds_everything_that_costs(graph: OpGraph, seed: int) -> None:
    for group in fused_groups(graph, seed):
        alone = standalone(graph, group)
        again = from_text(to_text(*alone))
        assert to_text(*again) == to_text(*alone)
        assert family(*again) == family(*alone)
        one, other = (read_features(g, [whole], DEVICE)[0] for g, whole in (alone, again))
        np.testing.assert_array_equal(one.nodes, other.nodes)
        np.testing.assert_array_equal(one.globals, other.globals)


def test_families_do_not_look_at_sizes() -> None:
    small, large = standalone(*chain(3, 1600)), standalone(*chain(3, 6400))
    other = standalone(*chain(3, 1600, reduces=True))
    assert family(*small) == family(*large) != family(*other)
    texts = [to_text(*item) for item in (small, large, other)]
    assert len({signature(text) for text in texts}) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"ops": [[1]], "outputs": []}', '{"outputs": [0]}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of a group"):
        from_text(text)
