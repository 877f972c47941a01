"""The rules of tensor fusion, against the words and the code of the tools they are taken from."""

from __future__ import annotations

import pytest

from disco_fuse.graph import Edge, Op, OpGraph, OpKind
from disco_fuse.tensor_fusion import (
    DDP_CAP_BYTES,
    DDP_FIRST_CAP_BYTES,
    HOROVOD_FUSION_BYTES,
    XLA_COMBINER_BYTES,
    XLA_COMBINER_OPERANDS,
    ddp_buckets,
    ddp_caps_bytes,
    horovod_buckets,
    per_gradient,
    single_bucket,
    xla_buckets,
)

MIB = 2**20


def _graph(
    gradient_bytes: list[int], merge_classes: list[str] | None = None, *, chain: bool = False
) -> OpGraph:
    """One kernel per gradient, each followed by its AllReduce; op 2 i + 1 is AllReduce i.

    In a ``chain`` every kernel also reads the AllReduce before it.
    """
    ops, edges = [], []
    for i, size in enumerate(gradient_bytes):
        for kind in (OpKind.COMPUTE, OpKind.ALLREDUCE):
            is_allreduce = kind == OpKind.ALLREDUCE
            ops.append(
                Op(
                    name=f"{kind.name}{i}",
                    kind=kind,
                    bytes_written=size,
                    collective="allreduce" if is_allreduce else "",
                    merge_class=(merge_classes or ["avg"] * 999)[i] if is_allreduce else "",
                )
            )
        edges.append(Edge(producer=2 * i, consumer=2 * i + 1, bytes=size))
        if chain and i:
            edges.append(Edge(producer=2 * i - 1, consumer=2 * i, bytes=size))
    return OpGraph.create(ops, edges)


def _numbers(buckets: list[list[int]]) -> list[list[int]]:
    return [[(op - 1) // 2 for op in bucket] for bucket in buckets]


def _ready(times_us: list[float]) -> dict[int, float]:
    return {2 * i + 1: time for i, time in enumerate(times_us)}


def test_documented_thresholds() -> None:
    assert (XLA_COMBINER_BYTES, XLA_COMBINER_OPERANDS) == (31_457_280, 256)
    assert (DDP_FIRST_CAP_BYTES, DDP_CAP_BYTES) == (1_048_576, 26_214_400)
    assert HOROVOD_FUSION_BYTES == 134_217_728


def test_single_and_per_gradient() -> None:
    graph = _graph([4, 8, 12])
    assert _numbers(single_bucket(graph)) == [[0, 1, 2]]
    assert _numbers(per_gradient(graph)) == [[0], [1], [2]]


def test_xla_fills_a_bucket_up_to_its_threshold() -> None:
    graph = _graph([10 * MIB, 20 * MIB, 4, 29 * MIB, MIB - 4])
    assert _numbers(xla_buckets(graph)) == [[0, 1], [2, 3, 4]]
    graph = _graph([10 * MIB, 20 * MIB, 4, 29 * MIB, MIB])
    assert _numbers(xla_buckets(graph)) == [[0, 1], [2, 3], [4]]


def test_what_is_larger_than_xlas_threshold_stays_alone_and_closes_nothing() -> None:
    graph = _graph([10 * MIB, 30 * MIB + 4, 20 * MIB])
    assert _numbers(xla_buckets(graph)) == [[0, 2], [1]]
    graph = _graph([30 * MIB, 4])  # no larger: an ordinary bucket that is full
    assert _numbers(xla_buckets(graph)) == [[0], [1]]


def test_xla_counts_operands() -> None:
    graph = _graph([4] * 600)
    assert [len(bucket) for bucket in xla_buckets(graph)] == [256, 256, 88]
    assert [len(bucket) for bucket in xla_buckets(graph, max_operands=400)] == [400, 200]


def test_xla_combines_no_dependent_allreduces() -> None:
    graph = _graph([4, 4, 4], chain=True)
    assert _numbers(xla_buckets(graph)) == [[0], [1], [2]]
    assert _numbers(single_bucket(graph)) == [[0], [1], [2]]


def test_xla_looks_past_other_classes() -> None:
    graph = _graph([4, 8, 4, 8], ["f32", "f64", "f32", "f64"])
    assert _numbers(xla_buckets(graph)) == [[0, 2], [1, 3]]


def test_ddp_closes_a_bucket_once_it_has_reached_its_cap() -> None:
    # 1 MiB for the first bucket, then 25 MiB: exactly reaching a cap closes, exceeding it too
    graph = _graph([MIB // 2, MIB // 2, 24 * MIB, MIB, 30 * MIB, 4, 4])
    assert _numbers(ddp_buckets(graph)) == [[0, 1], [2, 3], [4], [5, 6]]


def test_an_explicit_cap_of_ddp_has_no_small_first_bucket() -> None:
    assert ddp_caps_bytes() == (MIB, 25 * MIB)
    assert ddp_caps_bytes(25) == (25 * MIB,)
    assert ddp_caps_bytes(0.5) == (MIB // 2,)
    graph = _graph([MIB, MIB, 24 * MIB])
    assert _numbers(ddp_buckets(graph, ddp_caps_bytes(25))) == [[0, 1, 2]]
    assert _numbers(ddp_buckets(graph)) == [[0], [1, 2]]


def test_ddp_has_buckets_and_caps_of_its_own_for_every_class() -> None:
    graph = _graph([MIB, MIB, 4, 4], ["f32", "f64", "f32", "f64"])
    assert _numbers(ddp_buckets(graph)) == [[0], [1], [2], [3]]
    assert _numbers(ddp_buckets(graph, (2 * MIB,))) == [[0, 2], [1, 3]]


def test_ddp_goes_by_arrival() -> None:
    graph = _graph([4, 4, 4])
    assert _numbers(ddp_buckets(graph, (8,))) == [[0, 1], [2]]
    assert _numbers(ddp_buckets(graph, (8,), arrival=[5, 1, 3])) == [[2, 0], [1]]


def test_horovod_packs_what_one_cycle_finds() -> None:
    graph = _graph([4] * 5)
    # cycles end at 1000, 2000, ...: what is ready then is sent
    assert _numbers(horovod_buckets(graph, _ready([10, 999, 1000, 1500, 5000]))) == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert _numbers(horovod_buckets(graph, _ready([10, 999, 1000, 1500, 5000]), cycle_ms=2)) == [
        [0, 1, 2, 3],
        [4],
    ]
    assert _numbers(horovod_buckets(graph, _ready([50, 40, 30, 20, 10]))) == [[4, 3, 2, 1, 0]]


def test_horovod_never_exceeds_its_threshold_and_skips_what_does_not_fit() -> None:
    graph = _graph([100 * MIB, 28 * MIB, 4])
    assert _numbers(horovod_buckets(graph, _ready([0, 0, 0]))) == [[0, 1], [2]]
    # 64 do not fit beside 100, and skipping them exceeds the threshold: the message closes
    graph = _graph([100 * MIB, 64 * MIB, 4])
    assert _numbers(horovod_buckets(graph, _ready([0, 0, 0]))) == [[0], [1, 2]]
    # another class is skipped, and looked at again afterwards
    graph = _graph([4, 8, 4, 8], ["f32", "f64", "f32", "f64"])
    assert _numbers(horovod_buckets(graph, _ready([0, 0, 0, 0]))) == [[0, 2], [1, 3]]
    # and keeps its place before what was never looked at
    graph = _graph([100 * MIB, 20 * MIB, 100 * MIB], ["f32", "f64", "f64"])
    assert _numbers(horovod_buckets(graph, _ready([0, 0, 0]))) == [[0], [1, 2]]


def test_horovods_cycle_must_have_a_length() -> None:
    with pytest.raises(ValueError, match="cycle_ms must be > 0, got 0"):
        horovod_buckets(_graph([4]), _ready([0]), cycle_ms=0)


@pytest.mark.parametrize("rule", [ddp_buckets, xla_buckets, single_bucket])
def test_merge_classes_are_kept_apart(rule) -> None:
    graph = _graph([4, 4, 4], ["avg/float32", "avg/float32", "avg/float64"])
    assert _numbers(rule(graph)) == [[0, 1], [2]]
