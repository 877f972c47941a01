"""FoldWeightGradient: one library call for what the frontend writes as five operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from lowered_steps import lowered, step
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.build import build
from disco_fuse.graph import OpClass, OpGraph, OpKind
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target

op = relax.op

Emit = Callable[[Any], Any]
TURN = [1, 0, 2, 3]


def gradient(
    emit: Emit, x: Any, grad: Any, *, stride: int = 1, padding: int = 0, taps: int = 3
) -> Any:
    """Of the weight of a convolution without groups, as the frontend writes it."""
    product = emit(
        op.nn.conv2d(
            emit(op.permute_dims(x, TURN)),
            emit(op.permute_dims(grad, TURN)),
            padding=[padding] * 2,
            dilation=[stride] * 2,
        )
    )
    if int(product.ty.shape[2]) != taps:
        product = emit(op.strided_slice(product, [2, 3], [0, 0], [taps, taps]))
    return emit(op.permute_dims(product, TURN))


def run(mod: tvm.IRModule, arguments: list[np.ndarray], *, library: bool) -> Any:
    changed, extraction = lowered(mod, library_convolutions=library)
    unfused = apply(changed, extraction, Strategy.unfused(extraction.graph))
    executable = build(unfused, host_target()).executable
    tensors = [tvm.runtime.tensor(argument) for argument in arguments]
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*tensors).numpy()


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([(2, 3, 6, 7), (2, 4, 4, 5)], {}),
        ([(2, 3, 6, 6), (2, 4, 6, 6)], {"padding": 1}),
        # Rows that no window reached show as taps too many, which are cut off.
        ([(2, 3, 8, 8), (2, 4, 4, 4)], {"padding": 1, "stride": 2}),
        ([(2, 3, 8, 8), (2, 4, 4, 4)], {"stride": 2, "taps": 1}),
    ],
)
def test_a_weight_gradient_becomes_one_op(
    shapes: list[tuple[int, ...]], options: dict[str, int]
) -> None:
    mod = step(lambda emit, x, g: gradient(emit, x, g, **options), *shapes)
    (found,) = lowered(mod, library_convolutions=True)[1].graph.ops
    assert (found.kind, found.op_class) == (OpKind.LIBRARY, OpClass.CONVOLUTION)
    taps = options.get("taps", 3)
    batch, channels, height, width = shapes[1]
    assert found.flops == 2 * (channels * shapes[0][1] * taps**2) * batch * height * width
    assert found.bytes_read == 4 * sum(int(np.prod(shape)) for shape in shapes)
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    plain, folded = (run(mod, arguments, library=library) for library in (False, True))
    np.testing.assert_allclose(folded, plain, rtol=1e-4, atol=1e-4)


def graph_of(body: Callable[..., Any], *shapes: tuple[int, ...]) -> OpGraph:
    return lowered(step(body, *shapes), library_convolutions=True)[1].graph


def kernels(graph: OpGraph) -> list[str]:
    return [item.name.split(":")[1].rstrip("0123456789") for item in graph.ops]


SHAPES = ((2, 3, 6, 6), (2, 4, 4, 4))


def test_operands_that_others_read_stay() -> None:
    def body(emit: Emit, x: Any, grad: Any) -> Any:
        turned = emit(op.permute_dims(x, TURN))
        product = emit(op.nn.conv2d(turned, emit(op.permute_dims(grad, TURN))))
        weight = emit(op.permute_dims(product, TURN))
        return emit(op.add(emit(op.sum(turned)), weight))

    assert sorted(kernels(graph_of(body, *SHAPES))) == [
        "add",
        "sum",
        "transpose",
        "weight_gradient",
    ]


def test_a_product_that_others_read_is_not_folded() -> None:
    def body(emit: Emit, x: Any, grad: Any) -> Any:
        turned = emit(op.permute_dims(x, TURN))
        product = emit(op.nn.conv2d(turned, emit(op.permute_dims(grad, TURN))))
        return emit(op.add(emit(op.sum(product)), emit(op.permute_dims(product, TURN))))

    assert "weight_gradient" not in kernels(graph_of(body, *SHAPES))


@pytest.mark.parametrize(
    ("first", "cut", "groups"),
    [([1, 0, 3, 2], 0, 1), ([1, 0, 2, 3], 1, 1), ([1, 0, 2, 3], 0, 2)],
    ids=["axes of the image exchanged", "first taps cut off", "groups"],
)
def test_other_patterns_are_not_folded(first: list[int], cut: int, groups: int) -> None:
    def body(emit: Emit, x: Any, grad: Any) -> Any:
        turned = [emit(op.permute_dims(x, first)), emit(op.permute_dims(grad, TURN))]
        product = emit(op.nn.conv2d(*turned, groups=groups))
        kept = emit(op.strided_slice(product, [2, 3], [cut] * 2, [3, 3])) if cut else product
        return emit(op.permute_dims(kept, TURN))

    shapes = ((2, 3, 6, 6), (2 // groups, 4, 4, 4))
    assert "weight_gradient" not in kernels(graph_of(body, *shapes))
