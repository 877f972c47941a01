"""The library call itself: layouts, degenerate sizes, and refusal of everything out of bounds."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi import Shape

from disco_fuse import _ffi
from disco_fuse.kernels.library import blas as blas_module
from disco_fuse.kernels.library import (
    find_library,
    library_available,
    load_library,
    set_num_threads,
)
from disco_fuse.kernels.library.plan import GemmPlan, plan_gemm
from disco_fuse.kernels.library.views import (
    Factor,
    StridedView,
    broadcast_to,
    contiguous,
    permute,
)

pytestmark = pytest.mark.skipif(not library_available(), reason="needs the library inside torch")
_GOOD = (0, 2, 4, 3, 0, 3, 1, 0, 4, 1, 0, 4, 1)


@pytest.fixture(autouse=True)
def _library() -> None:
    load_library()


def matmul(
    a: np.ndarray, b: np.ndarray, ints: Sequence[int], shape: Sequence[int], dtype: str = "float32"
) -> np.ndarray:
    out = tvm.runtime.tensor(np.full(shape, np.nan, dtype))
    _ffi.function("kernels.matmul")(tvm.runtime.tensor(a), tvm.runtime.tensor(b), Shape(ints), out)
    return np.asarray(out.numpy())


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def transposed(view: StridedView) -> StridedView:
    return permute(view, [*range(len(view.axes) - 2), len(view.axes) - 1, len(view.axes) - 2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 300)])
def test_every_layout_and_dtype(
    dtype: str, layout: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    shapes = [(*batch, 5, 7), (*batch, 7, 4), (*batch, 5, 4)]
    views = [contiguous(shape) for shape in shapes]
    arrays = [normal(*shape, dtype=dtype) for shape in shapes[:2]]
    expected = arrays[0] @ arrays[1]
    for i, is_transposed in enumerate(layout):
        if is_transposed:
            views[i] = transposed(contiguous((*batch, shapes[i][-1], shapes[i][-2])))
            if i < 2:
                arrays[i] = np.ascontiguousarray(arrays[i].swapaxes(-1, -2))
    plan = plan_gemm(*views)
    assert isinstance(plan, GemmPlan), plan
    if layout[2]:
        expected = expected.swapaxes(-1, -2)
    result = matmul(arrays[0], arrays[1], plan.to_ints(), expected.shape, dtype)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("m", [0, 1, 3])
@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_empty_and_single_sizes(m: int, k: int, n: int, batch: int) -> None:
    plan = plan_gemm(
        contiguous((batch, m, k)), contiguous((batch, k, n)), contiguous((batch, m, n))
    )
    assert isinstance(plan, GemmPlan), plan
    a, b = normal(batch, m, k), normal(batch, k, n)
    result = matmul(a, b, plan.to_ints(), (batch, m, n))
    np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-6)


def test_plans_give_the_batch_to_the_matrix() -> None:
    plan = plan_gemm(contiguous((6, 5, 7)), contiguous((7, 4)), contiguous((6, 5, 4)))
    assert isinstance(plan, GemmPlan)
    assert plan.to_ints() == (0, 30, 4, 7, 0, 7, 1, 0, 4, 1, 0, 4, 1)
    plan = plan_gemm(contiguous((5, 7)), contiguous((6, 7, 4)), contiguous((6, 5, 4)))
    assert isinstance(plan, GemmPlan)
    assert (plan.batch_shape, plan.a.batch_strides) == ((6,), (0,)), "N cannot grow: C is [6, 5, 4]"


def test_a_row_that_repeats_stays_a_batch() -> None:
    repeated = broadcast_to(contiguous((1, 7)), (3, 1, 7))
    plan = plan_gemm(repeated, contiguous((7, 4)), contiguous((3, 1, 4)))
    assert isinstance(plan, GemmPlan), plan
    assert plan.batch_shape == (3,), "as 3 rows of stride 0 BLAS could not read it"
    a, b = normal(1, 7), normal(7, 4)
    result = matmul(a, b, plan.to_ints(), (3, 1, 4))
    np.testing.assert_allclose(result, np.broadcast_to(a @ b, (3, 1, 4)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "c", "reason"),
    [
        (
            contiguous((4, 6)),
            contiguous((6, 8)),
            StridedView(axes=((Factor(2, 32), Factor(2, 2)), (Factor(8, 4),))),
            "M is not one evenly spaced dimension",
        ),
        (
            StridedView(axes=((Factor(4, 2),), (Factor(6, 16),))),
            contiguous((6, 8)),
            contiguous((4, 8)),
            "the first operand is neither row-major nor column-major",
        ),
        (
            StridedView(axes=((Factor(2, 3), Factor(3, 60)), (Factor(3, 1),), (Factor(1, 1),))),
            contiguous((1, 5)),
            StridedView(axes=((Factor(3, 30), Factor(2, 15)), (Factor(3, 5),), (Factor(5, 1),))),
            "a batch dimension is cut differently in operands and result",
        ),
        (
            contiguous((2,) * 9 + (3, 3)),
            permute(contiguous((2,) * 9 + (3, 3)), [*range(8, -1, -1), 9, 10]),
            contiguous((2,) * 9 + (3, 3)),
            "more than 8 batch dimensions",
        ),
    ],
)
def test_reasons_against_a_plan(
    a: StridedView, b: StridedView, c: StridedView, reason: str
) -> None:
    assert plan_gemm(a, b, c) == reason


def test_plans_survive_their_integer_form() -> None:
    plan = plan_gemm(contiguous((2, 1, 5, 7)), contiguous((3, 7, 4)), contiguous((2, 3, 5, 4)))
    assert isinstance(plan, GemmPlan)
    assert GemmPlan.from_ints(plan.to_ints()) == plan
    with pytest.raises(ValueError, match="2 batch dimensions takes 21 integers, got 3"):
        GemmPlan.from_ints((2, 1, 1))


@pytest.mark.parametrize(
    ("ints", "message"),
    [
        ((), "needs at least 13 integers, got 0"),
        ((*_GOOD, 1), "needs 13 integers for 0 batch dimensions, got 14"),
        ((9, *_GOOD[1:]), "number of batch dimensions must be 0 to 8, got 9"),
        ((0, -2, *_GOOD[2:]), "integer 1 is out of range: -2"),
        ((*_GOOD[:4], 1, *_GOOD[5:]), "first operand reaches outside a tensor of 6 elements"),
        ((*_GOOD[:8], 5, *_GOOD[9:]), "second operand reaches outside a tensor of 12 elements"),
        ((*_GOOD[:8], 2**63 - 1, *_GOOD[9:]), "second operand reaches outside"),
        ((*_GOOD[:11], 5, 1), "output reaches outside a tensor of 8 elements"),
        ((*_GOOD[:11], 1, 1), "output must be written densely"),
        ((0, 2, 3, *_GOOD[3:]), "output must have 6 elements, got 8"),
        ((0, 2, 4, 2, 0, 2, 2, *_GOOD[7:]), "first operand is neither row-major nor column-major"),
    ],
)
def test_bad_integers(ints: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matmul(normal(2, 3), normal(3, 4), ints, (2, 4))


def test_bad_dtypes() -> None:
    with pytest.raises(TypeError, match="must be float32 or float64, got float16"):
        matmul(normal(2, 3, dtype="float16"), normal(3, 4), _GOOD, (2, 4))
    with pytest.raises(TypeError, match=r"second operand must be float32 .* got float64"):
        matmul(normal(2, 3), normal(3, 4, dtype="float64"), _GOOD, (2, 4))
    with pytest.raises(TypeError, match=r"output must be float32 .* got float64"):
        matmul(normal(2, 3), normal(3, 4), _GOOD, (2, 4), dtype="float64")


def test_the_caller_keeps_its_number_of_threads() -> None:
    mkl = ctypes.CDLL(str(find_library()))
    a, b = normal(200, 300), normal(300, 100)
    plan = plan_gemm(contiguous(a.shape), contiguous(b.shape), contiguous((200, 100)))
    assert isinstance(plan, GemmPlan)
    former = mkl.MKL_Set_Num_Threads_Local(5)
    try:
        for num_threads in (2, 0, 1):
            set_num_threads(num_threads)
            result = matmul(a, b, plan.to_ints(), (200, 100))
            np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)
            assert mkl.MKL_Get_Max_Threads() == 5
    finally:
        mkl.MKL_Set_Num_Threads_Local(former)
    with pytest.raises(ValueError, match=r"num_threads must be 0 .* to 4096, got -1"):
        set_num_threads(-1)


def test_matmul_without_a_loaded_library_says_what_to_call() -> None:
    program = """
import numpy as np, tvm
from tvm_ffi import Shape
import disco_fuse._ffi as ffi
x = tvm.runtime.tensor(np.ones((1, 1), "float32"))
ffi.function("kernels.matmul")(x, x, Shape([0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]), x)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "no BLAS library is loaded; call disco_fuse.kernels.library.load_library()" in (
        result.stderr
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "libmissing.so"
    with pytest.raises(ValueError, match=r"libmissing\.so as BLAS library.*pass the path of MKL"):
        load_library(missing)
    missing.write_text("no library at all")
    with pytest.raises(ValueError, match=r"cannot use .*libmissing\.so"):
        load_library(missing)
    # A failed load leaves the library that was there.
    np.testing.assert_allclose(
        matmul(np.eye(2, 3, dtype="f"), normal(3, 4), _GOOD, (2, 4)), normal(3, 4)[:2]
    )


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_module.importlib.util, "find_spec", lambda _: None)
    assert find_library() is None
    assert not library_available()
    with pytest.raises(ValueError, match=r"no libtorch_cpu\.so found: install torch"):
        load_library()
