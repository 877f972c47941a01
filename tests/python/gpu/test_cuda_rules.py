"""Each rule serves the shapes it is for, in one launch per nest, and computes the right thing.

The kernels run on the CPU: see `emulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cuda_kernels import TARGET, Build, Spec, buffer_inputs, f32, fused, random_inputs, rules_used
from emulator import Emulated
from tvm import relax

from disco_fuse.kernels.cuda import count_launches, schedule

op = relax.op


@dataclass(frozen=True, kw_only=True)
class Case:
    """A group, what it computes, and which rules write its launches."""

    build: Build
    specs: Sequence[Spec]
    reference: Callable[..., Any]
    rules: tuple[str, ...]


def _chain(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.tanh(emit(op.multiply(emit(op.add(x, y)), x))))


def _two_outputs(emit: Any, x: Any, y: Any) -> list[Any]:
    total = emit(op.add(x, y))
    return [total, emit(op.exp(total))]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(emit: Any, x: Any, w: Any) -> Any:
    mean = emit(op.divide(emit(op.sum(x, axis=[-1], keepdims=True)), relax.const(33.0)))
    centred = emit(op.subtract(x, mean))
    square = emit(op.sum(emit(op.multiply(centred, centred)), axis=[-1], keepdims=True))
    scale = emit(op.rsqrt(emit(op.add(square, relax.const(1.0)))))
    return emit(op.multiply(emit(op.multiply(centred, scale)), w))


def _norm_reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).sum(-1, keepdims=True) + 1) * w


def _matmul_relu(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.nn.relu(emit(op.matmul(x, y))))


CASES = {
    "chain": Case(
        build=_chain,
        specs=[f32(7, 129), f32(7, 129)],
        reference=lambda x, y: np.tanh((x + y) * x),
        rules=("pointwise",),
    ),
    "two_outputs": Case(
        build=_two_outputs,
        specs=[f32(3, 5), f32(3, 5)],
        reference=lambda x, y: [x + y, np.exp(x + y)],
        rules=("pointwise",),
    ),
    "scalar": Case(
        build=lambda emit, x: emit(op.exp(x)), specs=[f32()], reference=np.exp, rules=("pointwise",)
    ),
    "bool": Case(
        build=lambda emit, x, y: emit(op.logical_and(emit(op.greater(x, y)), emit(op.less(x, y)))),
        specs=[f32(3, 5), f32(3, 5)],
        reference=lambda x, y: (x > y) & (x < y),
        rules=("pointwise",),
    ),
    "transposed_5d": Case(
        build=lambda emit, x: emit(op.exp(emit(op.permute_dims(x, [4, 2, 0, 1, 3])))),
        specs=[f32(2, 3, 5, 1, 7)],
        reference=lambda x: np.exp(x.transpose(4, 2, 0, 1, 3)),
        rules=("pointwise",),
    ),
    "take": Case(
        build=lambda emit, x, i: emit(op.take(x, i, axis=0)),
        specs=[f32(4, 9), ((5,), "int64")],
        reference=lambda x, i: x[i],
        rules=("pointwise",),
    ),
    "softmax": Case(
        build=lambda emit, x: emit(op.nn.softmax(x)),
        specs=[f32(2, 5, 300)],
        reference=_softmax,
        rules=("teams",),
    ),
    "softmax_of_one": Case(
        build=lambda emit, x: emit(op.nn.softmax(x)),
        specs=[f32(4, 1)],
        reference=_softmax,
        rules=("teams",),
    ),
    "norm": Case(
        build=_norm, specs=[f32(9, 33), f32(33)], reference=_norm_reference, rules=("teams",)
    ),
    "long_rows": Case(
        build=lambda emit, x: emit(op.nn.softmax(x)),
        specs=[f32(2, 20001)],
        reference=_softmax,
        rules=("teams",),
    ),
    "row_sum_int64": Case(
        build=lambda emit, x: emit(op.sum(x, axis=[1])),
        specs=[((3, 500), "int64")],
        reference=lambda x: x.sum(1),
        rules=("teams",),
    ),
    "column_sum": Case(
        build=lambda emit, x: emit(op.sum(x, axis=[0])),
        specs=[f32(130, 45)],
        reference=lambda x: x.sum(0),
        rules=("teams",),
    ),
    "full_max": Case(
        build=lambda emit, x: emit(op.max(x)),
        specs=[f32(37, 41)],
        reference=np.max,
        rules=("teams",),
    ),
    "middle_sum_5d": Case(
        build=lambda emit, x: emit(op.sum(x, axis=[1, 3])),
        specs=[f32(2, 3, 5, 4, 7)],
        reference=lambda x: x.sum((1, 3)),
        rules=("teams",),
    ),
    "matmul": Case(
        build=lambda emit, x, y: emit(op.matmul(x, y)),
        specs=[f32(3, 65, 33), f32(3, 33, 70)],
        reference=np.matmul,
        rules=("matmul",),
    ),
    "matmul_float64": Case(
        build=lambda emit, x, y: emit(op.matmul(x, y)),
        specs=[((64, 16), "float64"), ((16, 64), "float64")],
        reference=np.matmul,
        rules=("matmul",),
    ),
    "narrow_matmul": Case(
        build=lambda emit, x, y: emit(op.matmul(x, y)),
        specs=[f32(40, 33), f32(33, 3)],
        reference=np.matmul,
        rules=("teams",),
    ),
    "matmul_relu": Case(
        build=_matmul_relu,
        specs=[f32(20, 19), f32(19, 18)],
        reference=lambda x, y: np.maximum(x @ y, 0),
        rules=("matmul", "pointwise"),
    ),
    "convolution": Case(
        build=lambda emit, x, w: emit(op.nn.conv2d(x, w, strides=2, padding=1)),
        specs=[f32(2, 3, 9, 9), f32(16, 3, 3, 3)],
        reference=lambda x, w: _convolution(x, w),
        rules=("matmul",),
    ),
}


def _convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,ocij->nohw", windows, w)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    functions = {name: fused(case.build, case.specs) for name, case in CASES.items()}
    return Emulated(functions, TARGET, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", CASES)
def test_rule_and_launches(name: str) -> None:
    case = CASES[name]
    func = fused(case.build, case.specs)
    with rules_used() as used:
        scheduled = schedule(func, TARGET)
    assert tuple(used) == (*case.rules, "nests")
    assert count_launches(scheduled, TARGET) == len(case.rules)
    assert count_launches(func, TARGET) == len(case.rules)


@pytest.mark.parametrize("name", CASES)
def test_result(name: str, emulated: Emulated) -> None:
    case = CASES[name]
    inputs = random_inputs(case.specs)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in inputs]
    expected = case.reference(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    func = fused(case.build, case.specs)
    outputs = emulated.run(name, buffer_inputs(func, inputs))[len(inputs) :]
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * scale)


def test_an_output_may_be_an_input(emulated: Emulated) -> None:
    """An in-place update: the two outputs of `two_outputs` over its inputs."""
    case = CASES["two_outputs"]
    x, y = random_inputs(case.specs)
    func = fused(case.build, case.specs)
    outputs = emulated.run("two_outputs", buffer_inputs(func, [x, y]), aliases={2: 0, 3: 1})
    np.testing.assert_allclose(outputs[2], x + y, rtol=1e-6)
    np.testing.assert_allclose(outputs[3], np.exp(x + y), rtol=1e-5)


def test_empty_tensors_launch_nothing() -> None:
    func = fused(lambda emit, x: emit(op.exp(x)), [f32(0, 4)])
    assert count_launches(func, TARGET) == 0
