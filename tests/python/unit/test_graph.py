"""OpGraph: checks, digest, JSON."""

from __future__ import annotations

import pytest
from graphs import fork, op, op_graphs
from hypothesis import given

from disco_fuse.graph import Edge, ExternalRead, Op, OpClass, OpGraph, OpKind, OpPattern


@given(graph=op_graphs())
def test_json_keeps_everything(graph: OpGraph) -> None:
    again = OpGraph.from_json(graph.to_json())
    assert again == graph
    assert again.ops == graph.ops
    assert again.edges == graph.edges
    assert again.external_reads == graph.external_reads


def test_digest_depends_on_every_field() -> None:
    base = fork()
    digests = {base.digest}
    changes = {
        "name": "other",
        "kind": OpKind.LIBRARY,
        "pattern": OpPattern.BROADCAST,
        "flops": 1.0,
        "num_elements": 1,
        "rows": 1,
        "bytes_read": 1,
        "bytes_written": 1,
        "signature": "s",
        "is_output": True,
        "is_donated": True,
        "collective": "c",
        "merge_class": "m",
        "op_class": OpClass.MATMUL,
    }
    for field, value in changes.items():
        fields = {**base.ops[0].__dict__, field: value}
        changed = OpGraph.create((Op(**fields), *base.ops[1:]), base.edges, base.external_reads)
        digests.add(changed.digest)
    assert len(digests) == 1 + len(changes)
    assert set(changes) == set(Op.__dataclass_fields__)


def test_equal_graphs_are_equal_values() -> None:
    assert fork() == fork()
    assert hash(fork()) == hash(fork())
    assert len(fork().digest) == 32


def test_errors_name_op_and_field() -> None:
    with pytest.raises(ValueError, match=r"op 0 \('x'\): rows must be >= 0, got -1"):
        OpGraph.create([op("x", rows=-1)])
    with pytest.raises(ValueError, match="op ids are topological"):
        OpGraph.create([op("x"), op("y")], [Edge(producer=1, consumer=0, bytes=4)])
    with pytest.raises(ValueError, match=r"edge 0 \(0 -> 5\): consumer must be in \[0, 1\)"):
        OpGraph.create([op("x")], [Edge(producer=0, consumer=5, bytes=4)])
    with pytest.raises(ValueError, match="reads value 3 twice"):
        OpGraph.create([op("x")], [], [ExternalRead(op=0, value=3, bytes=4)] * 2)
    with pytest.raises(ValueError, match="not the JSON of an OpGraph"):
        OpGraph.from_json("{}")


def test_ids_beyond_32_bits_are_rejected() -> None:
    with pytest.raises(ValueError, match="4294967296"):
        OpGraph.create([op("x"), op("y")], [Edge(producer=0, consumer=2**32, bytes=4)])
