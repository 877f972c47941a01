"""Random and hand-made graphs for the tests of the core."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from disco_fuse.config import AllReduceModel, ClusterSpec, DeviceSpec
from disco_fuse.graph import Edge, ExternalRead, Op, OpGraph, OpKind, OpPattern

# The same examples on every run, and no failures because the machine is busy.
settings.register_profile("core", deadline=None, derandomize=True)
settings.load_profile("core")

DEVICE = DeviceSpec(name="test", peak_gflops=1.0, bandwidth_gbps=0.4, launch_us=10.0, nest_us=2.0)
CLUSTER = ClusterSpec(
    name="test",
    world_size=2,
    device=DEVICE,
    allreduce=AllReduceModel.linear(latency_us=5.0, us_per_byte=0.01),
    contention=1.25,
)

_PATTERNS = (
    OpPattern.ELEMWISE,
    OpPattern.ELEMWISE,
    OpPattern.BROADCAST,
    OpPattern.INJECTIVE,
    OpPattern.COMM_REDUCE,
    OpPattern.OUT_ELEMWISE_FUSABLE,
    OpPattern.OPAQUE,
)


def op(
    name: str,
    *,
    kind: OpKind = OpKind.COMPUTE,
    pattern: OpPattern = OpPattern.ELEMWISE,
    num_inputs: int = 1,
    rows: int = 10,
    is_output: bool = False,
) -> Op:
    """100 float32 in 10 rows: 1 us of traffic per input and output of DEVICE."""
    return Op(
        name=name,
        kind=kind,
        pattern=pattern,
        flops=100.0,
        num_elements=100,
        rows=rows,
        bytes_read=400 * num_inputs,
        bytes_written=400,
        is_output=is_output,
        collective="allreduce" if kind is OpKind.ALLREDUCE else "",
        merge_class="avg/float32/world" if kind is OpKind.ALLREDUCE else "",
    )


def fork() -> OpGraph:
    """Op 0 is read by 1 and 2; 3 is the AllReduce of 2, which 4 reads."""
    ops = [op("x"), op("y"), op("g"), op("avg", kind=OpKind.ALLREDUCE), op("update")]
    pairs = [(0, 1), (0, 2), (2, 3), (3, 4)]
    edges = [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs]
    return OpGraph.create(ops, edges, [ExternalRead(op=0, value=0, bytes=400)])


def late_gradient() -> tuple[OpGraph, tuple[int, ...]]:
    """A graph, and an order in which it takes less time than in the list schedule.

    That follows production order, 0 1 | 3; the gradient of 3 is there earlier, and only behind its
    AllReduce is there much to do.
    """
    ops = [
        op("x", pattern=OpPattern.OPAQUE),
        op("g0", pattern=OpPattern.OPAQUE),
        op("a0", kind=OpKind.ALLREDUCE),
        op("g1", pattern=OpPattern.OPAQUE),
        op("a1", kind=OpKind.ALLREDUCE),
        op("u", pattern=OpPattern.OPAQUE),
        op("v", pattern=OpPattern.OPAQUE, is_output=True),
    ]
    pairs = [(0, 1), (1, 2), (3, 4), (4, 5), (5, 6)]
    edges = [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs]
    return OpGraph.create(ops, edges), (3, 4, 0, 1, 2, 5, 6)


@st.composite
def op_graphs(draw: st.DrawFn, max_ops: int = 14) -> OpGraph:
    """Any mix of kinds, patterns, edges, order-only edges, outputs and external reads."""
    num_ops = draw(st.integers(1, max_ops))
    ops: list[Op] = []
    edges: list[Edge] = []
    reads: list[ExternalRead] = []
    for i in range(num_ops):
        producers = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        kinds = [OpKind.COMPUTE] * 4 + [OpKind.LIBRARY] + [OpKind.ALLREDUCE] * bool(producers) * 2
        kind = draw(st.sampled_from(kinds))
        if kind is OpKind.ALLREDUCE:
            producers = set(list(producers)[:1])
        ops.append(
            op(
                f"op{i}",
                kind=kind,
                pattern=draw(st.sampled_from(_PATTERNS)),
                num_inputs=len(producers) + 1,
                rows=draw(st.sampled_from([0, 10, 10, 100])),
                is_output=draw(st.integers(0, 5)) == 0,
            )
        )
        edges.extend(Edge(producer=p, consumer=i, bytes=400) for p in sorted(producers))
        if i and draw(st.integers(0, 4)) == 0:
            reader = draw(st.integers(0, i - 1))
            edges.append(Edge(producer=reader, consumer=i, order_only=True))
        if draw(st.booleans()):
            reads.append(ExternalRead(op=i, value=draw(st.integers(0, 2)), bytes=400))
    return OpGraph.create(ops, edges, reads)
