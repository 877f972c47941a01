"""Row nests: elementwise chains, row reductions and what shares their loop."""

import numpy as np
import pytest
import tvm
from cpu_kernels import TARGETS, check, f32, f64, group, kernel, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cpu import schedule, without_noalias

op = relax.op
SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33, 64]), min_size=1, max_size=5).filter(
    lambda shape: np.prod(shape) <= 20000
)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, spec=st.sampled_from([f32, f64]))
def test_elementwise_chain(target, shape, spec):
    def build(emit, x, y, b):
        s = emit(op.add(emit(op.multiply(x, y)), b))
        t = emit(op.tanh(s))
        return [emit(op.subtract(t, x)), emit(op.multiply(s, s))]

    def reference(x, y, b):
        s = x * y + b
        return [np.tanh(s) - x, s * s]

    specs = [spec(*shape), spec(*shape), spec(shape[-1])]
    check(build, specs, reference, target=target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES.filter(lambda s: len(s) > 1), spec=st.sampled_from([f32, f64]))
def test_softmax_and_its_gradient(target, shape, spec):
    def build(emit, x, g):
        y = emit(op.nn.softmax(x, -1))
        t = emit(op.multiply(y, g))
        s = emit(op.sum(t, [-1], keepdims=True))
        return [y, emit(op.subtract(t, emit(op.multiply(y, s))))]

    def reference(x, g):
        y = softmax(x)
        t = y * g
        return [y, t - y * t.sum(-1, keepdims=True)]

    func = check(build, [spec(*shape), spec(*shape)], reference, target=target)
    assert num_nests(func) == 1


def layer_norm(emit, x, w, b, eps):
    mean = emit(op.mean(x, [-1], keepdims=True))
    centred = emit(op.subtract(x, mean))
    variance = emit(op.mean(emit(op.multiply(centred, centred)), [-1], keepdims=True))
    scale = emit(op.rsqrt(emit(op.add(variance, eps))))
    y = emit(op.multiply(emit(op.multiply(centred, scale)), w))
    return [emit(op.add(y, b)), mean, scale]


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 9), length=st.integers(2, 150), spec=st.sampled_from([f32, f64]))
def test_layer_norm_forward(rows, length, spec):
    def reference(x, w, b, eps):
        mean = x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
        return [(x - mean) * scale * w + b, mean, scale]

    specs = [spec(2, rows, length), spec(length), spec(length), spec()]
    inputs = random_inputs(specs)
    inputs[3] = np.asarray(1e-2, dtype=specs[3][1])
    func = check(layer_norm, specs, reference, inputs=inputs, rtol=1e-4 if spec is f32 else None)
    assert num_nests(func) == 1


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 9), length=st.integers(2, 80))
def test_layer_norm_backward(rows, length):
    def build(emit, x, w, mean, scale, dy):
        xhat = emit(op.multiply(emit(op.subtract(x, mean)), scale))
        weighted = emit(op.multiply(dy, w))
        a = emit(op.mean(weighted, [-1], keepdims=True))
        b = emit(op.mean(emit(op.multiply(weighted, xhat)), [-1], keepdims=True))
        inner = emit(op.subtract(emit(op.subtract(weighted, a)), emit(op.multiply(xhat, b))))
        dw = emit(op.sum(emit(op.multiply(dy, xhat)), [0, 1]))
        return [emit(op.multiply(inner, scale)), dw, emit(op.sum(dy, [0, 1]))]

    def reference(x, w, mean, scale, dy):
        xhat = (x - mean) * scale
        g = dy * w
        inner = g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)
        return [inner * scale, (dy * xhat).sum((0, 1)), dy.sum((0, 1))]

    full, one = f32(3, rows, length), f32(3, rows, 1)
    func = check(build, [full, f32(length), one, one, full], reference)
    assert num_nests(func) == 3  # the row nest, and a column reduction each for weight and bias


def test_log_softmax_and_masked_softmax_reach_zero():
    def build(emit, x):
        return [emit(op.nn.softmax(x, -1)), emit(op.nn.log_softmax(x, -1))]

    x = np.where(np.arange(40) % 3 == 0, -1e9, np.linspace(-3, 3, 40)).astype("float32")[None]
    y = softmax(x.astype("float64"))
    with np.errstate(divide="ignore"):
        expected = [y, np.maximum(np.log(y), -1e9 - 4)]
    check(build, [f32(1, 40)], lambda _: expected, inputs=[x])


@pytest.mark.parametrize("length", [1, 7, 16, 35, 130])
def test_max_min_and_product_of_rows(length):
    def build(emit, x):
        return [emit(op.max(x, [-1])), emit(op.min(x, [-1])), emit(op.prod(x, [-1]))]

    check(build, [f32(3, length)], lambda x: [x.max(-1), x.min(-1), x.prod(-1)])


def test_comparisons_give_booleans():
    def build(emit, x, y, m):
        less = emit(op.less(x, y))
        return [less, emit(op.where(emit(op.logical_and(less, m)), x, y)), emit(op.logical_not(m))]

    specs = [f32(5, 37), f32(5, 37), ((5, 37), "bool")]
    check(build, specs, lambda x, y, m: [x < y, np.where((x < y) & m, x, y), ~m])


def momentum(emit, v, w, g, mu, rate):
    new = emit(op.add(emit(op.multiply(v, mu)), g))
    return [new, emit(op.subtract(w, emit(op.multiply(new, rate))))]


@pytest.mark.parametrize("shape", [(33, 65), (7,), (256, 64)])
def test_donated_buffers_are_updated_in_place(shape):
    specs = [f32(*shape), f32(*shape), f32(*shape), f32(), f32()]
    func = kernel(group(momentum, specs))
    inputs = dict(zip(["v", "w", "g", "mu", "rate"], random_inputs(specs), strict=True))
    scheduled = without_noalias(schedule(func, TARGETS["avx512"]))
    assert "tirx.noalias" not in scheduled.attrs
    built = tvm.compile(scheduled.with_attr("global_symbol", "update"), target=TARGETS["avx512"])
    tensors = {name: tvm.runtime.tensor(x) for name, x in inputs.items()}
    names = {"p0": "v", "p1": "w", "p2": "g", "p3": "mu", "p4": "rate"}
    call = [tensors[names[p.name]] for p in func.params[:5]]
    built.mod["update"](*call, tensors["v"], tensors["w"])
    v = inputs["v"] * inputs["mu"] + inputs["g"]
    np.testing.assert_allclose(tensors["v"].numpy(), v, rtol=1e-6, atol=1e-6)
    w = inputs["w"] - v * inputs["rate"]
    np.testing.assert_allclose(tensors["w"].numpy(), w, rtol=1e-6, atol=1e-6)
