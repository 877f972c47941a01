"""Which allocations of a step are planned, for how long, and that a planned step computes the same.

A kernel is a call of a PrimFunc that returns nothing; ``disco_fuse.runtime.allreduce_*`` stand for
what is in flight between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from disco_fuse import plan_memory
from disco_fuse.arena import Arena
from disco_fuse.bindings import is_op
from disco_fuse.build import vm_pipeline
from disco_fuse.plan_memory import PlanMemory, step_buffers

SHAPE = (8, 16)
BYTES = 512


def add(builder: relax.BlockBuilder, x: relax.Expr, number: float) -> relax.Var:
    return builder.emit(relax.op.add(x, relax.const(number, "float32")))


def call(builder: relax.BlockBuilder, name: str, *tensors: relax.Expr) -> None:
    arguments = [relax.prim_value(0), *tensors]
    callee = relax.ExternFunc(f"disco_fuse.runtime.{name}")
    builder.emit(relax.Call(callee, arguments, ty_args=[relax.TupleType([])]))


def legalised(body: Callable[[relax.BlockBuilder, relax.Var], Any]) -> tvm.IRModule:
    """A module whose main returns what ``body`` made of one input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x], pure=False):
        builder.emit_func_output(body(builder, x))
    return relax.transform.LegalizeOps()(builder.get())


def rewritten(body: Callable[[relax.BlockBuilder, relax.Var], Any]) -> tvm.IRModule:
    return relax.transform.CallTIRRewrite()(legalised(body))


def chain(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
    """Six kernels in a row; the second is seen reshaped by the last, the sixth is returned."""
    values = [x]
    for number in range(5):
        values.append(add(builder, values[-1], number))
    view = builder.emit(relax.op.reshape(values[2], (16, 8)))
    back = builder.emit(relax.op.reshape(view, SHAPE))
    return builder.emit(relax.op.add(values[-1], back))


def test_a_value_lives_from_its_kernel_to_its_last_reader() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        a = add(builder, x, 1.0)
        b = add(builder, a, 2.0)
        c = add(builder, b, 3.0)
        return add(builder, c, 4.0)

    buffers = step_buffers(rewritten(body)["main"])
    a, b, c = buffers.lifetimes  # the returned one is left out
    assert [one.num_bytes for one in buffers.lifetimes] == [BYTES] * 3
    assert a.end >= b.begin
    assert a.end < c.begin


def test_views_and_tuples_keep_a_value_alive() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        a = add(builder, x, 1.0)
        alias = builder.emit(relax.TupleGetItem(builder.emit(relax.Tuple([x, a])), 1))
        add(builder, x, 2.0)
        c = add(builder, alias, 3.0)
        return add(builder, c, 4.0)

    a, _, c = step_buffers(rewritten(body)["main"]).lifetimes
    assert a.end >= c.begin


def test_fields_of_a_tuple_are_told_apart() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        a, b = add(builder, x, 1.0), add(builder, x, 2.0)
        both = builder.emit(relax.Tuple([a, b]))
        c = add(builder, builder.emit(relax.TupleGetItem(both, 0)), 3.0)
        d = add(builder, builder.emit(relax.TupleGetItem(both, 1)), 4.0)
        return builder.emit(relax.op.add(c, d))

    a, b, _, d = step_buffers(rewritten(body)["main"]).lifetimes
    assert a.end < d.begin <= b.end


@pytest.mark.parametrize("waited", [True, False])
def test_what_is_in_flight_is_alive_until_the_wait(waited: bool) -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        a = add(builder, x, 1.0)
        call(builder, "allreduce_start", a)
        b = add(builder, x, 2.0)
        c = add(builder, b, 3.0)
        if waited:
            call(builder, "allreduce_wait", a)
        return add(builder, c, 4.0)

    a, b, c = step_buffers(rewritten(body)["main"]).lifetimes
    assert (a.end > c.begin) == waited
    assert (a.end >= b.begin) == waited


def test_what_the_step_returns_is_left_alone() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Tuple:
        a, b = add(builder, x, 1.0), add(builder, x, 2.0)
        view = builder.emit(relax.op.reshape(a, (16, 8)))
        return builder.emit(relax.Tuple([view, add(builder, b, 3.0)]))

    mod = rewritten(body)
    assert len(step_buffers(mod["main"]).variables) == 2  # b, and the reshape's own copy or none
    left = [b for block in PlanMemory()(mod)["main"].body.blocks for b in block.bindings]
    assert sum(is_op(binding.value, "relax.builtin.alloc_tensor") for binding in left) == 2


def test_a_planned_step_computes_the_same() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    mod = legalised(chain)
    executable = tvm.compile(mod, target="llvm", relax_pipeline=vm_pipeline())
    machine = relax.VirtualMachine(executable, tvm.cpu())
    sums = x + np.float32(0)
    for number in range(1, 5):
        sums = sums + np.float32(number)
    expected = sums + (x + np.float32(0) + np.float32(1))
    for _ in range(3):
        np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), expected)


def test_the_arena_is_smaller_than_its_buffers() -> None:
    mod = PlanMemory()(rewritten(chain))
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    (block,) = [value for value in values if is_op(value, "relax.memory.alloc_storage")]
    assert int(block.args[0].values[0]) <= 4 * BYTES


def test_the_module_given_is_not_changed() -> None:
    mod = rewritten(chain)
    text = mod.script()
    PlanMemory()(mod)
    assert mod.script() == text


def test_a_step_without_buffers_is_returned() -> None:
    mod = rewritten(lambda builder, x: add(builder, x, 1.0))
    assert PlanMemory()(mod).same_as(mod)


def test_a_planner_that_overlaps_buffers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lifetimes: Any) -> Arena:
        return Arena((0,) * len(lifetimes), BYTES, BYTES)

    monkeypatch.setattr(plan_memory, "place", broken)
    with pytest.raises(AssertionError, match="overlap at time"):
        PlanMemory()(rewritten(chain))


def test_memory_of_another_device_is_refused() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        builder.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(SHAPE), "float32", 1), "far")
        return add(builder, x, 1.0)

    with pytest.raises(
        ValueError, match=r"far is allocated on device 1 in memory .global.; allowed"
    ):
        PlanMemory()(rewritten(body))
