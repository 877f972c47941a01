"""Which parameter an op of a training step is about, found in the graph.

values       p ------> forward, backward            they read the parameter: "p"
             |            grad_p:sum                 makes its gradient: "grad_p"
             |                |
             |          grad_p_avg:allreduce
             +------> update, update                 what follows, of the same size: "update of p"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from disco_fuse.graph import OpGraph, OpKind

_GRADIENT, _AVERAGED = "grad_", "_avg"


@lru_cache(maxsize=8)
def roles(graph: OpGraph) -> Mapping[int, str]:
    """Op -> what it is about, for the ops of which the graph tells.

    The frontend calls gradients ``grad_p`` and their AllReduces ``grad_p_avg``. A parameter is what
    an op behind such an AllReduce, of the same size, reads as many bytes of; so is the state of an
    optimizer, but nothing else reads that. Parameters of one element tell nothing: sums over all
    gradients, as for clipping, have that size too.
    """
    consumers: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        if not edge.order_only:
            consumers[edge.producer].append(edge.consumer)
    reads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for read in graph.external_reads:
        reads[read.op].append((read.value, read.bytes))
    found: dict[int, str] = {}
    parameters: dict[int, str] = {}
    for op, facts in enumerate(graph.ops):
        name = facts.name.partition(":")[0]
        if not name.startswith(_GRADIENT):
            continue
        if facts.kind != OpKind.ALLREDUCE:
            found[op] = name
        elif facts.num_elements > 1:
            parameter = name.removeprefix(_GRADIENT).removesuffix(_AVERAGED)
            for update in _updates(graph, op, consumers):
                found[update] = f"update of {parameter}"
                parameters |= {
                    value: parameter for value, size in reads[update] if size == facts.bytes_written
                }
    for op, values in reads.items():
        names = [parameters[value] for value, _ in values if value in parameters]
        if names:
            found.setdefault(op, names[0])
    return found


def _updates(graph: OpGraph, allreduce: int, consumers: Mapping[int, Sequence[int]]) -> set[int]:
    """Compute ops behind an AllReduce that have as many elements as it, directly connected."""
    found: set[int] = set()
    stack = [allreduce]
    while stack:
        new = {
            op
            for op in consumers[stack.pop()]
            if graph.ops[op].kind == OpKind.COMPUTE
            and graph.ops[op].num_elements == graph.ops[allreduce].num_elements
        } - found
        found |= new
        stack += new
    return found
