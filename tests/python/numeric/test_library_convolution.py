"""The library call behind dispatched convolutions, against the definition."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from convolution_reference import RESULTS, Array, Problem, problems
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm_ffi import Shape

from disco_fuse.kernels.library import (
    ConvolutionPlan,
    find_library,
    library_available,
    load_library,
    set_num_threads,
)

pytestmark = pytest.mark.skipif(not library_available(), reason="needs the library inside torch")

_RESNET = Problem(
    groups=1,
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    large=(4, 16, 16, 16),
    weight=(32, 16, 3, 3),
)
_GOOD = (0, 1, 1, 1, 0, 1)


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    load_library()


def call(plan: tuple[int, ...], a: Array, b: Array, shape: tuple[int, ...]) -> Array:
    """The packed function on numpy arrays; what it leaves unwritten is NaN."""
    unwritten = np.nan if a.dtype.kind == "f" else 0
    out = tvm.runtime.tensor(np.full(shape, unwritten, a.dtype))
    function = tvm.get_global_func("disco_fuse.kernels.convolution")
    function(tvm.runtime.tensor(a), tvm.runtime.tensor(b), Shape(plan), out)
    return out.numpy()


def check(problem: Problem, dtype: str) -> None:
    tensors = problem.tensors(dtype)
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    for result in RESULTS:
        a, b = (tensors[name] for name in ("large", "small", "weight") if name != result)
        actual = call(problem.plan(result).to_ints(), a, b, tensors[result].shape)
        expected = problem.expected(result, tensors)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, err_msg=result)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), dtype=st.sampled_from(["float32", "float64"]))
def test_a_convolution_and_its_gradients(problem: Problem, dtype: str) -> None:
    check(problem, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "problem",
    [
        _RESNET,
        # Depthwise, and one tap: a matmul.
        Problem(
            groups=32,
            stride=(2, 2),
            padding=(1, 1),
            dilation=(1, 1),
            large=(2, 32, 15, 15),
            weight=(32, 1, 3, 3),
        ),
        Problem(
            groups=1,
            stride=(2, 2),
            padding=(0, 0),
            dilation=(1, 1),
            large=(2, 32, 9, 9),
            weight=(64, 32, 1, 1),
        ),
        # Rows that no window reaches get a gradient of zero.
        Problem(
            groups=1, stride=(3,), padding=(0,), dilation=(1,), large=(1, 1, 12), weight=(1, 1, 2)
        ),
    ],
)
def test_shapes_of_real_models(problem: Problem, dtype: str) -> None:
    check(problem, dtype)


def test_it_is_what_torch_computes() -> None:
    tensors = _RESNET.tensors("float32")
    large, small, weight = (
        torch.from_numpy(tensors[name]) for name in ("large", "small", "weight")
    )
    window = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    backward = torch.ops.aten.convolution_backward
    expected = {
        "small": torch.convolution(large, weight, None, *window),
        "large": backward(small, large, weight, None, *window, [True, False, False])[0],
        "weight": backward(small, large, weight, None, *window, [False, True, False])[1],
    }
    for result in RESULTS:
        a, b = (tensors[name] for name in ("large", "small", "weight") if name != result)
        actual = call(_RESNET.plan(result).to_ints(), a, b, tensors[result].shape)
        np.testing.assert_allclose(actual, expected[result].numpy(), rtol=1e-5, atol=1e-5)


def test_many_threads_at_once_keep_their_results_and_their_number_of_threads() -> None:
    tensors = _RESNET.tensors("float32")
    expected = {result: _RESNET.expected(result, tensors) for result in RESULTS}
    failures: list[str] = []

    def work(result: str) -> None:
        a, b = (tensors[name] for name in ("large", "small", "weight") if name != result)
        for _ in range(5):
            out = call(_RESNET.plan(result).to_ints(), a, b, tensors[result].shape)
            if not np.allclose(out, expected[result], rtol=1e-3, atol=1e-3):
                failures.append(result)

    workers = [threading.Thread(target=work, args=(RESULTS[i % 3],)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert failures == []


def test_torchs_own_number_of_threads_is_kept() -> None:
    tensors = _RESNET.tensors("float32")
    former = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for num_threads in (2, 0, 1):
            set_num_threads(num_threads)
            call(
                _RESNET.plan("small").to_ints(),
                tensors["large"],
                tensors["weight"],
                _RESNET.small,
            )
            assert torch.get_num_threads() == 3
    finally:
        set_num_threads(1)
        torch.set_num_threads(former)


@pytest.mark.parametrize(
    ("plan", "a", "b", "shape", "message"),
    [
        ((0, 1), (1, 1, 4), (1, 1, 1), (1, 1, 4), "at least 3 integers, got 2"),
        (_GOOD, (1, 2, 4), (1, 1, 1), (1, 1, 4), r"channels do not fit 1 groups: \[1, 2, 4\]"),
        (_GOOD, (1, 1, 4), (1, 1, 1), (1, 1, 5), "axis 2 has room for 4 windows"),
        (_GOOD, (1, 1, 4, 4), (1, 1, 1, 1), (1, 1, 4, 4), "must have 3 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(
    plan: tuple[int, ...], a: Any, b: Any, shape: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"convolution: .*{message}"):
        call(plan, np.ones(a, "float32"), np.ones(b, "float32"), shape)


def test_other_dtypes_are_refused() -> None:
    one = np.ones((1, 1, 1), "float32")
    with pytest.raises(TypeError, match="must be float32 or float64, got int32"):
        call(_GOOD, one.astype("int32"), one, (1, 1, 1))
    with pytest.raises(TypeError, match="second operand must be float32 as the first"):
        call(_GOOD, one, one.astype("float64"), (1, 1, 1))


def test_empty_tensors() -> None:
    out = call(_GOOD, np.ones((2, 0, 4), "f"), np.ones((3, 0, 1), "f"), (2, 3, 4))
    np.testing.assert_array_equal(out, np.zeros((2, 3, 4), "f"))
    assert call(_GOOD, np.ones((0, 2, 4), "f"), np.ones((3, 2, 1), "f"), (0, 3, 4)).size == 0


def test_without_a_loaded_library_it_says_what_to_call() -> None:
    program = """
import numpy as np, tvm
from tvm_ffi import Shape
import disco_fuse._ffi as ffi
x = tvm.runtime.tensor(np.ones((1, 1, 1), "float32"))
ffi.function("kernels.convolution")(x, x, Shape([0, 1, 1, 1, 0, 1]), x)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "torch's library is not loaded; call disco_fuse.kernels.library.load_library()" in (
        result.stderr
    )


def test_the_python_half_of_torch_takes_no_part() -> None:
    program = f"""
import sys
sys.modules["torch"] = None  # from here on importing it fails; TVM would do so
import numpy as np, tvm
from tvm_ffi import Shape
import disco_fuse._ffi as ffi
ffi.function("kernels.load_torch")({str(find_library())!r})
x = tvm.runtime.tensor(np.full((1, 1, 1), 3, "float32"))
y = tvm.runtime.tensor(np.zeros((1, 1, 1), "float32"))
ffi.function("kernels.convolution")(x, x, Shape({list(_GOOD)}), y)
assert y.numpy().item() == 9
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_plan_survives_its_integers() -> None:
    plan = ConvolutionPlan(
        result="weight", groups=3, stride=(1, 2), padding=(3, 0), dilation=(4, 5)
    )
    assert plan.to_ints() == (2, 3, 2, 1, 2, 3, 0, 4, 5)
    assert ConvolutionPlan.from_ints(plan.to_ints()) == plan
