"""CPU nests that share a pass: sums of the same data, and what is computed before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, Build, check, f32, f64, rules
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.target import Target

from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cpu import column_stream, context, shared

op = relax.op


@pytest.fixture(autouse=True)
def nothing_fits_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_stream, "MIN_BYTES", 0)


def sums(*axes: int) -> Build:
    def build(emit: Any, x: Any, y: Any) -> Any:
        product = emit(op.multiply(x, y))
        return [emit(op.sum(value, list(axes))) for value in (x, product)]

    return build


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@settings(max_examples=8, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    spec=st.sampled_from([f32, f64]),
    data=st.data(),
)
def test_sums_of_the_same_data(target: Target, shape: list[int], spec: Any, data: Any) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape) - 1))
    order = tuple(sorted(axes))

    def reference(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        return [x.sum(order), (x * y).sum(order)]

    func = check(sums(*order), [spec(*shape), spec(*shape)], reference, target=target)
    assert num_nests(func) == 2


@pytest.mark.parametrize(
    ("axes", "rule"), [((0, 2, 3), "single"), ((0,), "columns"), ((0, 1, 2), "columns")]
)
def test_rules_of_shared_sums(axes: tuple[int, ...], rule: str) -> None:
    shape = (3, 18, 5, 33)

    def reference(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        return [x.sum(axes), (x * y).sum(axes)]

    func = check(sums(*axes), [f32(*shape), f32(*shape)], reference)
    assert rules(func) == [rule]
    assert num_nests(func) == 2  # as the cost model prices it, on every device


def means(emit: Any, x: Any) -> Any:
    square = emit(op.multiply(x, x))
    return [emit(op.mean(value, [0, 2, 3])) for value in (x, square)]


def test_followers_of_shared_sums() -> None:
    func = check(means, [f32(3, 7, 5, 33)], lambda x: [x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))])
    assert rules(func) == ["single"]
    assert num_nests(func) == 3
    assert "alloc_buffer" not in func.script()  # the squares stay in registers


def relu_gradient(emit: Any, x: Any, y: Any) -> Any:
    mask = emit(op.astype(emit(op.greater(y, relax.const(0.0, "float32"))), "float32"))
    gradient = emit(op.multiply(x, mask))
    return [
        gradient,
        emit(op.sum(gradient, [0])),
        emit(op.sum(emit(op.multiply(gradient, y)), [0])),
    ]


@pytest.mark.parametrize("columns", [17, 64, 5000])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_gradient_and_its_sums(
    monkeypatch: pytest.MonkeyPatch, columns: int, streamed: bool
) -> None:
    if streamed:
        monkeypatch.setattr(context, "STREAMED_BYTES", 1)

    def reference(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        gradient = x * (y > 0)
        return [gradient, gradient.sum(0), (gradient * y).sum(0)]

    func = check(relu_gradient, [f32(41, columns), f32(41, columns)], reference)
    assert rules(func) == ["columns"]
    assert num_nests(func) == 3


def merged(emit: Any, *parts: Any) -> Any:
    rows = emit(op.concat([emit(op.permute_dims(p, [0, 2, 1, 3])) for p in parts], axis=2))
    return [rows, emit(op.sum(rows, [0, 1]))]


def test_gradients_of_heads_and_their_bias() -> None:
    def reference(*parts: np.ndarray) -> list[np.ndarray]:
        rows = np.concatenate([p.transpose(0, 2, 1, 3) for p in parts], 2)
        return [rows, rows.sum((0, 1))]

    assert rules(check(merged, [f32(3, 4, 9, 16)] * 3, reference)) == ["columns"]


def test_concatenated_columns_are_cut() -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        rows = emit(op.concat([x, y], axis=1))
        return [rows, emit(op.sum(rows, [0]))]

    def reference(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        rows = np.concatenate([x, y], 1)
        return [rows, rows.sum(0)]

    func = check(build, [f32(40, 21), f32(40, 50)], reference)
    assert rules(func) == ["columns"]
    assert "if_then_else" not in func.script()


def other_axes(emit: Any, x: Any) -> Any:
    return [emit(op.sum(x, [axis])) for axis in (0, 1)]


def centred(emit: Any, x: Any) -> Any:
    mean = emit(op.mean(x, [0], keepdims=True))
    return [mean, emit(op.sum(emit(op.subtract(x, mean)), [0]))]


def other_data(emit: Any, x: Any, y: Any) -> Any:
    return [emit(op.sum(x, [0])), emit(op.sum(y, [0]))]


def test_what_shares_no_pass() -> None:
    x, y = f32(40, 40), f32(40, 40)
    func = check(other_axes, [x], lambda x: [x.sum(0), x.sum(1)])
    assert rules(func) == ["columns", "rows"]
    func = check(centred, [x], lambda x: [x.mean(0, keepdims=True), (x - x.mean(0)).sum(0)])
    assert rules(func) == ["columns", "columns"]
    func = check(other_data, [x, y], lambda x, y: [x.sum(0), y.sum(0)])
    assert rules(func) == ["columns", "columns"]


def test_small_nests_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_stream, "MIN_BYTES", 1 << 20)
    func = check(sums(0), [f32(40, 40)] * 2, lambda x, y: [x.sum(0), (x * y).sum(0)])
    assert rules(func) == ["columns", "columns"]


def test_a_shared_pass_that_fails_leaves_the_nests(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("broken rule")

    monkeypatch.setattr(shared, "_stream", fail)
    func = check(sums(0), [f32(40, 40)] * 2, lambda x, y: [x.sum(0), (x * y).sum(0)])
    assert rules(func) == ["apart"]


def test_several_cores_walk_apart() -> None:
    cores = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    func = check(sums(0), [f32(40, 40)] * 2, lambda x, y: [x.sum(0), (x * y).sum(0)], target=cores)
    assert rules(func) == ["apart"]
