"""Graphs with more layers."""

from __future__ import annotations

import pytest
from graphs import op

from disco_fuse.bench.repeat import add_layers, num_layers, repeat_to
from disco_fuse.graph import Edge, ExternalRead, Op, OpGraph, OpKind, OpPattern


def model(layers: int) -> OpGraph:
    """Forward, backward and update of ``layers`` layers of matmul and activation.

    Forward of layer i reads weight i; its backward reads the activation before it, and its update,
    which overwrites the weight, comes after all its readers. All updates read one scalar.
    """
    ops: list[Op] = [op("embed", pattern=OpPattern.INJECTIVE, rows=0)]
    edges: list[Edge] = []
    reads = [ExternalRead(op=0, value=100, bytes=4)]

    def add(node: Op, *producers: int) -> int:
        ops.append(node)
        place = len(ops) - 1
        edges.extend(Edge(producer=p, consumer=place, bytes=400) for p in sorted(set(producers)))
        return place

    value, activations, matmuls = 0, [], []
    for layer in range(layers):
        activations.append(value)
        matmuls.append(add(op("matmul", kind=OpKind.LIBRARY), value))
        reads.append(ExternalRead(op=matmuls[-1], value=layer, bytes=400))
        value = add(op("act"), matmuls[-1])
    slope = add(op("loss", pattern=OpPattern.COMM_REDUCE, is_output=True), value)
    scalar = add(op("rate", rows=1, is_output=True))
    averages = []
    for layer in reversed(range(layers)):
        slope = add(op("act'", pattern=OpPattern.BROADCAST), slope, matmuls[layer])
        gradient = add(op("dw", kind=OpKind.LIBRARY, num_inputs=2), slope, activations[layer])
        averages.append(add(op("avg", kind=OpKind.ALLREDUCE), gradient))
        slope = add(op("dx", kind=OpKind.LIBRARY, num_inputs=3), slope)
        reads.append(ExternalRead(op=slope, value=layer, bytes=400))
    for layer in range(layers):
        update = add(
            op("update", is_output=True, num_inputs=4), averages[layers - 1 - layer], scalar
        )
        reads.append(ExternalRead(op=update, value=layer, bytes=400))
        edges.append(Edge(producer=matmuls[layer], consumer=update, order_only=True))
    return OpGraph.create(ops, edges, reads)


def _shape(graph: OpGraph) -> tuple[object, ...]:
    """Everything but the numbers of external values, which are told by who shares them."""
    readers: dict[int, list[int]] = {}
    for read in graph.external_reads:
        readers.setdefault(read.value, []).append(read.op)
    edges = sorted((e.producer, e.consumer, e.bytes, e.order_only) for e in graph.edges)
    return (graph.ops, edges, sorted(sorted(ops) for ops in readers.values()))


def test_layers_are_counted() -> None:
    assert num_layers(model(5)) == 5
    assert num_layers(model(12)) == 12


@pytest.mark.parametrize("extra", [0, 1, 7])
def test_a_longer_graph_is_that_of_a_deeper_model(extra: int) -> None:
    assert _shape(add_layers(model(6), extra)) == _shape(model(6 + extra))


def test_as_many_layers_as_come_nearest() -> None:
    graph = model(6)
    per_layer = model(7).num_ops - graph.num_ops
    assert repeat_to(graph, graph.num_ops + 10 * per_layer + 1) == add_layers(graph, 10)
    assert repeat_to(graph, 1) == graph


def test_nothing_repeats() -> None:
    with pytest.raises(ValueError, match="no layer repeats at least 4 times"):
        num_layers(model(2))
    with pytest.raises(ValueError, match="extra must be >= 0, got -1"):
        add_layers(model(6), -1)
