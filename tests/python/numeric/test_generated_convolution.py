"""Generated convolutions and gradients, against the definition; no torch takes part."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from convolution_reference import RESULTS, Problem, problems
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_fuse.kernels.correlation import Correlation, Panels, correlation
from disco_fuse.kernels.cpu import BUILD_CONFIG
from disco_fuse.kernels.cpu import correlation as emitter
from disco_fuse.kernels.cpu.context import Machine
from disco_fuse.target import host_target

TARGET = host_target()


def run(problem: Problem, result: str, dtype: str, target: tvm.target.Target = TARGET) -> None:
    """Compile and run; what the kernel leaves unwritten is NaN."""
    tensors = problem.tensors(dtype)
    a, b = (tensors[name] for name in ("large", "small", "weight") if name != result)
    products = correlation(problem.plan(result), problem.large, problem.small, problem.weight)
    shapes = [a.shape, b.shape, tensors[result].shape]
    kernel = emitter.generate_correlation(products, dtype, shapes, target)
    functions = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    with target, tvm.transform.PassContext(config=BUILD_CONFIG):
        compiled = tvm.compile(functions, target=target)["kernel"]
    out = tvm.runtime.tensor(np.full(shapes[2], np.nan, dtype))
    compiled(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    expected = problem.expected(result, tensors)
    np.testing.assert_allclose(out.numpy(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=12, deadline=None)
@given(
    problem=problems(max_channels=18),
    result=st.sampled_from(RESULTS),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_random_windows(problem: Problem, result: str, dtype: str) -> None:
    run(problem, result, dtype)


def windows(batch: int, channels: int, size: int, outputs: int, taps: int, stride: int) -> Problem:
    """Over two axes, padded as usual."""
    return Problem(
        groups=1,
        stride=(stride, stride),
        padding=(taps // 2, taps // 2),
        dilation=(1, 1),
        large=(batch, channels, size, size),
        weight=(outputs, channels, taps, taps),
    )


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize(
    "problem",
    [
        windows(2, 8, 16, 64, 3, 1),  # dense tiles, two full blocks of columns
        windows(3, 40, 8, 33, 3, 2),  # phases, and one column more than a block
        windows(2, 16, 8, 32, 1, 2),  # phases that no tap meets
        windows(5, 3, 7, 10, 5, 1),  # nothing divides anything
    ],
)
def test_tiles_blocks_and_phases(problem: Problem, result: str) -> None:
    run(problem, result, "float32")


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("terms", [1, 4, 64])
def test_several_panels(result: str, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums cut into panels of few terms give the same numbers."""
    row_bytes = 2 * Machine.of(TARGET).vector_bits // 8
    monkeypatch.setattr(emitter, "_PANEL_BYTES", terms * row_bytes)
    run(windows(4, 6, 8, 40, 3, 1), result, "float32")


def test_the_sums_of_a_convolution_fit_one_panel_only_up_to_its_size() -> None:
    whole = Panels.of(products_of("small").products[0].sums, 54)
    assert (whole.num_panels, whole.panel_length) == (1, 54)
    halves = Panels.of(products_of("small").products[0].sums, 53)
    assert (halves.num_panels, halves.panel_length) == (2, 27)
    single = Panels.of(products_of("small").products[0].sums, 1)
    assert (single.num_panels, single.panel_length) == (54, 1)


def products_of(result: str, stride: int = 1) -> Correlation:
    problem = windows(4, 6, 8, 40, 3, stride)
    return correlation(problem.plan(result), problem.large, problem.small, problem.weight)


def test_a_strided_input_gradient_falls_into_phases() -> None:
    """Each place meets only the taps of its residue: together as many as the convolution has."""
    phases = products_of("large", stride=2).products
    assert [phase.num_sums // 40 for phase in phases] == [1, 2, 2, 4]
    assert sum(phase.num_rows for phase in phases) == 4 * 8 * 8
    (forward,) = products_of("small", stride=2).products
    products = sum(phase.num_rows * phase.num_sums * phase.columns.extent for phase in phases)
    assert products == forward.num_rows * forward.num_sums * forward.columns.extent


def test_a_window_of_one_tap_is_read_where_it_lies() -> None:
    problem = windows(4, 6, 8, 40, 1, 1)
    product = correlation(problem.plan("small"), problem.large, problem.small, problem.weight)
    assert product.padding is None
    (only,) = product.products
    assert [axis.extent for axis in only.rows] == [4, 64]
    assert only.num_sums == 6


@pytest.mark.parametrize("result", RESULTS)
def test_several_cores(result: str) -> None:
    run(windows(2, 8, 8, 96, 3, 1), result, "float32", host_target(2))


def test_a_baseline_processor() -> None:
    """Vectors of four: other tiles, the same numbers."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    for result in RESULTS:
        run(windows(2, 5, 6, 11, 3, 1), result, "float32", target)


def test_every_row_is_written_once() -> None:
    for stride in (1, 2, 3):
        for product in products_of("large", stride).products:
            assert product.num_rows * product.columns.extent > 0
        places = sum(p.num_rows * p.columns.extent for p in products_of("large", stride).products)
        assert places == math.prod((4, 6, 8, 8))
