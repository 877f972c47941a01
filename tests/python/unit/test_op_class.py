"""What class of work an op is, convolutions as library calls, and what slices and gathers read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from lowered_steps import lowered, step
from tvm import relax, te

from disco_fuse.apply import apply
from disco_fuse.baselines import fuse_ops_groups
from disco_fuse.build import build
from disco_fuse.graph import Op, OpClass, OpKind, OpPattern
from disco_fuse.kernels.library import library_available
from disco_fuse.kernels.op_class import op_class
from disco_fuse.profile import ProfileDatabase, profile_ops
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target

op = relax.op


def only_op(build_body: Callable[..., Any], *shapes: tuple[int, ...]) -> Op:
    (found,) = lowered(step(lambda _, *inputs: build_body(*inputs), *shapes))[1].graph.ops
    return found


@pytest.mark.parametrize(
    ("build_body", "shapes", "expected"),
    [
        (op.add, [(4, 8), (8,)], OpClass.ELEMENTWISE),
        (lambda x: op.broadcast_to(x, (3, 4)), [(4,)], OpClass.ELEMENTWISE),
        (lambda x: op.sum(x, [0]), [(4, 8)], OpClass.REDUCTION),
        (op.nn.softmax, [(4, 8)], OpClass.REDUCTION),
        (op.nn.max_pool2d, [(1, 2, 4, 4)], OpClass.REDUCTION),
        (op.permute_dims, [(4, 8)], OpClass.MOVEMENT),
        (lambda x: op.strided_slice(x, [1], [1], [3]), [(4, 8)], OpClass.MOVEMENT),
        (op.matmul, [(4, 8), (8, 3)], OpClass.MATMUL),
        (op.nn.conv2d, [(1, 3, 8, 8), (2, 3, 3, 3)], OpClass.CONVOLUTION),
        (op.nn.conv1d_transpose, [(1, 3, 8), (3, 2, 3)], OpClass.CONVOLUTION),
    ],
)
def test_classes(
    build_body: Callable[..., Any], shapes: list[tuple[int, ...]], expected: OpClass
) -> None:
    assert only_op(build_body, *shapes).op_class == expected


@pytest.mark.parametrize(("other", "expected"), [("y", OpClass.MATMUL), ("x", OpClass.REDUCTION)])
def test_sums_of_products_of_two_tensors_are_matmuls(other: str, expected: OpClass) -> None:
    tensors = {name: te.placeholder((4, 8), name=name) for name in ("x", "y")}
    k = te.reduce_axis((0, 8), name="k")
    x, factor = tensors["x"], tensors[other]
    result = te.compute((4,), lambda i: te.sum(x[i, k] * factor[i, k], axis=k))
    assert op_class(te.create_prim_func([*tensors.values(), result])) == expected


@pytest.mark.skipif(not library_available(), reason="torch, whose BLAS is called, is missing")
def test_a_library_matmul_is_a_matmul() -> None:
    _, extraction = lowered(step(lambda _, x, y: op.matmul(x, y), (4, 8), (8, 3)), library=True)
    (found,) = extraction.graph.ops
    assert (found.kind, found.op_class) == (OpKind.LIBRARY, OpClass.MATMUL)


@pytest.mark.parametrize(
    ("build_body", "shapes", "flops"),
    [
        # 2 * elements of the result * channels of a group * taps
        (
            lambda x, w: op.nn.conv2d(x, w, strides=[2, 2], padding=[1, 1]),
            [(2, 6, 8, 8), (4, 6, 3, 3)],
            2 * (2 * 4 * 4 * 4) * 6 * 9,
        ),
        (
            lambda x, w: op.nn.conv2d(x, w, groups=3),
            [(2, 6, 8, 8), (9, 2, 3, 3)],
            2 * (2 * 9 * 6 * 6) * 2 * 9,
        ),
        # 2 * elements of the input * channels of a group of the result * taps, whatever the stride
        (
            lambda x, w: op.nn.conv2d_transpose(x, w, strides=[2, 2]),
            [(2, 6, 8, 8), (6, 4, 3, 3)],
            2 * (2 * 6 * 8 * 8) * 4 * 9,
        ),
        (lambda x, w: op.nn.conv1d(x, w), [(2, 6, 8), (4, 6, 3)], 2 * (2 * 4 * 6) * 6 * 3),
        (
            lambda x, w: op.nn.conv3d(x, w),
            [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)],
            2 * (3 * 27) * 2 * 8,
        ),
    ],
)
def test_library_convolutions_count_what_their_definition_asks(
    build_body: Callable[..., Any], shapes: list[tuple[int, ...]], flops: int
) -> None:
    mod = step(lambda _, *inputs: build_body(*inputs), *shapes)
    (found,) = lowered(mod, library_convolutions=True)[1].graph.ops
    assert (found.kind, found.pattern) == (OpKind.LIBRARY, OpPattern.OPAQUE)
    assert (found.op_class, found.flops) == (OpClass.CONVOLUTION, flops)
    (generated,) = lowered(mod)[1].graph.ops
    assert (generated.kind, generated.op_class) == (OpKind.COMPUTE, OpClass.CONVOLUTION)
    assert generated.bytes_read == found.bytes_read
    assert generated.bytes_written == found.bytes_written


def _conv_relu(emit: Callable[[Any], Any], x: Any, w: Any) -> Any:
    product = emit(op.nn.conv2d(emit(op.exp(x)), w, padding=[1, 1]))
    return emit(op.add(emit(op.nn.relu(product)), product))


def test_fuse_ops_leaves_library_convolutions_alone() -> None:
    mod = step(_conv_relu, (1, 3, 8, 8), (3, 3, 3, 3))
    _, (conv, *_) = fuse_ops_with_convolution(mod, library=False)
    assert conv in (1, 2)
    groups, convolutions = fuse_ops_with_convolution(mod, library=True)
    assert len(convolutions) == 1
    assert not any(convolutions[0] in group for group in groups)


def fuse_ops_with_convolution(
    mod: tvm.IRModule, *, library: bool
) -> tuple[list[list[int]], list[int]]:
    """Groups of FuseOps, and the ops that are convolutions."""
    mod, extraction = lowered(mod, library_convolutions=library)
    ops = extraction.graph.ops
    convolutions = [i for i, item in enumerate(ops) if item.op_class == OpClass.CONVOLUTION]
    return fuse_ops_groups(mod, extraction), convolutions


def test_library_convolutions_run_and_are_timed() -> None:
    mod = step(_conv_relu, (1, 3, 8, 8), (3, 3, 3, 3))
    rng = np.random.default_rng(0)
    arguments = [
        tvm.runtime.tensor(rng.normal(size=shape).astype(np.float32))
        for shape in ((1, 3, 8, 8), (3, 3, 3, 3))
    ]
    results = []
    for library in (False, True):
        changed, extraction = lowered(mod, library_convolutions=library)
        with ProfileDatabase(None) as database:
            times_us = profile_ops(changed, extraction, host_target(), database)
        assert (times_us > 0).all()
        fused = apply(changed, extraction, Strategy.unfused(extraction.graph))
        executable = build(fused, host_target()).executable
        results.append(relax.VirtualMachine(executable, tvm.cpu())["main"](*arguments).numpy())
    assert np.array_equal(results[0], results[1])


def test_slices_and_gathers_read_what_they_keep() -> None:
    slice_ = only_op(lambda x: op.strided_slice(x, [0], [1], [3]), (100, 8))
    assert (slice_.bytes_read, slice_.bytes_written) == (64, 64)
    take = only_op(lambda x: op.take(x, relax.const(np.array([5, 7], "int64")), axis=0), (100, 8))
    assert take.bytes_read <= 64 + 2 * 8 * 8  # the index is read once per element at most
    pooled = only_op(lambda x: op.nn.max_pool2d(x, (3, 3), padding=[1, 1]), (1, 1, 8, 8))
    assert pooled.bytes_read == 8 * 8 * 4  # loaded several times, read once


def test_edges_carry_what_is_read() -> None:
    body = lambda emit, x: emit(op.strided_slice(emit(op.exp(x)), [0], [1], [3]))  # noqa: E731
    (edge,) = lowered(step(body, (100, 8)))[1].graph.edges
    assert edge.bytes == 64
