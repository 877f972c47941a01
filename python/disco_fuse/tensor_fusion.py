"""Tensor fusion as other tools decide it: gradients in, buckets out.

    gradients by production   g0  g1  g2  g3  g4
    per_gradient             [g0][g1][g2][g3][g4]
    xla_buckets              [g0  g1][g2  g3  g4]     up to a number of bytes and operands
    ddp_buckets              [g0][g1  g2  g3][g4]     until a number of bytes is reached
    horovod_buckets          [g0  g1][g2][g3  g4]     whatever is ready when a cycle begins
    single_bucket            [g0  g1  g2  g3  g4]

A bucket lists AllReduce ops; only ops of one merge class share one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from disco_fuse.graph import OpGraph, OpKind

MIB = 2**20
XLA_COMBINER_BYTES = 30 * MIB
XLA_COMBINER_OPERANDS = 256
DDP_FIRST_CAP_BYTES = 1 * MIB
DDP_CAP_BYTES = 25 * MIB
HOROVOD_FUSION_BYTES = 128 * MIB
HOROVOD_CYCLE_MS = 1.0

Buckets = list[list[int]]


def gradients_in_production_order(graph: OpGraph) -> list[int]:
    """AllReduce ops, ordered by the op that produces their gradient."""
    producer = {edge.consumer: edge.producer for edge in graph.edges if not edge.order_only}
    allreduces = [i for i, op in enumerate(graph.ops) if op.kind == OpKind.ALLREDUCE]
    return sorted(allreduces, key=lambda op: (producer[op], op))


def per_gradient(graph: OpGraph) -> Buckets:
    """One AllReduce per gradient."""
    return [[allreduce] for allreduce in gradients_in_production_order(graph)]


def single_bucket(graph: OpGraph) -> Buckets:
    """Everything in one AllReduce; one per merge class, and none that waits for itself."""
    return xla_buckets(graph, threshold_bytes=2**62, max_operands=2**62)


def xla_buckets(
    graph: OpGraph,
    threshold_bytes: int = XLA_COMBINER_BYTES,
    max_operands: int = XLA_COMBINER_OPERANDS,
) -> Buckets:
    """XLA's AllReduceCombiner.

    Again and again the first AllReduce that is left opens a bucket; those of its class join in
    order until one would exceed the threshold, depends on a member, or the bucket is full. One that
    is larger than the threshold stays alone and closes nothing.

    Source: ``CombineInstructionsByKey`` in openxla/xla,
    ``xla/service/collective_combiner_utils.h``. The thresholds are those of the GPU compiler in
    TensorFlow's ``compiler/xla/service/gpu/gpu_compiler.cc`` (30 * 1024 * 1024 bytes, 256
    operands); newer XLA has 7 bytes more (``xla/service/collective_utils.h``).
    """
    before = _allreduces_before(graph)
    left = gradients_in_production_order(graph)
    buckets: Buckets = []
    while left:
        bucket: list[int] = []
        alone: list[int] = []
        size, stopped = 0, False
        later: list[int] = []
        for allreduce in left:
            gradient = graph.ops[allreduce].bytes_written
            if stopped or (bucket and not _same_class(graph, bucket[0], allreduce)):
                later.append(allreduce)
            elif gradient > threshold_bytes:
                alone.append(allreduce)
            elif size + gradient > threshold_bytes or not before[allreduce].isdisjoint(bucket):
                stopped = True
                later.append(allreduce)
            else:
                bucket.append(allreduce)
                size += gradient
                stopped = len(bucket) >= max_operands
        buckets += [[allreduce] for allreduce in alone]
        buckets += [bucket] if bucket else []
        left = later
    place = {op: i for i, op in enumerate(gradients_in_production_order(graph))}
    return sorted(buckets, key=lambda bucket: place[bucket[0]])


def ddp_caps_bytes(bucket_cap_mb: float | None = None) -> tuple[int, ...]:
    """The caps of DDP's buckets, the last one for all further buckets.

    Without a ``bucket_cap_mb`` the first bucket is a small one; with one there is none.
    Source: ``BucketCapacityConfig`` in pytorch/pytorch 2.13, ``torch/nn/parallel/distributed.py``.
    """
    if bucket_cap_mb is None:
        return DDP_FIRST_CAP_BYTES, DDP_CAP_BYTES
    return (int(bucket_cap_mb * MIB),)


def ddp_buckets(
    graph: OpGraph,
    caps_bytes: Sequence[int] | None = None,
    arrival: Sequence[int] | None = None,
) -> Buckets:
    """PyTorch DDP after its rebuild: a bucket closes once it has reached its cap.

    Parameters
    ----------
    caps_bytes : sequence of int, optional
        Caps, of which the last repeats; default: :func:`ddp_caps_bytes`.
    arrival : sequence of int, optional
        AllReduce ops in the order in which their gradients arrive. Default: production order, which
        is when they arrive in our program. Eager PyTorch differs a little: its engine hands out the
        gradient of a bias before that of the weight, whose node comes after the transposition.
    """
    caps = ddp_caps_bytes() if caps_bytes is None else caps_bytes
    arrival = gradients_in_production_order(graph) if arrival is None else arrival
    sizes = [graph.ops[allreduce].bytes_written for allreduce in arrival]
    classes = [_class(graph, allreduce) for allreduce in arrival]
    return [[arrival[place] for place in bucket] for bucket in ddp_partition(sizes, caps, classes)]


def ddp_partition(
    sizes_bytes: Sequence[float], caps_bytes: Sequence[int], classes: Sequence[str] | None = None
) -> Buckets:
    """PyTorch DDP's buckets of gradients that are numbered in order of arrival.

    Every class has a sequence of buckets, and of caps, of its own. Source:
    ``compute_bucket_assignment_by_size`` and ``Reducer::rebuild_buckets`` in pytorch/pytorch,
    ``torch/csrc/distributed/c10d/reducer.cpp``.

    Parameters
    ----------
    sizes_bytes : sequence of float
    caps_bytes : sequence of int
        Of which the last repeats.
    classes : sequence of str, optional
        Only gradients of one class share a bucket. Default: all are of one.
    """
    closed: Buckets = []
    num_closed: dict[str, int] = defaultdict(int)
    open_buckets: dict[str, list[int]] = defaultdict(list)
    open_bytes: dict[str, float] = defaultdict(float)
    for gradient, size in enumerate(sizes_bytes):
        merge_class = "" if classes is None else classes[gradient]
        open_buckets[merge_class].append(gradient)
        open_bytes[merge_class] += size
        if open_bytes[merge_class] >= caps_bytes[min(num_closed[merge_class], len(caps_bytes) - 1)]:
            closed.append(open_buckets.pop(merge_class))
            del open_bytes[merge_class]
            num_closed[merge_class] += 1
    return [*closed, *open_buckets.values()]


def horovod_buckets(
    graph: OpGraph,
    ready_us: Mapping[int, float],
    threshold_bytes: int = HOROVOD_FUSION_BYTES,
    cycle_ms: float = HOROVOD_CYCLE_MS,
) -> Buckets:
    """Horovod's tensor fusion: every cycle packs what has become ready since the one before.

    Within a cycle a response takes the tensors that follow as long as they fit; one that does not
    (another class, or too large) is skipped, unless skipping would exceed the threshold too. The
    messages then wait for the network, not for the next cycle, as with NCCL. All ranks are ready at
    the same time.

    Source: ``Controller::FuseResponses`` in horovod/horovod, ``horovod/common/controller.cc``;
    128 MiB and 1 ms are the defaults of version 0.21 and later.

    Parameters
    ----------
    ready_us : mapping
        AllReduce op -> time at which its gradient exists, microseconds.
    """
    if cycle_ms <= 0:
        raise ValueError(f"cycle_ms must be > 0, got {cycle_ms}")
    cycles: dict[int, list[int]] = defaultdict(list)
    for allreduce in gradients_in_production_order(graph):
        cycles[int(ready_us[allreduce] // (cycle_ms * 1000))].append(allreduce)
    buckets: Buckets = []
    for cycle in sorted(cycles):
        ready = deque(sorted(cycles[cycle], key=lambda op: ready_us[op]))
        while ready:
            buckets.append(_fuse_responses(graph, ready, threshold_bytes))
    return buckets


def _fuse_responses(graph: OpGraph, ready: deque[int], threshold_bytes: int) -> list[int]:
    """Takes one message from the front of ``ready``."""
    bucket = [ready.popleft()]
    size, skipped_size = graph.ops[bucket[0]].bytes_written, 0
    skipped: list[int] = []
    while ready:
        gradient = graph.ops[ready[0]].bytes_written
        if _same_class(graph, bucket[0], ready[0]) and size + gradient <= threshold_bytes:
            size += gradient
            bucket.append(ready.popleft())
            continue
        skipped_size += gradient
        if size + skipped_size > threshold_bytes:
            break
        skipped.append(ready.popleft())
    ready.extendleft(reversed(skipped))
    return bucket


def _allreduces_before(graph: OpGraph) -> list[set[int]]:
    """Per AllReduce op the AllReduce ops that lead to it, empty for other ops."""
    before: list[set[int]] = [set() for _ in graph.ops]
    producers: list[list[int]] = [[] for _ in graph.ops]
    for edge in graph.edges:
        producers[edge.consumer].append(edge.producer)
    for op, sources in enumerate(producers):
        for source in sources:
            # Shared while nothing is added: most ops of a backward pass follow no AllReduce.
            before[op] = before[op] | before[source] if before[source] else before[op]
            if graph.ops[source].kind == OpKind.ALLREDUCE:
                before[op] = before[op] | {source}
    return before


def _class(graph: OpGraph, allreduce: int) -> str:
    op = graph.ops[allreduce]
    return f"{op.collective} {op.merge_class}"


def _same_class(graph: OpGraph, a: int, b: int) -> bool:
    return _class(graph, a) == _class(graph, b)
