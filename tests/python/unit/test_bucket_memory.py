"""Which gradients are allocated in their bucket's memory, and where."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from disco_fuse.bindings import is_op
from disco_fuse.bucket_memory import BUCKET_TENSOR, PlaceGradients, bucket_layout


def test_layout_pads_before_every_gradient() -> None:
    assert bucket_layout([400, 28, 64, 4]) == ([0, 448, 512, 576], 580)
    assert bucket_layout([8]) == ([0], 8)


def module(buckets: list[list[int]]) -> tvm.IRModule:
    """Three kernels of 100, 7 and 3 numbers, and an AllReduce of the named ones per bucket."""
    builder = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType((n,), "float32")) for i, n in enumerate((100, 7, 3))]
    with builder.function("main", xs, pure=False):
        values = [builder.emit(relax.op.add(x, relax.const(1.0, "float32"))) for x in xs]
        for bucket, members in enumerate(buckets):
            callee = relax.ExternFunc("disco_fuse.runtime.allreduce_start")
            arguments = [relax.prim_value(bucket), *(values[i] for i in members)]
            builder.emit(relax.Call(callee, arguments, ty_args=[relax.TupleType([])]))
        builder.emit_func_output(relax.Tuple(values))
    mod = relax.transform.LegalizeOps()(builder.get())
    return relax.transform.CallTIRRewrite()(mod)


def placed(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """(bucket, offset, bytes) of what is allocated in a bucket."""
    found = []
    for block in PlaceGradients()(mod)["main"].body.blocks:
        for binding in block.bindings:
            value: Any = binding.value
            callee = getattr(value, "op", None)
            if isinstance(callee, relax.ExternFunc) and callee.global_symbol == BUCKET_TENSOR:
                found.append(tuple(int(number.value) for number in value.args[:3]))
    return found


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ([[0, 1, 2]], [(0, 0, 524), (0, 448, 524), (0, 512, 524)]),
        ([[2], [1, 0]], [(1, 64, 464), (1, 0, 464)]),
        ([[0], [1], [2]], []),
        # What travels twice stays out of both.
        ([[0, 1], [1, 2]], [(0, 0, 476), (1, 64, 76)]),
        ([[0, 0]], []),
    ],
)
def test_places(buckets: list[list[int]], expected: list[tuple[int, ...]]) -> None:
    assert placed(module(buckets)) == expected


def test_outputs_of_a_kernel_with_several_are_found() -> None:
    """CallTIRRewrite hands them out as a tuple of allocations."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x], pure=False):
        parts = builder.emit(relax.op.split(x, 2, axis=1))
        halves = [builder.emit(relax.TupleGetItem(parts, i)) for i in range(2)]
        callee = relax.ExternFunc("disco_fuse.runtime.allreduce_start")
        arguments = [relax.prim_value(0), *halves]
        builder.emit(relax.Call(callee, arguments, ty_args=[relax.TupleType([])]))
        builder.emit_func_output(relax.Tuple(halves))
    mod = relax.transform.CallTIRRewrite()(relax.transform.LegalizeOps()(builder.get()))
    assert placed(mod) == [(0, 0, 112), (0, 64, 112)]


def test_the_module_given_is_not_changed() -> None:
    mod = module([[0, 1, 2]])
    text = mod.script()
    after = PlaceGradients()(mod)
    assert mod.script() == text
    calls = [b.value for block in after["main"].body.blocks for b in block.bindings]
    assert not any(is_op(call, "relax.builtin.alloc_tensor") for call in calls)


def test_without_buckets_of_several_the_module_is_returned() -> None:
    mod = module([[0]])
    assert PlaceGradients()(mod).same_as(mod)
