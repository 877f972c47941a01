"""Made-up measurements of fusion groups, with a rule in them that a model can learn."""

from __future__ import annotations

import numpy as np
from graphs import DEVICE

from disco_fuse.cost_model import Group
from disco_fuse.cost_model.features import kernel_times_us, read_features
from disco_fuse.cost_model.learned import TrainingGroup
from disco_fuse.cost_model.standalone import from_text, standalone, to_text
from disco_fuse.dataset.store import Header, MeasuredGroup
from disco_fuse.graph import Edge, ExternalRead, Op, OpClass, OpGraph, OpPattern
from disco_fuse.profile import Sample

HEADER = Header(environment="made up", device=DEVICE)


def chain(length: int, num_elements: int, *, reduces: bool = False) -> tuple[OpGraph, Group]:
    """``length`` elementwise ops in a row, or the last of them a reduction over rows of 16."""
    size = 4 * num_elements
    ops = []
    for i in range(length):
        last = reduces and i == length - 1
        ops.append(
            Op(
                name=f"lv{i}:tir_{'sum' if last else 'exp'}{i}",
                pattern=OpPattern.COMM_REDUCE if last else OpPattern.ELEMWISE,
                flops=float(num_elements),
                num_elements=num_elements // 16 if last else num_elements,
                rows=num_elements // 16,
                bytes_read=size,
                bytes_written=size // 16 if last else size,
                signature=f"{'sum' if last else 'exp'}-{num_elements}",
                is_output=i == length - 1,
                op_class=OpClass.REDUCTION if last else OpClass.ELEMENTWISE,
            )
        )
    edges = [Edge(producer=i, consumer=i + 1, bytes=size) for i in range(length - 1)]
    graph = OpGraph.create(ops, edges, [ExternalRead(op=0, value=0, bytes=size)])
    return graph, Group(ops=tuple(range(length)), outputs=(length - 1,))


def true_time_us(graph: OpGraph, group: Group) -> float:
    """The rule: reductions take half of what the roofline says, and every member adds 5%."""
    roofline_us = float(kernel_times_us(graph, [group], DEVICE)[0])
    reduces = any(graph.ops[op].pattern == OpPattern.COMM_REDUCE for op in group.ops)
    return roofline_us * (0.5 if reduces else 1.0) * 1.05 ** len(group.ops)


def measured_groups(num: int = 60, seed: int = 0) -> list[MeasuredGroup]:
    """Chains of random lengths and sizes of three models, all different."""
    rng = np.random.default_rng(seed)
    found: dict[str, MeasuredGroup] = {}
    while len(found) < num:
        length, elements = int(rng.integers(2, 7)), 16 * int(rng.integers(4, 4000))
        graph, group = standalone(*chain(length, elements, reduces=bool(rng.integers(2))))
        time_us = true_time_us(graph, group)
        found[to_text(graph, group)] = MeasuredGroup(
            graph=graph,
            group=group,
            model=f"model{rng.integers(3)}",
            sample=Sample(median_us=time_us, p10_us=time_us, p90_us=time_us, repeats=9),
            first_us=time_us,
            again_us=1.12 * time_us,
            reference_us=5.0,
        )
    return list(found.values())


def training_groups(num: int = 60, seed: int = 0) -> list[TrainingGroup]:
    """:func:`measured_groups` as models learn from them, op times by the roofline."""
    return [
        TrainingGroup(
            features=read_features(item.graph, [item.group], DEVICE)[0],
            roofline_us=float(kernel_times_us(item.graph, [item.group], DEVICE)[0]),
            measured_us=item.sample.median_us,
        )
        for item in measured_groups(num, seed)
    ]


def op_samples(groups: list[MeasuredGroup]) -> dict[str, Sample]:
    """A time for every op of the groups: what the roofline says."""
    result = {}
    for item in groups:
        singles = [Group(ops=(i,), outputs=(i,)) for i in range(item.graph.num_ops)]
        times = kernel_times_us(item.graph, singles, DEVICE)
        for op, time_us in zip(item.graph.ops, times.tolist(), strict=True):
            result[op.signature] = Sample(
                median_us=time_us, p10_us=time_us, p90_us=time_us, repeats=5
            )
    return result


def stored(item: MeasuredGroup) -> tuple[OpGraph, Group]:
    """The group as it comes back from a file."""
    return from_text(to_text(item.graph, item.group))
