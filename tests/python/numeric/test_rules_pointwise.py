"""Elementwise and injective groups against numpy: random programs, five axes, all types."""

from __future__ import annotations

import pytest
from rule_operations import POINTWISE, binary, comparison, conversion, move, unary
from rule_programs import EXTENTS, programs, sweep

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
