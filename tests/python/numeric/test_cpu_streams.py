"""CPU rules for data beyond a cache: column sums row by row, transposes through tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cpu_kernels import Build, TensorSpec, check, f32, f64
from tvm import relax

from disco_fuse.kernels.cpu import RULES_ATTR, column_stream, transpose


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two forms wrote a kernel."""
    names: list[str] = []

    def spied(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*arguments: Any) -> Any:
            names.append(name)
            return real(*arguments)

        return spy

    monkeypatch.setattr(column_stream, "emit", spied("emit", column_stream.emit))
    monkeypatch.setattr(transpose, "_tiles", spied("_tiles", transpose._tiles))
    return names


def column_sum(axes: Sequence[int]) -> Build:
    return lambda emit, x: emit(relax.op.sum(x, axis=list(axes)))


def column_mean(emit: Any, x: Any, scale: Any) -> Any:
    return emit(relax.op.mean(emit(relax.op.multiply(x, scale)), axis=[0]))


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (f32(1031, 301), (0,)),  # rows in eights and a rest, columns in vectors and a rest
        (f32(67, 5003), (0,)),  # two blocks of accumulators
        (f32(5, 220, 301), (0, 1)),
        (f32(300, 9, 111), (0,)),
        (f64(517, 301), (0,)),
    ],
    ids=str,
)
def test_column_sums(used: list[str], spec: TensorSpec, axes: tuple[int, ...]) -> None:
    func = check(column_sum(axes), [spec], lambda x: x.sum(axis=axes))
    assert used == ["emit"]
    assert list(func.attrs[RULES_ATTR]) == ["columns"]


def test_a_factor_of_the_row_and_a_follower(used: list[str]) -> None:
    specs = [f32(1031, 301), f32(1031, 1)]
    check(column_mean, specs, lambda x, scale: (x * scale).mean(axis=0))
    assert used == ["emit"]


def test_small_sums_stay_in_registers(used: list[str]) -> None:
    check(column_sum((0,)), [f32(100, 301)], lambda x: x.sum(axis=0))
    assert used == []


def permuted(order: Sequence[int]) -> Build:
    def build(emit: Any, x: Any, bias: Any) -> Any:
        return emit(relax.op.permute_dims(emit(relax.op.add(x, bias)), list(order)))

    return build


CASES: list[tuple[Build, list[TensorSpec], Callable[..., Any]]] = [
    (permuted([1, 0]), [f32(1100, 1001), f32(1, 1001)], lambda x, b: (x + b).T),
    (permuted([1, 0]), [f64(1024, 577), f64(1, 577)], lambda x, b: (x + b).T),
    (permuted([1, 0]), [f32(70_000, 17), f32(1, 17)], lambda x, b: (x + b).T),
    (
        permuted([0, 2, 1]),
        [f32(2, 801, 707), f32(1, 1, 707)],
        lambda x, b: (x + b).transpose(0, 2, 1),
    ),
]


@pytest.mark.parametrize(("build", "specs", "reference"), CASES, ids=range(len(CASES)))
def test_transposes(
    used: list[str], build: Build, specs: list[TensorSpec], reference: Callable[..., Any]
) -> None:
    func = check(build, specs, reference)
    assert used == ["_tiles"]
    assert list(func.attrs[RULES_ATTR]) == ["transpose"]


def test_small_and_narrow_transposes_are_read_in_place(used: list[str]) -> None:
    check(permuted([1, 0]), [f32(300, 200), f32(1, 200)], lambda x, b: (x + b).T)
    check(permuted([1, 0]), [f32(150_000, 9), f32(1, 9)], lambda x, b: (x + b).T)
    assert used == []


def test_loops_over_heads_do_not_divide() -> None:
    """Rows of heads lie far apart: one loop each instead of one that divides its position."""
    build = permuted([0, 2, 1, 3])
    specs = [f32(3, 5, 4, 16), f32(1, 1, 4, 16)]
    func = check(build, specs, lambda x, b: np.transpose(x + b, (0, 2, 1, 3)))
    text = func.script()
    assert "//" not in text
    assert "%" not in text
