"""A fusion group cut out of its graph: a small graph that is priced like the group itself.

graph          group {3, 4}              standalone
0 --> 3 --> 4  reads op 0 and value 7    0 --> 1, both outputs as in the group;
7 ----^     |  4 is read by 9            external values 0 (was op 0) and 1 (was value 7)
            v
            9
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

from disco_fuse.cost_model.base import Group, check_groups
from disco_fuse.graph import Edge, ExternalRead, Op, OpClass, OpGraph, OpKind, OpPattern

# What one op is stored as, in this order; the rest of an Op says nothing of a kernel.
_FIELDS = ("pattern", "flops", "num_elements", "rows", "bytes_read", "bytes_written", "signature")


def standalone(graph: OpGraph, group: Group) -> tuple[OpGraph, Group]:
    """``group`` as a graph of its own, and the group of all its ops.

    What the members read from other ops becomes external values; the roofline, the loop nests and
    the features of the result are those of ``group`` in ``graph``.
    """
    check_groups(graph, [group])
    index = {op: i for i, op in enumerate(group.ops)}
    edges, values, reads = [], dict[tuple[str, int], int](), list[ExternalRead]()
    for edge in graph.edges:
        if edge.consumer not in index or edge.order_only:
            continue
        if edge.producer in index:
            producer, consumer = index[edge.producer], index[edge.consumer]
            edges.append(replace(edge, producer=producer, consumer=consumer))
        else:
            value = values.setdefault(("op", edge.producer), len(values))
            reads.append(ExternalRead(op=index[edge.consumer], value=value, bytes=edge.bytes))
    for read in graph.external_reads:
        if read.op in index:
            value = values.setdefault(("external", read.value), len(values))
            reads.append(ExternalRead(op=index[read.op], value=value, bytes=read.bytes))
    ops = [
        replace(graph.ops[op], is_output=op in group.outputs, is_donated=False) for op in group.ops
    ]
    reads.sort(key=lambda read: (read.op, read.value))
    outputs = tuple(index[op] for op in group.outputs)
    return (
        OpGraph.create(ops, edges, reads),
        Group(ops=tuple(range(len(ops))), outputs=outputs),
    )


def to_text(graph: OpGraph, group: Group) -> str:
    """A standalone group as compact JSON; equal text, equal group."""
    return json.dumps(
        {
            "ops": [
                [_kernel_name(op), str(op.op_class), *(_plain(getattr(op, f)) for f in _FIELDS)]
                for op in graph.ops
            ],
            "edges": [[e.producer, e.consumer, e.bytes, int(e.keeps_rows)] for e in graph.edges],
            "reads": [[read.op, read.value, read.bytes] for read in graph.external_reads],
            "outputs": list(group.outputs),
        },
        separators=(",", ":"),
    )


def from_text(text: str) -> tuple[OpGraph, Group]:
    """Inverse of :func:`to_text`, but for what no cost depends on.

    Raises
    ------
    ValueError
        The text is no group.
    """
    try:
        data = json.loads(text)
        ops = [_op(row, i in data["outputs"]) for i, row in enumerate(data["ops"])]
        edges = [
            Edge(producer=p, consumer=c, bytes=size, keeps_rows=bool(keeps))
            for p, c, size, keeps in data["edges"]
        ]
        reads = [ExternalRead(op=o, value=v, bytes=size) for o, v, size in data["reads"]]
        group = Group(ops=tuple(range(len(ops))), outputs=tuple(data["outputs"]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"not the text of a group: {error}") from error
    return OpGraph.create(ops, edges, reads), group


def signature(text: str) -> str:
    """Hexadecimal name of the group whose :func:`to_text` is ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def family(graph: OpGraph, group: Group) -> str:
    """Name of all groups that are equal to a standalone one up to sizes."""
    ops = [[_kernel_name(op), int(op.pattern), str(op.op_class), op.rows > 0] for op in graph.ops]
    edges = [[e.producer, e.consumer, e.keeps_rows] for e in graph.edges]
    text = json.dumps([ops, edges, list(group.outputs)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kernel_name(op: Op) -> str:
    """ "lv3:tir_multiply12" -> "multiply": the operator without the numbers that TVM appends."""
    return re.sub(r"\d+$", "", op.name.rpartition(":")[2].removeprefix("tir_"))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, OpPattern) else value


def _op(row: list[Any], is_output: bool) -> Op:
    name, op_class, pattern, *rest = row
    values = dict(zip(_FIELDS[1:], rest, strict=True))
    return Op(
        name=name,
        kind=OpKind.COMPUTE,
        pattern=OpPattern(pattern),
        op_class=OpClass(op_class),
        is_output=is_output,
        **values,
    )
