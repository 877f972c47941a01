"""PrimFuncs that are no expression per element: kept as written, whatever they look like."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from cpu_kernels import (
    TARGET,
    TARGETS,
    TensorSpec,
    f32,
    f64,
    group,
    i64,
    random_inputs,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_programs import scheduled
from tvm import relax
from tvm.script import tirx as T  # noqa: N812

from disco_fuse.kernels.cpu import schedule

op = relax.op


@pytest.mark.parametrize("num_examples", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_running_sums(num_examples: int) -> None:
    @settings(max_examples=num_examples, deadline=None, derandomize=True, database=None)
    @given(
        shape=st.lists(st.sampled_from([1, 2, 3, 7, 17]), min_size=1, max_size=5),
        axis=st.integers(0, 4),
        spec=st.sampled_from([f32, f64, i64]),
        target=st.sampled_from(sorted(TARGETS)),
    )
    def check(shape: list[int], axis: int, spec: type, target: str) -> None:
        axis %= len(shape)
        (x,) = random_inputs([spec(*shape)])
        mod = group(lambda emit, v: emit(op.cumsum(v, axis)), [spec(*shape)])
        mod, messages = scheduled(mod, TARGETS[target])
        assert [text.split(":")[0] for text in messages] == ["shared", "opaque"]
        (got,) = run(mod, [x], TARGETS[target])
        np.testing.assert_allclose(got, x.cumsum(axis), rtol=2e-5, atol=2e-5)

    check()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sorting_is_a_function_call_that_is_left_alone(axis: int) -> None:
    specs: list[TensorSpec] = [f32(5, 9, 17)]
    (x,) = random_inputs(specs)
    mod, messages = scheduled(group(lambda emit, v: emit(op.sort(v, axis)), specs), TARGET)
    assert len(messages) == 1
    assert "writes no element of a buffer" in messages[0]
    np.testing.assert_array_equal(run(mod, [x], TARGET)[0], np.sort(x, axis))


@T.prim_func(s_tir=True)
def sort_and_double(x: T.Buffer((9,), "float32"), y: T.Buffer((9,), "float32")) -> None:
    """A call that writes ``y`` behind our back, and a loop that reads it."""
    T.func_attr({"global_symbol": "main"})
    z = T.alloc_buffer((9,), "float32")
    with T.sblock("sort"):
        T.reads()
        T.writes()
        T.call_packed(
            "tvm.contrib.sort.sort",
            T.tvm_stack_make_array(x.data, T.tvm_stack_make_shape(9), 0, 1, T.float32(0), 0),
            T.tvm_stack_make_array(z.data, T.tvm_stack_make_shape(9), 0, 1, T.float32(0), 0),
            0,
            T.bool(True),
        )
    for i in range(9):
        with T.sblock("double"):
            vi = T.axis.spatial(9, i)
            y[vi] = z[vi] + z[vi]


@T.prim_func(s_tir=True)
def shifted_loops(x: T.Buffer((11, 5), "float32"), y: T.Buffer((11, 5), "float32")) -> None:
    """Loops that do not start at 0, a predicate, and two stores a block."""
    T.func_attr({"global_symbol": "main"})
    for i in range(1, 10):
        for j in range(8):
            with T.sblock("inner"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.where(j < 5)
                y[vi, vj] = x[vi - 1, vj] + x[vi + 1, vj]
    for j in range(5):
        with T.sblock("ends"):
            vj = T.axis.spatial(5, j)
            y[0, vj] = x[0, vj]
            y[10, vj] = x[10, vj]


@T.prim_func(s_tir=True)
def own_buffer(x: T.Buffer((7, 3), "float32"), y: T.Buffer((7,), "float32")) -> None:
    """A buffer inside a block, and a view of part of another one."""
    T.func_attr({"global_symbol": "main"})
    for i in range(7):
        with T.sblock("row"):
            vi = T.axis.spatial(7, i)
            T.reads(x[vi, 0:3])
            T.writes(y[vi])
            total = T.alloc_buffer((1,), "float32")
            row = T.match_buffer(x[vi, 0:3], (3,), "float32", elem_offset=vi * 3)
            total[0] = T.float32(0)
            for j in range(3):
                total[0] = total[0] + row[j]
            y[vi] = total[0]


@T.prim_func(s_tir=True)
def running_maximum(x: T.Buffer((13,), "float32"), y: T.Buffer((13,), "float32")) -> None:
    """Each element needs the one before it; the loop comes without blocks."""
    T.func_attr({"global_symbol": "main"})
    for i in range(13):
        if i == 0:
            y[i] = x[i]
        else:
            y[i] = T.max(y[i - 1], x[i])


@T.prim_func(s_tir=True)
def parallel_rows(x: T.Buffer((5, 33), "float32"), y: T.Buffer((5, 33), "float32")) -> None:
    """Parallel loops around two statements, of which one depends on the other."""
    T.func_attr({"global_symbol": "main"})
    for i in T.parallel(5):
        for j in T.parallel(33):
            y[i, j] = x[i, j] * T.float32(2)
        for j in range(1, 33):
            y[i, j] = y[i, j] + y[i, j - 1]


def numpy_shifted(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[1:-1] = x[:-2] + x[2:]
    return y


CASES = {
    "sort_and_double": (sort_and_double, lambda x: 2 * np.sort(x)),
    "shifted_loops": (shifted_loops, numpy_shifted),
    "own_buffer": (own_buffer, lambda x: x.sum(1)),
    "running_maximum": (running_maximum, np.maximum.accumulate),
    "parallel_rows": (parallel_rows, lambda x: 2 * x.cumsum(1)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_functions_of_users(name: str, target: tvm.target.Target) -> None:
    func, reference = CASES[name]
    source, sink = func.params
    (x,) = random_inputs([(tuple(map(int, source.ty.shape)), "float32")])
    built = tvm.compile(schedule(func, target), target=target)
    y = tvm.runtime.tensor(np.full([int(e) for e in sink.ty.shape], 77, "float32"))
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), reference(x), rtol=1e-6, atol=1e-6)
