"""What TVM's FuseOps makes of a lowered module: its groups, and the order in which it emits them.

FuseOps shortens names, shares equal kernels and sorts main anew, so every op gets a mark of its own
first:

    lv3 = call_tir(add, ...)          op 7      lv3 = call_tir(op_7, ...)      a PrimFunc of its own
    lv4 = call_dps_packed("gemm")     op 8      lv4 = call_dps_packed("op_8")  opaque to FuseOps
    lv5 = R.ccl.allreduce(lv4)        op 9      lv5 = call_dps_packed("op_9")  as are both of these
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call, Op

from disco_fuse.bindings import call_inputs, is_op, packed_name
from disco_fuse.config import UNCAPPED
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpGraph
from disco_fuse.strategy import Strategy

_TAG = "disco_fuse.op"
_PREFIX = "disco_fuse.op_"


@dataclass(frozen=True, kw_only=True)
class Emission:
    """Groups of ops, and the order in which a tool emits them; ops are ids of an OpGraph.

    Attributes
    ----------
    groups : tuple of tuple of int
        Kernels of more than one op, ascending.
    order : tuple of int
        All ops; those of a group stand together.
    """

    groups: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]


def fuse_ops(mod: tvm.IRModule, extraction: Extraction) -> Emission:
    """Run FuseOps on the lowered module that ``extraction`` was read from."""
    fused = relax.transform.FuseOps()(_tag_ops(mod, extraction))
    groups: list[tuple[int, ...]] = []
    order: list[int] = []
    for block in fused["main"].body.blocks:
        for binding in block.bindings:
            ops = _ops_of(fused, binding.value)
            order += ops
            if len(ops) > 1:
                groups.append(tuple(ops))
    # What main does not return is dropped by no pass before; still, every op has a place.
    assert sorted(order) == list(range(extraction.graph.num_ops))
    return Emission(groups=tuple(sorted(groups)), order=tuple(order))


def in_emitted_order(graph: OpGraph, strategy: Strategy, order: Sequence[int]) -> Strategy:
    """``strategy`` with its units as early as ``order``, the emitted order of the ops, allows.

    A unit stands where its last member does: a bucket after its last gradient. What waits for a
    bucket that has moved back moves behind it.
    """
    place = [0] * graph.num_ops
    for i, op in enumerate(order):
        place[op] = i
    units = {unit.id: unit for unit in strategy.units(graph)}
    rank = {unit.id: (max(place[op] for op in unit.ops), unit.id) for unit in units.values()}
    consumers, missing = _dependencies(graph, strategy)
    ready = [rank[unit] for unit in units if missing[unit] == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        _, unit = heapq.heappop(ready)
        result.append(unit)
        for consumer in consumers[unit]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, rank[consumer])
    return Strategy.create(graph, strategy.group_of, order=result, limits=UNCAPPED)


def _dependencies(graph: OpGraph, strategy: Strategy) -> tuple[dict[int, set[int]], dict[int, int]]:
    """Consumers of each unit, and how many units each waits for."""
    if strategy.duplicated:
        raise ValueError("in_emitted_order is for strategies without copies")
    home = strategy.group_of.tolist()
    pairs = {(home[edge.producer], home[edge.consumer]) for edge in graph.edges}
    consumers: dict[int, set[int]] = defaultdict(set)
    missing: dict[int, int] = defaultdict(int)
    for producer, consumer in pairs:
        if producer != consumer:
            consumers[producer].add(consumer)
            missing[consumer] += 1
    return consumers, missing


def _ops_of(fused: tvm.IRModule, value: relax.Expr) -> list[int]:
    """The ops behind one binding of FuseOps' main; none for glue."""
    if is_op(value, "relax.call_tir"):
        attrs = fused[value.args[0]].attrs
        return [int(attrs[_TAG])] if _TAG in attrs else []
    if is_op(value, "relax.call_dps_packed"):
        return [int(packed_name(value).removeprefix(_PREFIX))]
    if isinstance(value, Call) and isinstance(value.op, tvm.ir.GlobalVar):
        bindings = [b for block in fused[value.op].body.blocks for b in block.bindings]
        return sorted(op for binding in bindings for op in _ops_of(fused, binding.value))
    return []


def _tag_ops(mod: tvm.IRModule, extraction: Extraction) -> tvm.IRModule:
    """``mod`` with every op of the graph calling something of its own that carries its id."""
    op_of = {binding.var: op for op, binding in enumerate(extraction.bindings)}
    main: relax.Function = mod["main"]
    others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    bindings = []
    for binding in main.body.blocks[0].bindings:
        if binding.var not in op_of:
            bindings.append(binding)
            continue
        op, value = op_of[binding.var], binding.value
        if is_op(value, "relax.call_tir"):
            own = builder.add_func(others[value.args[0]].with_attr(_TAG, op), f"op_{op}")
            value = Call(value.op, [own, *value.args[1:]], value.attrs, value.ty_args)
        else:
            inputs = relax.Tuple(call_inputs(value))
            args = [relax.ExternFunc(f"{_PREFIX}{op}"), inputs]
            value = Call(Op.get("relax.call_dps_packed"), args, None, [binding.var.ty])
        bindings.append(relax.VarBinding(binding.var, value))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    builder.add_func(
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs), "main"
    )
    return relax.transform.Normalize()(builder.get())
