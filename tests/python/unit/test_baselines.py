"""Baselines: op fusion by FuseOps, buckets by rule, in the better of two orders."""

from __future__ import annotations

import pytest
import tvm
from graphs import CLUSTER, DEVICE, late_gradient, op

from disco_fuse.baselines import (
    baseline,
    baseline_names,
    evaluate_baselines,
    gradients_ready_us,
)
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import Extraction, extract
from disco_fuse.fuse_ops import Emission, fuse_ops, in_emitted_order
from disco_fuse.graph import Edge, OpGraph, OpKind, OpPattern
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.testing import mlp_step

MODEL = RooflineCostModel(DEVICE)


@pytest.fixture(scope="module")
def lowered() -> tuple[tvm.IRModule, Extraction]:
    target = tvm.target.Target("llvm")
    mod = lower(InsertAllReduce()(mlp_step(widths=(6, 16, 16, 4))), target, library=False)
    return mod, extract(mod)


def test_every_rule_makes_a_strategy_of_a_real_step(
    lowered: tuple[tvm.IRModule, Extraction],
) -> None:
    num_units = {
        name: len(baseline(name, *lowered, MODEL, CLUSTER).units(lowered[1].graph))
        for name in baseline_names()
    }
    assert num_units["none"] == lowered[1].graph.num_ops
    assert num_units["op_fusion"] < num_units["none"]
    assert num_units["default"] == num_units["single"] == num_units["op_fusion"] - 2
    assert num_units["horovod"] == num_units["op_fusion"] - 2  # all of it takes less than 1 ms
    assert num_units["allreduce_fusion"] == num_units["none"] - 2


def test_groups_and_order_are_those_of_fuse_ops(lowered: tuple[tvm.IRModule, Extraction]) -> None:
    mod, extraction = lowered
    emission = fuse_ops(mod, extraction)
    fused = tvm.relax.transform.FuseOps()(mod)
    calls = [str(b.value) for b in fused["main"].body.blocks[0].bindings]
    sizes = []  # ops behind each binding of FuseOps' own main, in its order
    for binding, call in zip(fused["main"].body.blocks[0].bindings, calls, strict=True):
        if isinstance(getattr(binding.value, "op", None), tvm.ir.GlobalVar):
            body = fused[binding.value.op].body.blocks[0].bindings
            sizes.append(sum("call_tir" in str(inner.value) for inner in body))
        elif "call_tir" in call or "allreduce" in call:
            sizes.append(1)
    assert max(sizes) > 1
    group_of = {op: group for group in emission.groups for op in group}
    ours = []
    for place, member in enumerate(emission.order):
        group = group_of.get(member, (member,))
        if emission.order[place - 1] not in group or len(group) == 1:
            ours.append(len(group))
    assert ours == sizes


def test_baselines_stand_in_the_order_of_fuse_ops(
    lowered: tuple[tvm.IRModule, Extraction],
) -> None:
    mod, extraction = lowered
    emission = fuse_ops(mod, extraction)
    strategy = baseline("op_fusion", mod, extraction)
    flat = [member for unit in strategy.units(extraction.graph) for member in unit.ops]
    assert flat == list(emission.order)
    unfused = baseline("none", mod, extraction)
    assert unfused.order == tuple(range(extraction.graph.num_ops))


def two_gradients() -> OpGraph:
    """Gradients 0 and 2, AllReduces 1 and 3, updates 4 and 5."""
    ops = [
        op("g0", pattern=OpPattern.OPAQUE),
        op("a0", kind=OpKind.ALLREDUCE),
        op("g1", pattern=OpPattern.OPAQUE),
        op("a1", kind=OpKind.ALLREDUCE),
        op("u0", is_output=True),
        op("u1", is_output=True),
    ]
    pairs = [(0, 1), (2, 3), (1, 4), (3, 5)]
    return OpGraph.create(ops, [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs])


def test_a_bucket_stands_at_its_last_gradient_and_its_updates_behind_it() -> None:
    graph = two_gradients()
    order = (0, 1, 4, 2, 3, 5)
    unfused = in_emitted_order(graph, Strategy.unfused(graph), order)
    assert unfused.order == order
    bucket = Strategy.create(graph, [0, 1, 2, 1, 4, 5])
    assert in_emitted_order(graph, bucket, order).order == (0, 2, 1, 4, 5)
    # what stands between the last gradient and its AllReduce stays there
    alone = OpGraph.create([*graph.ops, op("loss", is_output=True)], graph.edges)
    bucket = Strategy.create(alone, [0, 1, 2, 1, 4, 5, 6])
    assert in_emitted_order(alone, bucket, (0, 1, 4, 2, 6, 3, 5)).order == (0, 2, 6, 1, 4, 5)


def test_emitted_order_needs_homes_only() -> None:
    ops = [op("x"), op("y"), op("z")]
    edges = [Edge(producer=0, consumer=c, bytes=400) for c in (1, 2)]
    graph = OpGraph.create(ops, edges)
    copied = Strategy.create(graph, [0, 1, 0], [(0, 1)])
    assert copied.duplicated
    with pytest.raises(ValueError, match="without copies"):
        in_emitted_order(graph, copied, (0, 1, 2))


def test_both_orders_are_simulated_and_the_better_one_counts() -> None:
    graph = two_gradients()
    # Each update right behind its AllReduce: the compute stream waits for the network twice.
    emission = Emission(groups=(), order=(0, 1, 4, 2, 3, 5))
    result = evaluate_baselines(graph, emission, MODEL, CLUSTER)["op_fusion"]
    emitted = in_emitted_order(graph, Strategy.unfused(graph), emission.order)
    listed = schedule(graph, emitted, MODEL, CLUSTER)
    assert result.emitted_us == simulate(graph, emitted, MODEL, CLUSTER).makespan_us
    assert result.list_us == simulate(graph, listed, MODEL, CLUSTER).makespan_us
    assert result.list_us < result.emitted_us
    assert result.makespan_us == result.list_us
    assert result.strategy == listed
    assert result.order_gain == pytest.approx(result.emitted_us / result.list_us - 1)


def test_the_emitted_order_counts_where_it_is_better() -> None:
    graph, order = late_gradient()
    emission = Emission(groups=(), order=order)
    result = evaluate_baselines(graph, emission, MODEL, CLUSTER)["op_fusion"]
    assert result.emitted_us < result.list_us
    assert result.makespan_us == result.emitted_us
    assert result.strategy.order == emission.order
    assert result.order_gain < 0


def test_gradients_are_ready_when_their_kernel_ends() -> None:
    graph = two_gradients()
    emission = Emission(groups=(), order=tuple(range(graph.num_ops)))
    ready = gradients_ready_us(graph, emission, MODEL, CLUSTER)
    # kernels of 12 us (10 launch, 1 read, 1 written), the second slowed by 9 us of the AllReduce
    events = simulate(
        graph, schedule(graph, Strategy.unfused(graph), MODEL, CLUSTER), MODEL, CLUSTER
    ).events
    finish = {event.unit: event.finish_ns / 1000 for event in events}
    assert ready == {1: finish[0], 3: finish[2]}
    assert ready[1] == 12.0


def test_an_unknown_baseline_is_refused(lowered: tuple[tvm.IRModule, Extraction]) -> None:
    with pytest.raises(ValueError, match="no baseline 'magic'; there are none, op_fusion"):
        baseline("magic", *lowered)


def test_horovod_needs_a_timeline(lowered: tuple[tvm.IRModule, Extraction]) -> None:
    with pytest.raises(ValueError, match="baseline 'horovod' needs a cost model and a cluster"):
        baseline("horovod", *lowered)
