"""Groups that reduce, normalise, multiply matrices, gather or scatter, against numpy."""

from __future__ import annotations

import pytest
from rule_operations import POINTWISE, binary, move, unary
from rule_programs import EXTENTS, Maker, programs, sweep
from rule_reductions import (
    GATHER,
    INDEX,
    MATMUL,
    NORMS,
    REDUCTIONS,
    SCATTER,
    gather,
    matmul,
    norm,
    position,
    reduction,
    scatter,
)

ALL = POINTWISE | REDUCTIONS | NORMS | INDEX | MATMUL | GATHER | SCATTER
FLOATS = ["float32", "float64"]
LONG = pytest.param(600, marks=pytest.mark.slow)
FAMILIES: dict[str, tuple[Maker, list[Maker], list[str]]] = {
    "reductions": (reduction, [reduction, unary, binary], [*FLOATS, "int64"]),
    "norms": (norm, [norm, unary, binary], FLOATS),
    "positions": (position, [position, move, unary], [*FLOATS, "int64", "int32"]),
    "matmul": (matmul, [unary, binary, matmul, reduction], FLOATS),
    "gather": (gather, [gather, unary, binary], [*FLOATS, "int64", "bool"]),
    "scatter": (scatter, [scatter, unary, binary], FLOATS),
    "everything": (
        move,
        [reduction, norm, matmul, gather, scatter, unary, binary, move, position],
        FLOATS,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_examples", [12, LONG])
def test_random_programs(family: str, num_examples: int) -> None:
    first, makers, dtypes = FAMILIES[family]
    sweep(programs(ALL, makers, dtypes, first=first), num_examples)


@pytest.mark.parametrize("num_examples", [12, LONG])
def test_nothing_to_reduce(num_examples: int) -> None:
    makers = [reduction, norm, matmul, unary, binary]
    drawn = programs(ALL, makers, FLOATS, extents=[*EXTENTS[:6], 0, 0], first=reduction)
    sweep(drawn, num_examples)


@pytest.mark.parametrize("num_examples", [8, LONG])
def test_bfloat16(num_examples: int) -> None:
    """Of short rows: TVM adds in bfloat16, of which the 257th one would be lost."""
    drawn = programs(
        ALL, [norm, reduction, unary], ["bfloat16"], extents=[1, 2, 3], first=reduction
    )
    sweep(drawn, num_examples)
