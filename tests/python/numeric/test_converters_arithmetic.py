"""Elementwise operators, reductions and matrix products against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from converter_check import check, normal, positive

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_unary() -> None:
    functions = (
        torch.neg, torch.exp, torch.erf, torch.tanh, torch.sigmoid, torch.relu, torch.abs,
        F.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.clamp(-0.5, 0.75),
        lambda x: x.clamp(min=0.25), lambda x: x.clamp(max=0.25), F.silu,
        torch.square, lambda x: x**3, torch.sin, torch.cos,
    )  # fmt: skip
    check(lambda *xs: [f(x) for f, x in zip(functions, xs, strict=True)], [normal(3, 5)] * 17)


def test_unary_of_positive_numbers() -> None:
    functions = (
        torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, lambda x: x**1.7, lambda x: x**-2,
        lambda x: x**0.5,
    )  # fmt: skip
    check(lambda *xs: [f(x) for f, x in zip(functions, xs, strict=True)], [positive(3, 5)] * 7)


def test_arithmetic_with_broadcasting() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return (
            a + b, a - b, a * c, a / c, torch.add(a, b, alpha=3), torch.sub(a, c, alpha=0.5),
            torch.maximum(a, b), torch.minimum(a, b), 2 - a, 3 / c,
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(3, 1), positive(4)])


def test_arithmetic_with_numbers() -> None:
    def function(a: Any) -> Any:
        return (
            aten.add.Scalar(a, 2), aten.sub.Scalar(a, 3), aten.mul.Scalar(a, 5),
            aten.div.Scalar(a, 7), a + 2, a - 3, a * 5, a / 7, torch.rsub(a, 2),
        )  # fmt: skip

    check(function, [normal(3, 4)])


def test_comparisons_and_logic() -> None:
    def function(a: Any, b: Any, i: Any) -> Any:
        less, more = a < b, a > 0.25
        flags = [a == b, a != b, a <= b, a >= b, a == 0.5, a != 0.5, a <= 0.5, a < 0.5, a >= 0.5]
        logic = [
            torch.logical_and(less, more), torch.logical_or(less, a), torch.logical_not(b),
            less & more, ~less, i > 1, i >= 1.5, i == a,
        ]  # fmt: skip
        return (*flags, *logic, less, more, torch.where(less, a, b), torch.where(more, a, 0.5))

    a = torch.tensor([[0.5, -1.0, 2.0], [0.25, 0.0, 3.0]], dtype=torch.float64)
    b = torch.tensor([[0.5, 1.0, 0.0], [0.5, 0.0, 4.0]], dtype=torch.float64)
    check(function, [a, b], [torch.tensor([[0, 1, 2], [2, 1, 0]])])


def test_casts() -> None:
    def function(a: Any, i: Any) -> Any:
        return (
            a.float().double() * 2, (a * 4).long(), a > 0, (a > 0).double() * a, i.double() * a,
            i.bool(), a * i, (a > 0) + i,
        )  # fmt: skip

    check(function, [normal(2, 3)], [torch.tensor([[0, 1, 2], [-2, 1, 0]])], tolerance=1e-6)


def test_matrix_products() -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (
            a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2), torch.addmm(c, a, b), torch.bmm(d, d),
            F.linear(d, a), a @ d,
        )  # fmt: skip

    check(function, [normal(3, 4), normal(4, 4), normal(4), normal(2, 4, 4)])


def test_reductions() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a.sum(), a.sum(1), a.sum((0, -1), keepdim=True), a.mean(), a.mean(-1), (b * b).sum(0),
            a.mean((0, 2), keepdim=True), a.amax(-1), a.amax((0, 1), keepdim=True),
            (a > 1).any(1), (a > 1).any(-1, keepdim=True), (a > 0).sum(1),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(5)])


def test_softmax() -> None:
    def function(a: Any) -> Any:
        return F.softmax(a, -1), F.log_softmax(a, -1), F.softmax(a, 1), torch.logsumexp(a, 1)

    check(function, [normal(2, 3, 4)])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_ignores_an_index(label_smoothing: float) -> None:
    def function(logits: Any, target: Any) -> Any:
        return F.cross_entropy(
            logits, target, ignore_index=2, label_smoothing=label_smoothing, reduction="mean"
        )

    check(function, [normal(5, 4)], [torch.tensor([0, 2, 3, 1, 3])])


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(is_causal: bool) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    check(function, [normal(2, 2, 5, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)])


def test_attention_with_rows_that_see_nothing() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)

    def function(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    check(function, [normal(2, 2, 5, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)])
