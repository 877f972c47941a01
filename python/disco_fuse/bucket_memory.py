"""Gradients are computed where their bucket travels, so that nothing is packed.

    before                                   after
    a = alloc_tensor(shape of g1)            a = bucket_tensor(0, offset 0, bytes, shape of g1)
    kernel(..., a)                           kernel(..., a)
    b = alloc_tensor(shape of g2)            b = bucket_tensor(0, offset 64, bytes, shape of g2)
    kernel(..., b)                           kernel(..., b)
    allreduce_start(0, a, b)                 allreduce_start(0, a, b)        finds both in place

    memory of bucket 0   | g1 ... | pad | g2 ... |            every gradient at a multiple of 64

Runs after CallTIRRewrite, where every output of a kernel has an allocation of its own, and before
memory is planned: what lies in a bucket is not the planner's. A gradient that cannot be moved is
copied by the runtime as before: one that is no allocation of its own (a parameter, a constant, part
of a larger value), or that travels twice.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from disco_fuse.apply import START
from disco_fuse.bindings import dtype_name, is_op, static_shape

BUCKET_TENSOR = "disco_fuse.runtime.bucket_tensor"
# kGradientAlignment of src/runtime/session.h.
_ALIGNMENT = 64


@tvm.transform.module_pass(opt_level=0, name="PlaceGradients")
class PlaceGradients:
    """Let the gradients of every bucket of several be allocated in the bucket's memory."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Called by TVM."""
        main = mod["main"]
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        places = _places(bindings)
        if not places:
            return mod
        placer = _Placer(mod, places)
        placer.builder_.update_func(mod.get_global_var("main"), placer.visit_expr(main))
        return placer.builder_.get()


def bucket_layout(sizes_bytes: list[int]) -> tuple[list[int], int]:
    """(offset of every gradient, bytes of all), as ``src/runtime/session.cc`` packs them."""
    offsets, end = [], 0
    for size in sizes_bytes:
        offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = offsets[-1] + size
    return offsets, end


def _places(bindings: list[Any]) -> dict[relax.Var, tuple[int, int, int]]:
    """(bucket, offset, bytes of the bucket) of every allocation that can be moved."""
    values = {binding.var: binding.value for binding in bindings}
    places: dict[relax.Var, tuple[int, int, int]] = {}
    num_uses: Counter[relax.Var] = Counter()
    for binding in bindings:
        gradients = _started(binding.value)
        if gradients is None:
            continue
        bucket, tensors = gradients
        offsets, num_bytes = bucket_layout([_size(tensor.ty) for tensor in tensors])
        for tensor, offset in zip(tensors, offsets, strict=True):
            home = _allocation(tensor, values)
            if home is not None:
                num_uses[home] += 1
                if len(tensors) > 1:
                    places[home] = (bucket, offset, num_bytes)
    return {home: place for home, place in places.items() if num_uses[home] == 1}


def _started(value: Any) -> tuple[int, list[relax.Var]] | None:
    """Bucket and gradients of a call that starts an AllReduce."""
    callee = value.op if isinstance(value, Call) else None
    if not isinstance(callee, relax.ExternFunc) or not str(callee.global_symbol).startswith(START):
        return None
    bucket, *tensors = value.args
    return int(bucket.value), list(tensors)


def _allocation(tensor: Any, values: dict[relax.Var, Any]) -> relax.Var | None:
    """The allocation that ``tensor`` is, seen through other names, shapes and tuples."""
    while tensor in values:
        value = values[tensor]
        if is_op(value, "relax.builtin.alloc_tensor"):
            return tensor
        if is_op(value, "relax.reshape"):
            tensor = value.args[0]
        elif isinstance(value, relax.TupleGetItem):
            whole = value.tuple_value
            while whole in values:
                whole = values[whole]
            if not isinstance(whole, relax.Tuple):
                return None
            tensor = whole.fields[value.index]
        elif isinstance(value, relax.Var):
            tensor = value
        else:
            return None
    return None


def _size(ty: relax.TensorType) -> int:
    return math.prod(static_shape(ty)) * np.dtype(dtype_name(ty)).itemsize


@relax.expr_functor.mutator
class _Placer(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the allocations."""

    def __init__(self, mod: tvm.IRModule, places: dict[relax.Var, tuple[int, int, int]]) -> None:
        super().__init__(mod)
        self.places = places

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Every ``var = value``."""
        place = self.places.get(binding.var)
        if place is None:
            super().visit_var_binding_(binding)
            return
        ty = binding.var.ty
        arguments = [relax.prim_value(number) for number in place]
        arguments += [relax.ShapeExpr(list(static_shape(ty))), tvm.ir.StringImm(dtype_name(ty))]
        call = Call(relax.ExternFunc(BUCKET_TENSOR), arguments, ty_args=[ty])
        self.set_var_remap(binding.var, self.builder_.emit(call, binding.var.name))
