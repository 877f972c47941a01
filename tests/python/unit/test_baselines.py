"""The rules of the baselines."""

from __future__ import annotations

import pytest
import tvm

from disco_fuse.baselines import (
    baseline,
    baseline_names,
    ddp_buckets,
    fuse_ops_groups,
    per_gradient,
    single_bucket,
    xla_buckets,
)
from disco_fuse.extract import extract
from disco_fuse.graph import Edge, Op, OpGraph, OpKind, OpPattern
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.testing import mlp_step

MIB = 2**20


def _graph(gradient_bytes: list[int], merge_classes: list[str] | None = None) -> OpGraph:
    """One kernel per gradient, each followed by its AllReduce; op 2 i + 1 is AllReduce i."""
    ops, edges = [], []
    for i, size in enumerate(gradient_bytes):
        for kind in (OpKind.COMPUTE, OpKind.ALLREDUCE):
            is_allreduce = kind == OpKind.ALLREDUCE
            ops.append(
                Op(
                    name=f"{kind.name}{i}",
                    kind=kind,
                    pattern=OpPattern.OPAQUE,
                    flops=0.0,
                    num_elements=size // 4,
                    rows=0,
                    bytes_read=size,
                    bytes_written=size,
                    signature=f"s{i}",
                    collective="allreduce" if is_allreduce else "",
                    merge_class=(merge_classes or ["avg"] * 99)[i] if is_allreduce else "",
                )
            )
        edges.append(Edge(producer=2 * i, consumer=2 * i + 1, bytes=size))
    return OpGraph.create(ops, edges, [])


def _numbers(buckets: list[list[int]]) -> list[list[int]]:
    return [[(op - 1) // 2 for op in bucket] for bucket in buckets]


def test_ddp_closes_a_bucket_once_it_has_reached_its_cap() -> None:
    # 1 MiB for the first bucket, then 25 MiB: exactly reaching a cap closes, exceeding it too
    graph = _graph([MIB // 2, MIB // 2, 24 * MIB, MIB, 30 * MIB, 4, 4])
    assert _numbers(ddp_buckets(graph)) == [[0, 1], [2, 3], [4], [5, 6]]


def test_xla_never_exceeds_its_threshold_unless_alone() -> None:
    graph = _graph([10 * MIB, 20 * MIB, 4, 31 * MIB, 4, 29 * MIB])
    assert _numbers(xla_buckets(graph)) == [[0, 1], [2], [3], [4, 5]]


def test_single_and_per_gradient() -> None:
    graph = _graph([4, 8, 12])
    assert _numbers(single_bucket(graph)) == [[0, 1, 2]]
    assert _numbers(per_gradient(graph)) == [[0], [1], [2]]


@pytest.mark.parametrize("rule", [ddp_buckets, xla_buckets, single_bucket])
def test_merge_classes_are_kept_apart(rule) -> None:
    graph = _graph([4, 4, 4], ["avg/float32", "avg/float32", "avg/float64"])
    assert _numbers(rule(graph)) == [[0, 1], [2]]


def test_every_rule_makes_a_strategy_of_a_real_step() -> None:
    target = tvm.target.Target("llvm")
    mod = lower(InsertAllReduce()(mlp_step(widths=(6, 16, 16, 4))), target, library=False)
    extraction = extract(mod)
    num_units = {
        name: len(baseline(name, mod, extraction).units(extraction.graph))
        for name in baseline_names()
    }
    assert num_units["none"] == extraction.graph.num_ops
    assert num_units["op_fusion"] < num_units["none"]
    assert num_units["default"] == num_units["single"] == num_units["op_fusion"] - 2
    assert num_units["allreduce_fusion"] == num_units["none"] - 2


def test_fuse_ops_groups_are_those_of_tvm() -> None:
    target = tvm.target.Target("llvm")
    mod = lower(InsertAllReduce()(mlp_step(widths=(6, 16, 4))), target, library=False)
    extraction = extract(mod)
    groups = fuse_ops_groups(mod, extraction)
    fused = tvm.relax.transform.FuseOps()(mod)
    sizes = sorted(
        sum("call_tir" in str(binding.value) for binding in func.body.blocks[0].bindings)
        for func in fused.functions.values()
        if isinstance(func, tvm.relax.Function) and func.attrs and "Primitive" in func.attrs
    )
    # equal groups are one function in TVM's result and two groups here
    assert sizes
    assert set(map(len, groups)) == set(sizes)


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match="no baseline 'magic'; there are none, op_fusion"):
        baseline("magic", None, None)
