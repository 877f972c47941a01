"""Memory of a step: what its kernels write lies in one arena, at offsets that are known in advance.

    before                                after
                                          arena = memory.alloc_storage(bytes)
    a = builtin.alloc_tensor(shape)       view = memory.alloc_tensor(arena, offset, shape)
                                          a = memory.ensure_zero_offset(view)
    kernel(x, a)                          kernel(x, a)

TVM's StaticPlanBlockMemory, which this replaces, hands a whole buffer on to one later value of a
similar size, so that a large one is either kept for large values or wasted on a small one. Here a
place is free after the last binding that names the value; an AllReduce's wait names what is in
flight.

Left alone are allocations that the step returns: they live on when the next step begins. Gradients
that lie in their bucket are no allocations (``bucket_memory.py``), nor are updated parameters
(``donate.py``). ``ensure_zero_offset`` moves the pointer and copies nothing, on hosts and on GPUs
alike, since offsets are multiples of 64 (``vm.builtin.ensure_zero_offset`` of TVM); so kernels
need no offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from disco_fuse.arena import Arena, Lifetime, overlaps, place
from disco_fuse.bindings import dtype_name, is_op, static_shape, tensor_bytes

_ALLOCATION = "relax.builtin.alloc_tensor"
# Allocations, by number, that a value may lie in; of a tuple those of each field.
_Behind = frozenset[int] | tuple["_Behind", ...]


@dataclass(frozen=True)
class StepBuffers:
    """What the kernels of a step allocate, in order.

    Attributes
    ----------
    variables : tuple of relax.Var
        Of the planned allocations.
    lifetimes : tuple of Lifetime
        Of each; moments are indices of bindings.
    """

    variables: tuple[relax.Var, ...]
    lifetimes: tuple[Lifetime, ...]


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """Give every allocation of main a place in one arena; runs after CallTIRRewrite.

    Raises
    ------
    ValueError
        main has control flow, dynamic shapes, or an allocation that is not on its one device.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Called by TVM."""
        main = mod["main"]
        buffers = step_buffers(main)
        if not buffers.variables:
            return mod
        arena = place(buffers.lifetimes)
        problems = overlaps(buffers.lifetimes, arena)
        assert not problems, problems[0]
        writer = _ArenaWriter(mod, buffers, arena)
        writer.builder_.update_func(mod.get_global_var("main"), writer.visit_expr(main))
        return writer.builder_.get()


def step_buffers(main: relax.Function) -> StepBuffers:
    """Allocations of a main and how long each is needed; those it returns are left out."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    behind: dict[relax.Var, _Behind] = {}
    variables: list[relax.Var] = []
    begins: list[int] = []
    ends: list[int] = []
    for moment, binding in enumerate(bindings):
        value = binding.value
        if isinstance(value, relax.If | relax.SeqExpr | relax.Function):
            raise ValueError(f"{binding.var.name} is control flow; memory is planned without")
        if is_op(value, _ALLOCATION):
            _check_place(binding)
            behind[binding.var] = frozenset([len(variables)])
            variables.append(binding.var)
            begins.append(moment)
            ends.append(moment)
            continue
        used = _behind(value, behind)
        if isinstance(value, tvm.ir.Call):
            assert isinstance(used, frozenset)
            for index in used:
                ends[index] = moment
            # A call may hand back what it was given: a reshape does, a kernel returns nothing.
            if isinstance(binding.var.ty, relax.TupleType) and not binding.var.ty.fields:
                continue
        behind[binding.var] = used
    returned = _flat(_behind(main.body.body, behind))
    planned = [index for index in range(len(variables)) if index not in returned]
    return StepBuffers(
        tuple(variables[index] for index in planned),
        tuple(
            Lifetime(tensor_bytes(variables[index].ty), begins[index], ends[index])
            for index in planned
        ),
    )


def _check_place(binding: relax.VarBinding) -> None:
    """ValueError unless an allocation is in the plain memory of the step's device."""
    _, _, device, scope = binding.value.args
    if int(device.value) != 0 or str(scope.value) != "global":
        raise ValueError(
            f"{binding.var.name} is allocated on device {int(device.value)} in memory "
            f"{str(scope.value)!r}; allowed: device 0, 'global'"
        )


def _behind(expr: Any, behind: Mapping[relax.Var, _Behind]) -> _Behind:
    """What ``expr`` may lie in; of a call, all that it reads and writes."""
    if isinstance(expr, relax.Var):
        return behind.get(expr, frozenset())
    if isinstance(expr, relax.Tuple):
        return tuple(_behind(field, behind) for field in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        whole = _behind(expr.tuple_value, behind)
        return whole[expr.index] if isinstance(whole, tuple) else whole
    if isinstance(expr, tvm.ir.Call):
        return frozenset().union(*(_flat(_behind(arg, behind)) for arg in expr.args))
    return frozenset()


def _flat(behind: _Behind) -> frozenset[int]:
    if isinstance(behind, frozenset):
        return behind
    return frozenset().union(*map(_flat, behind))


@relax.expr_functor.mutator
class _ArenaWriter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the allocations."""

    def __init__(self, mod: tvm.IRModule, buffers: StepBuffers, arena: Arena) -> None:
        super().__init__(mod)
        self.offsets = dict(zip(buffers.variables, arena.offsets, strict=True))
        self.num_bytes = arena.num_bytes
        self.storage: relax.Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Every ``var = value``."""
        offset = self.offsets.get(binding.var)
        if offset is None:
            super().visit_var_binding_(binding)
            return
        if self.storage is None:
            size = relax.ShapeExpr([self.num_bytes])
            block = relax.op.memory.alloc_storage(size, 0, "global", "uint8")
            self.storage = self.builder_.emit(block, "arena")
        ty = binding.var.ty
        tensor = relax.op.memory.alloc_tensor(
            self.storage, offset, relax.ShapeExpr(list(static_shape(ty))), dtype_name(ty)
        )
        if offset:
            tensor = relax.op.memory.ensure_zero_offset(self.builder_.emit(tensor))
        self.set_var_remap(binding.var, self.builder_.emit(tensor, binding.var.name))
