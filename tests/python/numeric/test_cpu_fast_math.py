"""Accuracy of the vector forms of exp, tanh, sigmoid and erf."""

import math

import numpy as np
import pytest
from cpu_kernels import TARGETS, check, f64, group, run
from tvm import relax

from disco_fuse.kernels.cpu import ScheduleCPU

op = relax.op
TINY, HUGE = 1.18e-38, 3.4e38


def inputs():
    """Dense over the range of exp, around 0 and over all small magnitudes."""
    rng = np.random.default_rng(0)
    small = 10.0 ** -np.linspace(0, 30, 3000)
    parts = [np.linspace(-110, 95, 200001), rng.standard_normal(100000), small, -small]
    return np.concatenate(parts).astype("float32")


def erf(x):
    return np.vectorize(math.erf)(x)


CASES = {
    "exp": (op.exp, np.exp, 2e-7),
    "tanh": (op.tanh, np.tanh, 4e-7),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 3e-7),
    "erf": (op.erf, erf, 5e-7),
}


def evaluate(function, x, target):
    module = group(lambda emit, v: emit(function(v)), [((len(x),), str(x.dtype))])
    return run(ScheduleCPU(target)(module), [x], target)[0]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("name", CASES)
def test_relative_error_is_as_stated(name, target):
    function, reference, bound = CASES[name]
    x = inputs()
    actual = evaluate(function, x, target)
    with np.errstate(over="ignore", divide="ignore"):
        expected = reference(x.astype("float64"))
    normal = (np.abs(expected) > TINY) & (np.abs(expected) < HUGE)
    error = np.abs(actual[normal] / expected[normal] - 1)
    assert error.max() < bound, f"{name}: {error.max():.3g} at {x[normal][error.argmax()]}"


@pytest.mark.parametrize("name", CASES)
def test_special_values(name):
    function, reference, _ = CASES[name]
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30], dtype="float32")
    with np.errstate(over="ignore"):
        expected = reference(x.astype("float64")).astype("float32")
    np.testing.assert_allclose(evaluate(function, x, TARGETS["avx512"]), expected, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_float64_is_exact(name):
    function, reference, _ = CASES[name]
    check(lambda emit, x: emit(function(x)), [f64(3, 50)], reference, rtol=1e-14)


@pytest.mark.parametrize("exponent", [0.5, 1, 2, 3, 4])
def test_constant_powers(exponent):
    def build(emit, x):
        return emit(op.power(emit(op.abs(x)), relax.const(float(exponent), "float32")))

    x = np.random.default_rng(0).standard_normal((4, 33)).astype("float32")
    check(build, [((4, 33), "float32")], lambda v: np.abs(v) ** exponent, inputs=[x])
