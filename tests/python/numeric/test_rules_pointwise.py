"""Elementwise and injective groups against numpy: random programs, five axes, all types."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_kernels import f32, group, i64, random_inputs, run
from rule_operations import POINTWISE, binary, comparison, conversion, move, unary
from rule_programs import EXTENTS, programs, scheduled, sweep
from tvm import relax

from disco_fuse.target import host_target

MAKERS = {
    "elementwise": [unary, binary, comparison],
    "moves": [move, move, unary, binary],
    "mixed": [unary, binary, comparison, conversion, move],
}
FLOATS = ["float32", "float64"]
LONG = pytest.param(600, marks=pytest.mark.slow)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("num_examples", [20, LONG])
def test_random_programs(family: str, num_examples: int) -> None:
    dtypes = [*FLOATS, "int64", "int32", "bool"]
    sweep(programs(POINTWISE, MAKERS[family], dtypes), num_examples)


@pytest.mark.parametrize("num_examples", [10, LONG])
def test_bfloat16(num_examples: int) -> None:
    sweep(programs(POINTWISE, [unary, binary, move], ["bfloat16"]), num_examples)


@pytest.mark.parametrize("num_examples", [15, LONG])
def test_tensors_without_elements(num_examples: int) -> None:
    makers = [unary, binary, comparison, move]
    extents = [*EXTENTS[:6], 0, 0]
    sweep(programs(POINTWISE, makers, [*FLOATS, "int64", "bool"], extents=extents), num_examples)


def test_a_truth_value_needs_no_integer() -> None:
    """``where`` asks for ``0 < int64(x < y)``, on which TVM fails in some vector loops."""
    specs = [i64(6, 1), i64(1, 16), f32(6, 16), f32(6, 16)]
    op = relax.op
    mod = group(
        lambda emit, x, y, a, b: emit(op.where(emit(op.less(x, y)), emit(op.exp(a)), b)), specs
    )
    x, y, a, b = random_inputs(specs)
    mod, _ = scheduled(mod, host_target())
    text = mod.script()
    assert "T.Select(" in text
    assert 'T.Cast("int64"' not in text
    (got,) = run(mod, [x, y, a, b], host_target())
    np.testing.assert_allclose(got, np.where(x < y, np.exp(a), b), rtol=1e-5)
