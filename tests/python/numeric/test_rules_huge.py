"""Reductions of millions of elements, and nests that are spread over cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from cpu_kernels import TARGETS, check, f32, group, random_inputs, run
from numpy.typing import NDArray
from rule_programs import scheduled
from tvm import relax

op = relax.op
ROUNDING = 2.0**-24
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int]] = {
    # what is reduced, its shape, the axes, and how many numbers one accumulator adds: a vector has
    # 8 lanes, and rows have four vectors of accumulators
    "scalar": (op.sum, (1 << 23,), (0,), 1 << 18),
    "rows": (op.sum, (3, 1 << 21), (1,), 1 << 16),
    "columns": (op.sum, (1 << 20, 5), (0,), 1 << 20),
    "means of channels": (op.mean, (64, 3, 1 << 14), (0, 2), 1 << 15),
    "every second axis": (op.sum, (33, 3, 65, 2, 129), (0, 2, 4), 1 << 15),
}


@pytest.mark.parametrize("name", CASES)
def test_long_sums(name: str) -> None:
    """Of positive numbers, so that the error of a sum is at most its length in roundings."""
    reduce, shape, axes, length = CASES[name]
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("float32")
    specs = [f32(*shape)]
    mod, messages = scheduled(
        group(lambda emit, v: emit(reduce(v, list(axes))), specs), TARGETS["avx2"]
    )
    assert not [text for text in messages if "failed on" in text or text.startswith("plain")]
    expected: NDArray[Any] = x.astype("float64").sum(axes)
    if reduce is op.mean:
        expected = expected / (x.size // expected.size)
    (got,) = run(mod, [x], TARGETS["avx2"])
    np.testing.assert_allclose(got, expected, rtol=length * ROUNDING)


def test_softmax_of_a_million() -> None:
    x = 3 * random_inputs([f32(2, 1 << 20)])[0]
    mod, _ = scheduled(
        group(lambda emit, v: emit(op.nn.softmax(v)), [f32(2, 1 << 20)]), TARGETS["avx2"]
    )
    (got,) = run(mod, [x], TARGETS["avx2"])
    e = np.exp(x.astype("float64"))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(got.astype("float64").sum(1), 1.0, rtol=1e-4)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2]])
def test_nests_on_two_cores(axes: list[int]) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})

    def build(emit: Any, x: relax.Var, y: relax.Var) -> list[relax.Expr]:
        product = emit(op.multiply(emit(op.tanh(x)), y))
        turned = emit(op.permute_dims(product, [2, 0, 1]))
        return [emit(op.sum(product, axes)), turned]

    def reference(x: NDArray[Any], y: NDArray[Any]) -> list[NDArray[Any]]:
        product = np.tanh(x) * y
        return [product.sum(tuple(axes)), product.transpose(2, 0, 1)]

    shape = (37, 65, 41)
    func = check(build, [f32(*shape), f32(*shape)], reference, target=target)
    assert "T.parallel" in func.script()
