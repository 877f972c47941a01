"""The strategies people have today, as rules: what DisCoFuse is measured against.

| name             | op fusion   | tensor fusion                                              |
|------------------|-------------|------------------------------------------------------------|
| none             | none        | one AllReduce per gradient                                 |
| op_fusion        | TVM FuseOps | one per gradient                                           |
| allreduce_fusion | none        | XLA's combiner: in production order, up to 30 MiB          |
| default          | TVM FuseOps | XLA's combiner                                             |
| ddp              | TVM FuseOps | PyTorch DDP's buckets, first 1 MiB, then 25 MiB            |
| single           | TVM FuseOps | one AllReduce                                              |

All of them get our kernels, library calls, transport and list schedule: only the decision differs.

Sources: XLA's AllReduceCombiner (greedy, threshold on the sum of bytes); PyTorch's Reducer
(`compute_bucket_assignment_by_size`: a bucket closes once it has reached its cap; rebuilt once in
the order in which gradients became ready, which here is the order the graph produces them in).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.ir import Call

from disco_fuse.bindings import is_op
from disco_fuse.config import UNCAPPED
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpGraph, OpKind
from disco_fuse.strategy import Strategy

XLA_COMBINER_BYTES = 30 * 2**20
DDP_CAPS_BYTES = (1 * 2**20, 25 * 2**20)
_TAG = "disco_fuse.op"

Buckets = list[list[int]]


def baseline_names() -> tuple[str, ...]:
    """The names :func:`baseline` knows."""
    return tuple(_RULES)


def baseline(name: str, mod: tvm.IRModule, extraction: Extraction) -> Strategy:
    """The strategy that the rule ``name`` chooses for a lowered module.

    Raises
    ------
    ValueError
        There is no baseline of that name.
    """
    if name not in _RULES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(_RULES)}")
    fuses, bucket_rule = _RULES[name]
    graph = extraction.graph
    group_of = list(range(graph.num_ops))
    if fuses:
        for group in fuse_ops_groups(mod, extraction):
            for op in group:
                group_of[op] = min(group)
    for bucket in bucket_rule(graph):
        for allreduce in bucket:
            group_of[allreduce] = min(bucket)
    return Strategy.create(graph, group_of, limits=UNCAPPED)


def fuse_ops_groups(mod: tvm.IRModule, extraction: Extraction) -> list[list[int]]:
    """The groups of TVM's FuseOps, as op ids of ``extraction.graph``.

    Every op gets a PrimFunc of its own name first, so that it can be found again in the result.
    """
    tagged = _tag_ops(mod, extraction)
    fused = relax.transform.FuseOps()(tagged)
    groups = []
    for func in fused.functions.values():
        if not isinstance(func, relax.Function) or not (func.attrs or {}).get("Primitive"):
            continue
        kernels = [
            fused[binding.value.args[0]]
            for block in func.body.blocks
            for binding in block.bindings
            if is_op(binding.value, "relax.call_tir")
        ]
        ops = sorted(int(kernel.attrs[_TAG]) for kernel in kernels if _TAG in kernel.attrs)
        if len(ops) > 1:
            groups.append(ops)
    return sorted(groups)


def xla_buckets(graph: OpGraph, threshold_bytes: int = XLA_COMBINER_BYTES) -> Buckets:
    """Greedy in production order; a bucket never exceeds the threshold unless alone in it."""
    buckets: Buckets = []
    size = 0
    for allreduce in gradients_in_production_order(graph):
        gradient = graph.ops[allreduce].bytes_written
        if (
            not buckets
            or size + gradient > threshold_bytes
            or not _same_class(graph, buckets[-1], allreduce)
        ):
            buckets.append([])
            size = 0
        buckets[-1].append(allreduce)
        size += gradient
    return buckets


def ddp_buckets(graph: OpGraph, caps_bytes: Sequence[int] = DDP_CAPS_BYTES) -> Buckets:
    """In production order; a bucket closes once it has reached its cap, the last cap repeats."""
    buckets: Buckets = []
    size, closed = 0, True
    for allreduce in gradients_in_production_order(graph):
        if closed or not _same_class(graph, buckets[-1], allreduce):
            buckets.append([])
            size = 0
        buckets[-1].append(allreduce)
        size += graph.ops[allreduce].bytes_written
        closed = size >= caps_bytes[min(len(buckets), len(caps_bytes)) - 1]
    return buckets


def single_bucket(graph: OpGraph) -> Buckets:
    """Everything in one AllReduce (one per merge class)."""
    return xla_buckets(graph, threshold_bytes=2**62)


def per_gradient(graph: OpGraph) -> Buckets:
    """One AllReduce per gradient."""
    return [[allreduce] for allreduce in gradients_in_production_order(graph)]


def gradients_in_production_order(graph: OpGraph) -> list[int]:
    """AllReduce ops, ordered by the op that produces their gradient."""
    producer = {edge.consumer: edge.producer for edge in graph.edges if not edge.order_only}
    allreduces = [i for i, op in enumerate(graph.ops) if op.kind == OpKind.ALLREDUCE]
    return sorted(allreduces, key=lambda op: (producer[op], op))


def _same_class(graph: OpGraph, bucket: list[int], allreduce: int) -> bool:
    return graph.ops[bucket[0]].merge_class == graph.ops[allreduce].merge_class


_RULES: dict[str, tuple[bool, Callable[[OpGraph], Buckets]]] = {
    "none": (False, per_gradient),
    "op_fusion": (True, per_gradient),
    "allreduce_fusion": (False, xla_buckets),
    "default": (True, xla_buckets),
    "ddp": (True, ddp_buckets),
    "single": (True, single_bucket),
}


def _tag_ops(mod: tvm.IRModule, extraction: Extraction) -> tvm.IRModule:
    """``mod`` with every op of the graph calling a PrimFunc of its own that carries its id."""
    op_of = {binding.var: op for op, binding in enumerate(extraction.bindings)}
    main: relax.Function = mod["main"]
    others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    bindings = []
    for binding in main.body.blocks[0].bindings:
        value = binding.value
        if binding.var in op_of and is_op(value, "relax.call_tir"):
            op = op_of[binding.var]
            own = builder.add_func(others[value.args[0]].with_attr(_TAG, op), f"op_{op}")
            value = Call(value.op, [own, *value.args[1:]], value.attrs, value.ty_args)
            bindings.append(relax.VarBinding(binding.var, value))
        else:
            bindings.append(binding)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    builder.add_func(
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs), "main"
    )
    return relax.transform.Normalize()(builder.get())
