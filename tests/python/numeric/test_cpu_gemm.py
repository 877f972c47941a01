"""The generated matrix product against numpy, for every layout a library call may have."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from small_workload import workload

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.bindings import is_op
from disco_fuse.build import build
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpKind, OpPattern
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.cpu import BUILD_CONFIG
from disco_fuse.kernels.cpu.gemm import generate_gemm
from disco_fuse.kernels.generate_matmul import GenerateMatmul
from disco_fuse.kernels.library import is_library_matmul, library_available, load_library
from disco_fuse.kernels.library.plan import GemmPlan, Operand
from disco_fuse.lower import lower
from disco_fuse.profile import ProfileDatabase, choose_generated
from disco_fuse.target import host_target

TARGET = host_target()


def _layout(
    rows: int, cols: int, batch: tuple[int, ...], *, by_columns: bool, gap: int, repeat: bool
) -> tuple[Operand, tuple[int, ...]]:
    """An operand of one batch after the other, each row (or column) followed by a gap."""
    inner, outer = (rows, cols) if by_columns else (cols, rows)
    line = inner + gap
    matrix = line * max(outer, 1) + 3
    strides, step = [], matrix
    for extent in reversed(batch):
        strides.insert(0, 0 if repeat else step)
        step *= extent
    row_stride, col_stride = (1, line) if by_columns else (line, 1)
    operand = Operand(
        offset=2, row_stride=row_stride, col_stride=col_stride, batch_strides=tuple(strides)
    )
    return operand, (2 + matrix * math.prod(batch),)


def _view(array: np.ndarray, operand: Operand, batch: tuple[int, ...], rows: int, cols: int):
    strides = (*operand.batch_strides, operand.row_stride, operand.col_stride)
    return np.lib.stride_tricks.as_strided(
        array[operand.offset :],
        (*batch, rows, cols),
        [stride * array.itemsize for stride in strides],
    )


def _check(plan: GemmPlan, dtype: str, shapes: list[tuple[int, ...]]) -> None:
    kernel = generate_gemm(plan, dtype, shapes, TARGET).with_attr("global_symbol", "gemm")
    with TARGET, tvm.transform.PassContext(config=BUILD_CONFIG):
        run = tvm.compile(tvm.IRModule({"gemm": kernel}), target=TARGET)["gemm"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes[:2])
    before = rng.standard_normal(shapes[2]).astype(dtype)
    out = tvm.runtime.tensor(before.copy())
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    expected = before.copy()
    left = _view(a, plan.a, plan.batch_shape, plan.m, plan.k).astype(np.float64)
    right = _view(b, plan.b, plan.batch_shape, plan.k, plan.n).astype(np.float64)
    _view(expected, plan.c, plan.batch_shape, plan.m, plan.n)[...] = left @ right
    tolerance = 4 * (plan.k + 1) * float(np.finfo(dtype).eps)
    # what lies between the rows of C must not be touched either
    np.testing.assert_allclose(out.numpy(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40)),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    by_columns=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    repeat=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_any_layout_is_right(sizes, batch, by_columns, gaps, repeat, dtype) -> None:
    m, n, k = sizes
    a, a_shape = _layout(m, k, batch, by_columns=by_columns[0], gap=gaps[0], repeat=False)
    b, b_shape = _layout(k, n, batch, by_columns=by_columns[1], gap=gaps[1], repeat=repeat)
    c, c_shape = _layout(m, n, batch, by_columns=by_columns[2], gap=gaps[2], repeat=False)
    plan = GemmPlan(m=m, n=n, k=k, batch_shape=batch, a=a, b=b, c=c)
    _check(plan, dtype, [a_shape, b_shape, c_shape])


@pytest.mark.parametrize(("m", "n", "k"), [(8, 32, 1), (9, 33, 600), (64, 256, 300), (1, 1, 0)])
def test_whole_tiles_packed_panels_and_empty_sums(m: int, n: int, k: int) -> None:
    a, a_shape = _layout(m, k, (), by_columns=False, gap=0, repeat=False)
    b, b_shape = _layout(k, n, (), by_columns=False, gap=0, repeat=False)
    c, c_shape = _layout(m, n, (), by_columns=False, gap=0, repeat=False)
    plan = GemmPlan(m=m, n=n, k=k, batch_shape=(), a=a, b=b, c=c)
    _check(plan, "float32", [a_shape, b_shape, c_shape])


@pytest.mark.skipif(not library_available(), reason="no BLAS library: torch is not installed")
def test_a_step_with_generated_matmuls_is_the_step(tmp_path: Path) -> None:
    """All library calls, all generated, and the faster of both: the same numbers."""
    from test_strategies import run_in_place

    load_library()
    load = workload()
    example = [torch.from_numpy(part) for part in load.example_batch()]
    step = training_step(load.model, example, loss=load.loss, optimizer=load.optimizer)
    mod = lower(InsertAllReduce()(step.mod), TARGET, library=True)
    with ProfileDatabase(tmp_path / "profile.sqlite") as database:
        chosen = choose_generated(mod, TARGET, database)
        measured: list[str] = []
        again = choose_generated(mod, TARGET, database, lambda *args: measured.append(args[2]))
    assert again == chosen
    assert measured == []
    arguments = [part.numpy() for part in example] + list(step.initial_values())
    results = []
    for signatures in (frozenset(), None, chosen):
        variant = GenerateMatmul(signatures, TARGET)(mod)
        calls = [b.value for b in variant["main"].body.blocks[0].bindings]
        num_library = sum(is_library_matmul(call) for call in calls)
        assert (num_library == 0) == (signatures is None or num_library == 0)
        extraction = extract(variant)
        if signatures is None:
            generated = [o for o in extraction.graph.ops if ":matmul" in o.name]
            assert num_library == 0
            assert generated
            assert all(o.kind == OpKind.COMPUTE for o in generated)
            assert all(o.pattern == OpPattern.OPAQUE and o.flops > 0 for o in generated)
        strategy = baseline("default", variant, extraction)
        built = build(apply(variant, extraction, strategy), TARGET)
        results.append(run_in_place(built, arguments, len(example)))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=2e-4, atol=1e-6)
    assert any(is_op(call, "relax.call_tir") for call in calls)
