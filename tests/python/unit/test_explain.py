"""Explanations against the simulator itself: effects of edits, exposure, gains, rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import CLUSTER, fork, op, op_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_fuse.config import EDIT_KINDS, FusionLimits
from disco_fuse.explain.difference import difference
from disco_fuse.explain.effects import edit_effects
from disco_fuse.explain.exposure import bucket_exposures, waits
from disco_fuse.explain.gains import Decision, Gains, gains
from disco_fuse.explain.names import (
    bytes_text,
    contents,
    find_op,
    op_name,
    op_text,
    unit_name,
    unit_shape,
)
from disco_fuse.explain.roles import roles
from disco_fuse.explain.summary import summarise
from disco_fuse.explain.why import together, why_not
from disco_fuse.fuse_ops import Emission
from disco_fuse.graph import Edge, ExternalRead, OpGraph, OpKind, OpPattern
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Edit, Strategy, check, replay
from disco_fuse.testing import random_strategy
from disco_fuse.tuning import Problem
from disco_fuse.tuning.choice import Choice

LIMITS = FusionLimits(bucket_neighbours="production-order")


def choice(graph: OpGraph, strategy: Strategy) -> Choice:
    order = tuple(range(graph.num_ops))
    problem = Problem(name="test", graph=graph, emission=Emission(groups=(), order=order))
    return Choice(problem=problem, strategy=strategy, cluster=CLUSTER, simulated_us=1.0)


def training() -> OpGraph:
    """Two layers: forward 0 1, backward 2 4, gradients 3 5, AllReduces 6 7, updates 8 9."""
    opaque = OpPattern.OPAQUE
    ops = [
        op("f0", pattern=opaque),
        op("f1"),
        op("b1"),
        op("g1"),
        op("b0"),
        op("g0"),
        op("g1_avg", kind=OpKind.ALLREDUCE),
        op("g0_avg", kind=OpKind.ALLREDUCE),
        op("u1", is_output=True),
        op("u0", is_output=True),
    ]
    pairs = [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5), (3, 6), (5, 7), (6, 8), (7, 9)]
    return OpGraph.create(ops, [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs])


def list_us(graph: OpGraph, strategy: Strategy, model: Choice) -> float:
    listed = schedule(graph, strategy, model.cost_model, CLUSTER)
    return simulate(graph, listed, model.cost_model, CLUSTER).makespan_us


@settings(max_examples=60)
@given(graph=op_graphs(), seed=st.integers(0, 5), data=st.data())
def test_effects_are_those_of_the_edits_made(
    graph: OpGraph, seed: int, data: st.DataObject
) -> None:
    strategy = random_strategy(graph, seed)
    ids = st.integers(0, graph.num_ops - 1)
    edits = data.draw(
        st.lists(
            st.builds(Edit, kind=st.sampled_from(EDIT_KINDS), producer=ids, consumer=ids),
            max_size=12,
        )
    )
    chosen = choice(graph, strategy)
    base_us = list_us(graph, strategy, chosen)
    effects = edit_effects(chosen, edits, LIMITS)
    assert [effect.edit for effect in effects] == edits
    for effect in effects:
        assert effect.reason == check(graph, strategy, effect.edit, limits=LIMITS)
        expected = 0.0
        if not effect.reason:
            changed = replay(graph, [effect.edit], strategy, limits=LIMITS)
            expected = list_us(graph, changed, chosen) - base_us
        assert effect.change_us == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60)
@given(graph=op_graphs(), seed=st.integers(0, 5))
def test_exposed_parts_add_up_to_all_waiting(graph: OpGraph, seed: int) -> None:
    chosen = choice(graph, random_strategy(graph, seed))
    summary = summarise(chosen)
    timeline = summary.timeline
    compute = [event for event in timeline.events if event.stream == "compute"]
    busy_ns = sum(event.finish_ns - event.start_ns for event in compute)
    assert summary.exposed_us == pytest.approx(timeline.makespan_us - busy_ns / 1000)
    for bucket in summary.buckets:
        assert bucket.queued_us >= 0
        assert bucket.chain_us <= bucket.ready_us + 1e-9
        assert bucket.needed_us + bucket.not_needed_us <= bucket.ready_us + 1e-9


def test_exposure_of_a_training_step() -> None:
    graph = training()
    chosen = choice(graph, Strategy.unfused(graph))
    timeline = simulate(graph, chosen.strategy, chosen.cost_model, CLUSTER)
    first, second = bucket_exposures(graph, chosen.strategy, timeline)
    assert [first.unit.ops, second.unit.ops] == [(6,), (7,)]
    assert [first.last_gradient, second.last_gradient] == [3, 5]
    assert first.chain == (0, 1, 2, 3)
    assert second.chain == (0, 1, 2, 4, 5)
    # A kernel takes 12 us, and a message 9 in which kernels are slower by a quarter; the first one
    # is sent behind all kernels here, for they are emitted before it.
    assert first.ready_us == pytest.approx(48)
    assert first.needed_us == pytest.approx(48)
    assert (second.needed_us, second.not_needed_us) == (pytest.approx(60), pytest.approx(12))
    assert first.queued_us == pytest.approx(24)
    assert second.queued_us == pytest.approx(9)
    assert first.exposed_us == pytest.approx(9)
    assert waits([], 5) == [(0, 5)]


def test_every_bucket_has_its_own_exposure() -> None:
    """A chain of kernels and AllReduces: compute waits for each message."""
    opaque = OpPattern.OPAQUE
    kinds = [OpKind.COMPUTE, OpKind.ALLREDUCE] * 2 + [OpKind.COMPUTE]
    ops = [op(f"op{i}", kind=kind, pattern=opaque) for i, kind in enumerate(kinds)]
    edges = [Edge(producer=i, consumer=i + 1, bytes=400) for i in range(4)]
    graph = OpGraph.create(ops, edges)
    summary = summarise(choice(graph, Strategy.unfused(graph)))
    assert [bucket.exposed_us for bucket in summary.buckets] == pytest.approx([9, 9])
    assert [bucket.chain for bucket in summary.buckets] == [(0,), (0, 1, 2)]
    assert [bucket.chain_us for bucket in summary.buckets] == pytest.approx([12, 33])


def test_gains_are_what_undoing_costs() -> None:
    graph = training()
    edits = [
        Edit(kind="fuse", producer=1, consumer=2),
        Edit(kind="fuse", producer=2, consumer=3),
        Edit(kind="merge-buckets", producer=6, consumer=7),
        Edit(kind="reorder", producer=4, consumer=8),
    ]
    strategy = replay(graph, edits, limits=LIMITS)
    chosen = choice(graph, strategy)
    seen: list[tuple[int, int]] = []
    found = gains(chosen, lambda done, total: seen.append((done, total)))
    base_us = list_us(graph, strategy, chosen)
    for decision in found.decisions:
        undone = replay(graph, [decision.undo], strategy, limits=LIMITS)
        assert decision.gain_us == pytest.approx(list_us(graph, undone, chosen) - base_us)
    assert [d.gain_us for d in found.decisions] == sorted(
        (d.gain_us for d in found.decisions), reverse=True
    )
    (bucket,) = [decision for decision in found.decisions if decision.kind == "bucket"]
    assert bucket.undo == Edit(kind="split-bucket", producer=6, consumer=7)
    assert bucket.what == "2 gradients in bucket #6 g1_avg and 1 more, not cut before #7 g0_avg"
    fusions = {d.undo.producer for d in found.decisions if d.kind == "fusion"}
    assert fusions == {1, 2}  # taking out 3 is taking out 1 and 2
    (order,) = [decision for decision in found.decisions if decision.kind == "order"]
    assert order.undo == Edit(kind="reorder", producer=4, consumer=-1)
    # What gains nothing is no finding.
    gaining = {decision for decision in found.decisions if decision.gain_us >= 0.5}
    assert {
        d
        for kind in ("fusion", "bucket", "order")
        for f in found.best(kind, 10)
        for d in f.decisions
    } == gaining
    assert len(found.decisions) == 4
    assert found.num_fixed == 0
    assert seen[-1] == (5, 5)


def decision(kind: str, what: str, like: str, gain_us: float) -> Decision:
    undo = Edit(kind="take-out", producer=0, consumer=0)
    return Decision(kind=kind, what=what, like=like, undo=undo, gain_us=gain_us)


def test_equal_findings_are_one() -> None:
    decisions = (
        decision("fusion", "a", "one", 9.0),
        decision("bucket", "first cut", "bucket 6", 8.0),
        decision("bucket", "second cut", "bucket 6", 7.0),
        decision("bucket", "apart", "apart", 6.0),
        *(decision("fusion", f"layer {i}", "layer", 4.0) for i in range(3)),
        decision("fusion", "last layer", "layer", 3.0),
        decision("fusion", "nothing", "nothing", 0.4),
    )
    found = Gains(decisions=decisions, num_fixed=0)
    fusions = found.best("fusion", 10)
    assert [f.decisions[0].what for f in fusions] == ["layer 0", "a", "last layer"]
    assert [f.sum_us for f in fusions] == [12.0, 9.0, 3.0]
    assert fusions[0].to_json()["times"] == len(fusions[0].to_json()["undo"]) == 3
    assert found.best("fusion", 2) == fusions[:2]
    # All cuts of a bucket undo one decision.
    assert [f.decisions[0].what for f in found.best("bucket", 5)] == ["first cut", "apart"]
    assert [len(f.decisions) for f in found.best("bucket", 5)] == [1, 1]


def test_why_two_ops_are_apart() -> None:
    graph = training()
    chosen = choice(graph, Strategy.unfused(graph))
    fuse, duplicate = why_not(chosen, 2, 1)  # in any order
    assert (fuse.edit.producer, fuse.edit.consumer) == (1, 2)
    assert fuse.rule == ""
    assert fuse.change_us < 0
    assert fuse.in_words() == f"fuse: legal, would gain {fuse.change_us / 1e3:+.4g} ms"
    assert duplicate.edit.kind == "fuse-duplicate"
    opaque = why_not(chosen, 0, 1)[0]
    assert opaque.rule == "pattern"
    assert opaque.in_words() == (
        "fuse: illegal by rule 'pattern': op 0 ('f0') is opaque and is never fused"
    )
    assert opaque.to_json()["meaning"] == "opaque and tuple ops stay alone"
    assert why_not(chosen, 0, 5)[0].rule == "relation"
    (merge,) = why_not(chosen, 7, 6)
    assert merge.edit == Edit(kind="merge-buckets", producer=6, consumer=7)
    assert merge.rule == ""
    assert together(chosen, 1, 2) == ("#1 f1 and #2 b1 are apart, in kernel #1 f1 and kernel #2 b1")
    with pytest.raises(ValueError, match="#1 f1 is named twice"):
        why_not(chosen, 1, 1)


def test_why_two_ops_are_together() -> None:
    graph = training()
    edits = [
        Edit(kind="fuse", producer=1, consumer=2),
        Edit(kind="merge-buckets", producer=6, consumer=7),
    ]
    chosen = choice(graph, replay(graph, edits, limits=LIMITS))
    answers = why_not(chosen, 1, 2)
    assert {answer.edit.kind for answer in answers} == {"take-out"}
    legal = [answer for answer in answers if not answer.rule]
    assert legal
    assert all("legal, would cost +" in answer.in_words() for answer in legal)
    assert together(chosen, 1, 2) == "#1 f1 and #2 b1 share kernel #1 f1+b1"
    (split,) = why_not(chosen, 6, 7)
    assert split.edit.kind == "split-bucket"
    assert together(chosen, 6, 7).endswith("share bucket #6 g1_avg+g0_avg")
    # 3 reads 2, which is in the kernel that 1 names.
    (fuse, _) = why_not(chosen, 1, 3)
    assert (fuse.edit.producer, fuse.edit.consumer, fuse.rule) == (2, 3, "")


def test_names() -> None:
    graph = OpGraph.create([op("lv:add"), op("lv1:add"), op("x:mul"), op("x:sum")])
    assert [find_op(graph, text) for text in ("#2", "3", "lv1:add", "lv")] == [2, 3, 1, 0]
    assert op_name(graph, 1) == "#1 lv1:add"
    for text, message in [
        ("#4", r"no op '#4': ids are #0 to #3"),
        ("x", r"2 ops are called 'x', for instance #2 x:mul, #3 x:sum: give an id"),
        ("add", r"no op is called 'add'; near: #0 lv:add, #1 lv1:add"),
        ("ad", r"no op is called 'ad'; near: #0 lv:add, #1 lv1:add"),
        ("lv:adt", r"no op is called 'lv:adt'; near: #0 lv:add, #1 lv1:add"),
        ("", r"no op is called ''; near: ids are #0 to #3"),
        ("\u0663", r"no op is called"),
    ]:
        with pytest.raises(ValueError, match=message):
            find_op(graph, text)
    unit = Strategy.unfused(graph).units(graph)[0]
    assert unit_name(graph, replace(unit, ops=(0, 1, 2, 3)), 2) == "#0 add*2+mul and 1 more"
    assert bytes_text(999) == "999 B"
    assert bytes_text(3072) == "3.1 KB"
    assert bytes_text(93_763_584) == "93.76 MB"


def test_names_of_library_calls() -> None:
    call = op("addmm_1:disco_fuse.kernels.matmul", kind=OpKind.LIBRARY)

    def text(signature: str) -> str:
        return op_text(replace(call, signature=signature))

    plan = "0,6144,3072,768,0,768,1,0,1,768,0,3072,1"
    assert text(f"matmul/float32/48x128x768/768x3072/6144x3072/{plan}") == (
        "matmul 6144x768 by 768x3072"
    )
    batched = "1,128,64,32,576,0,32,1,4096,0,64,1,2048,0,64,1,8192"
    assert text(f"matmul/float32/576x128x32/576x32x64/576x128x64/{batched}") == (
        "576 matmul 128x32 by 32x64"
    )
    assert text("convolution/float32/8x3x32x32/16x3x3x3/8x16x30x30/1") == (
        "convolution 8x3x32x32 by 16x3x3x3"
    )
    assert text("5a62eb15") == "matmul"
    one = replace(call, signature=f"matmul/float32/48x128x768/768x3072/6144x3072/{plan}")
    graph = OpGraph.create([one, op("lv:add"), op("lv1:sum", rows=0)])
    units = Strategy.unfused(graph).units(graph)
    assert [unit_shape(graph, unit) for unit in units] == ["6144x3072", "10x10", "100"]
    assert op_text(op("lv3:conv2d21")) == "conv2d"
    assert op_text(op("g1")) == "g1"


def test_names_tell_parameters() -> None:
    """A weight, read forward; its gradient, and an update that reads it and its momentum."""
    ops = [
        op("lv:add"),
        op("grad_up_weight:sum5"),
        op("grad_up_weight_avg:allreduce", kind=OpKind.ALLREDUCE),
        op("lv1:multiply"),
        op("lv2:subtract3", is_output=True),
        op("buffer_mean_avg:allreduce", kind=OpKind.ALLREDUCE),
    ]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)]
    reads = [(0, 7), (0, 9), (3, 8), (4, 7)]
    graph = OpGraph.create(
        ops,
        [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs],
        [ExternalRead(op=reader, value=value, bytes=400) for reader, value in reads],
    )
    assert dict(roles(graph)) == {
        0: "up_weight",
        1: "grad_up_weight",
        3: "update of up_weight",
        4: "update of up_weight",
    }
    units = Strategy.unfused(graph).units(graph)
    assert unit_name(graph, units[0]) == "#0 add (up_weight)"
    both = replace(units[0], ops=(0, 1))
    assert unit_name(graph, both) == "#0 add+sum (grad_up_weight and 1 more)"
    bucket = next(unit for unit in units if unit.id == 2)
    assert contents(graph, bucket) == "1 gradient"
    assert contents(graph, replace(bucket, ops=(2, 2, 5))) == "1 buffer, 2 gradients"


def test_equal_kernels_are_one_row() -> None:
    graph = training()
    summary = summarise(choice(graph, Strategy.unfused(graph)))
    rows = summary.longest(100)
    assert sum(len(row.kernels) for row in rows) == len(summary.kernels)
    named = OpGraph.create(
        [replace(one, name=f"lv{i}:add{i}") for i, one in enumerate(graph.ops)], graph.edges
    )
    (calls, *_) = summarise(choice(named, Strategy.unfused(named))).longest(100)
    assert len(calls.kernels) == 8
    assert calls.times_text == "8 x 0.012 ms"
    assert calls.time_us == pytest.approx(8 * 12)
    assert calls.name == "#0 add"


def test_difference() -> None:
    graph = training()
    plain = Strategy.unfused(graph)
    fused = replay(graph, [Edit(kind="fuse", producer=1, consumer=2)])
    one, other = summarise(choice(graph, plain)), summarise(choice(graph, fused))
    assert difference(one, one).is_empty
    found = difference(one, other)
    assert found.only_first == ()
    assert [unit.ops for unit in found.only_second] == [(1, 2)]
    assert (found.num_common, found.num_common_units) == (0, 8)
    moved = Strategy.create(graph, range(10), order=(0, 1, 2, 4, 3, 5, 6, 7, 8, 9))
    found = difference(one, summarise(choice(graph, moved)))
    assert (found.num_moved, found.num_common_units, found.is_empty) == (1, 10, False)
    small = choice(fork(), Strategy.unfused(fork()))
    with pytest.raises(ValueError, match="the two are for different graphs"):
        difference(one, summarise(small))


def test_summary_of_kernels() -> None:
    graph = training()
    fused = replay(graph, [Edit(kind="fuse", producer=1, consumer=2)])
    summary = summarise(choice(graph, fused))
    kernel = next(kernel for kernel in summary.kernels if kernel.unit.id == 1)
    assert kernel.unfused_us == pytest.approx(24)
    # One launch of 10 us less, and 1 us of traffic: 2 is read where it was made.
    assert kernel.saved_us == pytest.approx(kernel.unfused_us - kernel.time_us)
    assert kernel.saved_us >= 10
    assert summary.num_fused == 1
    assert summary.gap == pytest.approx(summary.timeline.makespan_us / summary.lower_bound_us - 1)
    data = summary.to_json()
    assert len(data["kernels"]) == 7
    assert [bucket["gradients"] for bucket in data["buckets"]] == [["g1_avg"], ["g0_avg"]]
