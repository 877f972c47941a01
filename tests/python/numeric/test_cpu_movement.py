"""Kernels that move data: permutations, concatenation, padding, gathers and scatters."""

import itertools

import numpy as np
import pytest
from cpu_kernels import TARGETS, check, f32, f64, i64, random_inputs, rules
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

op = relax.op


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_permutations_of_three_axes(order):
    def build(emit, x, y):
        return emit(op.add(emit(op.permute_dims(x, list(order))), y))

    shape = (5, 18, 33)
    specs = [f32(*shape), f32(*(shape[axis] for axis in order))]
    check(build, specs, lambda x, y: x.transpose(order) + y)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@settings(max_examples=10, deadline=None)
@given(data=st.data(), spec=st.sampled_from([f32, f64]))
def test_permutations_of_five_axes(target, data, spec):
    shape = data.draw(st.lists(st.integers(1, 7), min_size=5, max_size=5))
    order = data.draw(st.permutations(range(5)))

    def build(emit, x):
        return emit(op.permute_dims(x, list(order)))

    check(build, [spec(*shape)], lambda x: x.transpose(order), target=target)


def test_what_reads_a_permutation_is_written_like_one():
    def build(emit, x, y):
        return emit(op.multiply(emit(op.permute_dims(x, [0, 2, 3, 1])), y))

    def reference(x, y):
        return x.transpose(0, 2, 3, 1) * y

    func = check(build, [f32(2, 33, 3, 18), f32(2, 3, 18, 33)], reference)
    assert rules(func) == ["transpose"]


@pytest.mark.parametrize("rows", [1024, 2048])
def test_transposes_with_conflicting_strides(rows):
    def build(emit, x):
        return emit(op.permute_dims(x, [1, 0]))

    check(build, [f32(24, rows)], lambda x: x.T)


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=4), axis=st.integers(0, 1))
def test_concat(lengths, axis):
    def build(emit, *parts):
        return emit(op.exp(emit(op.concat(list(parts), axis))))

    specs = [f32(n, 6) if axis == 0 else f32(6, n) for n in lengths]
    check(build, specs, lambda *parts: np.exp(np.concatenate(parts, axis)))


def test_split_slice_and_reshape():
    def build(emit, x):
        parts = emit(op.split(x, 3, axis=-1))
        first, second, third = (emit(relax.TupleGetItem(parts, k)) for k in range(3))
        total = emit(op.add(emit(op.multiply(first, second)), third))
        cut = emit(op.strided_slice(total, [0, 1], [1, 3], [4, 11]))
        return [total, emit(op.reshape(cut, [4, 6]))]

    def reference(x):
        a, b, c = np.split(x, 3, -1)
        total = a * b + c
        return [total, total[1:4, 3:11].reshape(4, 6)]

    check(build, [f32(5, 45)], reference)


def test_reshape_between_elementwise_ops_is_a_linear_walk():
    def build(emit, x, y):
        folded = emit(op.reshape(emit(op.negative(x)), [12, 10]))
        return emit(op.add(folded, y))

    check(build, [f32(3, 4, 10), f32(12, 10)], lambda x, y: y - x.reshape(12, 10))


@pytest.mark.parametrize("width", [1, 5, 33])
def test_pad(width):
    def build(emit, x):
        return emit(op.nn.pad(x, [1, 0, 0, 2, 3, 4]))

    pads = ((1, 0), (0, 2), (3, 4))
    check(build, [f32(2, 3, width)], lambda x: np.pad(x, pads))


@pytest.mark.parametrize("spec", [f32, f64])
def test_embedding(spec):
    index = np.random.default_rng(0).integers(0, 11, (3, 7))
    weight = random_inputs([spec(11, 21)])[0]

    def build(emit, w, i):
        rows = emit(op.take(w, i, axis=0, mode="clip"))
        return emit(op.add(rows, rows))

    check(build, [spec(11, 21), i64(3, 7)], lambda w, i: 2 * w[i], inputs=[weight, index])


@pytest.mark.parametrize("width", [1, 21, 64])
@pytest.mark.parametrize("spec", [f32, f64])
def test_embedding_gradient(spec, width):
    index = np.random.default_rng(0).integers(0, 11, (21, 1))
    specs = [spec(11, width), i64(21, 1), spec(21, width)]
    weight, _, dy = random_inputs(specs)

    def build(emit, w, i, g):
        return emit(op.scatter_nd(w, i, emit(op.multiply(g, g)), "add"))

    def reference(w, i, g):
        out = w.copy()
        np.add.at(out, i.reshape(-1), g * g)
        return out

    check(build, specs, reference, inputs=[weight, index, dy])


def test_gather_along_an_axis():
    index = np.random.default_rng(0).integers(0, 20, (9, 1))
    x = random_inputs([f32(9, 20)])[0]

    def build(emit, x, i):
        return emit(op.negative(emit(op.gather_elements(x, i, 1))))

    def reference(x, i):
        return -np.take_along_axis(x, i, 1)

    check(build, [f32(9, 20), i64(9, 1)], reference, inputs=[x, index])


def test_scatter_along_an_axis():
    index = np.random.default_rng(0).integers(0, 20, (9, 1))
    x, g = random_inputs([f32(9, 20), f32(9, 1)])

    def build(emit, x, i, g):
        return emit(op.scatter_elements(x, i, g, 1, "add"))

    def reference(x, i, g):
        out = x.copy()
        np.add.at(out, (np.arange(9)[:, None], i), g)
        return out

    check(build, [f32(9, 20), i64(9, 1), f32(9, 1)], reference, inputs=[x, index, g])


def test_cross_entropy_with_ignored_targets():
    x = np.random.default_rng(0).standard_normal((9, 20)).astype("float32")
    target = np.array([3, -100, 19, 0, 5, -100, 7, 1, 2])

    def build(emit, x, t):
        return emit(op.nn.nll_loss(emit(op.nn.log_softmax(x, -1)), t, reduction="mean"))

    def reference(x, t):
        log = x - np.log(np.exp(x).sum(-1, keepdims=True))
        keep = t >= 0
        return -log[np.arange(9)[keep], t[keep]].mean()

    check(build, [f32(9, 20), i64(9)], reference, inputs=[x, target])


def test_argmax():
    check(lambda emit, x: emit(op.argmax(x, -1)), [f32(6, 23)], lambda x: x.argmax(-1))
