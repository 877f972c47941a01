"""Reductions over other axes than the last, and products of matrices."""

import numpy as np
import pytest
from cpu_kernels import TARGETS, check, f32, f64, rules
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from disco_fuse.kernels.analysis import num_nests

op = relax.op


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 300), spec=st.sampled_from([f32, f64]))
def test_sum_over_leading_axes(target, rows, columns, spec):
    def build(emit, x, y):
        return emit(op.sum(emit(op.multiply(x, y)), [0, 1]))

    specs = [spec(2, rows, columns), spec(2, rows, columns)]
    func = check(build, specs, lambda x, y: (x * y).sum((0, 1)), target=target)
    assert num_nests(func) == 1


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [0, 2, 3], [1, 2], [0, 1, 2, 3], [3]])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_reductions_over_any_axes(axes, keep, name):
    def build(emit, x):
        return emit(getattr(op, name)(x, axes, keepdims=keep))

    def reference(x):
        return getattr(np, name)(x, axis=tuple(axes), keepdims=keep)

    assert num_nests(check(build, [f32(3, 5, 6, 19)], reference)) == 1


@pytest.mark.parametrize(("axes", "rule"), [([0, 2, 3], "single"), ([0, 1, 2], "columns")])
def test_a_vector_along_the_results_does_not_choose_the_rule(axes, rule):
    # The squares of x without its mean, per channel: the mean is read once per channel.
    def build(emit, x, mean):
        centred = emit(op.subtract(x, mean))
        return emit(op.sum(emit(op.multiply(centred, centred)), axes))

    kept = [1 if axis in axes else extent for axis, extent in enumerate((3, 18, 4, 20))]
    specs = [f32(3, 18, 4, 20), f32(*kept)]
    func = check(build, specs, lambda x, mean: ((x - mean) ** 2).sum(tuple(axes)))
    assert rules(func) == [rule]


@settings(max_examples=10, deadline=None)
@given(
    batch=st.integers(1, 2),
    m=st.integers(1, 20),
    k=st.integers(1, 20),
    n=st.integers(1, 70),
    spec=st.sampled_from([f32, f64]),
)
def test_matmul(batch, m, k, n, spec):
    def build(emit, a, b):
        return emit(op.matmul(a, b))

    check(build, [spec(batch, m, k), spec(batch, k, n)], lambda a, b: a @ b)


def test_matmul_with_both_sides_transposed_and_an_epilogue():
    def build(emit, a, b, c):
        left = emit(op.permute_dims(a, [1, 0]))
        right = emit(op.permute_dims(b, [1, 0]))
        return emit(op.nn.relu(emit(op.add(emit(op.matmul(left, right)), c))))

    specs = [f32(37, 20), f32(50, 37), f32(50)]
    check(build, specs, lambda a, b, c: np.maximum(a.T @ b.T + c, 0))


def test_several_intermediates_do_not_share_memory():
    # Two transposed factors and the product are alive at once: a regression test for allocations
    # that TVM's StorageRewrite believed unused.
    def build(emit, a, b, c):
        product = emit(op.matmul(emit(op.permute_dims(a, [1, 0])), b))
        return emit(op.matmul(emit(op.add(product, c)), emit(op.permute_dims(b, [1, 0]))))

    def reference(a, b, c):
        return (a.T @ b + c) @ b.T

    check(build, [f32(64, 40), f32(64, 48), f32(40, 48)], reference)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0)])
def test_convolution(stride, padding):
    def build(emit, x, w):
        return emit(op.nn.conv2d(x, w, strides=stride, padding=padding))

    def reference(x, w):
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
        return np.einsum("ncyxhw,ochw->noyx", windows[:, :, ::stride, ::stride], w)

    check(build, [f32(2, 3, 9, 11), f32(5, 3, 3, 3)], reference)
