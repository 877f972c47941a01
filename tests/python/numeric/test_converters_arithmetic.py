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


def test_functions_of_small_numbers() -> None:
    functions = (
        torch.tan, torch.sinh, torch.cosh, torch.asin, torch.acos, torch.atan, torch.asinh,
        torch.atanh, torch.log1p, torch.expm1, F.elu, lambda x: F.selu(x), F.celu,
        lambda x: F.leaky_relu(x, 0.2), F.hardtanh, F.relu6, F.softplus, F.hardswish, F.mish,
        F.logsigmoid, F.softsign, lambda x: F.glu(x, -1), F.tanhshrink,
        lambda x: torch.acosh(x + 2), lambda x: F.elu(x * 1000, 0.5),
    )  # fmt: skip
    parameters = [torch.rand(3, 4).double() * 1.6 - 0.8 for _ in functions]
    check(lambda *xs: [f(x) for f, x in zip(functions, xs, strict=True)], parameters)


def test_functions_near_zero_and_far_away() -> None:
    tiny = torch.tensor([1e-17, -1e-12, 1e-9, -1e-5, 0.0]).double()
    far = torch.tensor([-800.0, -40.0, 40.0, 700.0]).double()
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0]).double()

    def function(a: Any) -> Any:
        return (
            a * 2, torch.log1p(tiny) / tiny.abs().clamp(min=1e-20), torch.log1p(far.abs()),
            torch.expm1(tiny) / tiny.abs().clamp(min=1e-20), torch.expm1(far / 2),
            torch.isnan(special * a[:4]), torch.isinf(special * a[:4]),
        )  # fmt: skip

    check(function, [positive(5)])


def test_rounding() -> None:
    halves = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.25, -7.75, 1e15 + 0.5]).double()

    def function(a: Any, b: Any, x: Any) -> Any:
        return (
            a * b, x.round(), x.ceil(), x.floor(), x.trunc(), x.frac(),
            torch.div(x, b.detach(), rounding_mode="trunc"),
            aten.div.Tensor_mode(a, b, rounding_mode=None),
        )  # fmt: skip

    check(function, [normal(9), positive(9)], [halves])


def test_integers() -> None:
    def function(a: Any, i: Any, j: Any) -> Any:
        whole = (
            i // 2, i % 3, i // j, i % j, torch.fmod(i, 3), torch.div(i, 2, rounding_mode="trunc"),
            i & 3, i | 4, i ^ 5, ~i, i & j, i | j, i ^ j, i.clamp(min=0), i.clamp(max=1), i**2, -i,
            i.abs(), i.sum(), i.max(), i + j * 2, i.to(torch.int32) + j, i.amin(1), i.prod(1),
            i.float() + j, i + 0.5, i * True, i.clamp(-1, 2), i / j,
            torch.fmod(i, j),
        )  # fmt: skip
        flags = (i > 0, j > 2)
        logic = (
            torch.logical_xor(*flags), torch.logical_xor(i, j), flags[0] ^ flags[1],
            flags[0] | flags[1], flags[0] & True, flags[0] | False, flags[0] ^ True,
            flags[0] * flags[1], flags[0] + flags[1], torch.maximum(*flags), torch.minimum(*flags),
        )  # fmt: skip
        return (a * i, *whole, *logic, torch.where(flags[0], i, a), a + flags[1])

    i, j = torch.tensor([[0, 1, -2], [-7, 5, 3]]), torch.tensor([[1, 3, 2], [2, -4, 5]])
    check(function, [normal(2, 3)], [i, j], tolerance=1e-7)


def test_powers_and_bounds() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a**b, 2**a, a**4, torch.pow(a, 0), torch.atan2(a, b),
            torch.clamp(a, min=b), torch.clamp(a, b * 0.5, b), torch.clamp(a, max=b),
            a.clamp_min(0.5),
            torch.log2(a), torch.log10(a), torch.lerp(a, b, 0.3), torch.addcmul(a, a, b, value=2),
            torch.addcdiv(a, a, b), torch.pow(2.5, b), torch.exp2(a),
        )  # fmt: skip

    check(function, [positive(3, 4), positive(3, 4)])


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


def test_bounds_that_ignore_what_is_no_number() -> None:
    special = torch.tensor([[float("nan"), 1.0, -2.0, 0.0], [0.0, float("nan"), 3.0, -1.0]])

    def function(a: Any, b: Any, i: Any) -> Any:
        return (
            torch.fmax(a, b), torch.fmin(a, b), torch.fmax(i, i - 3), torch.fmin(i, i * i),
            torch.fmax(special.double(), a.detach()), torch.fmin(a.detach(), special.double()),
        )  # fmt: skip

    check(function, [normal(2, 4), normal(2, 4)], [torch.tensor([0, 5, -2, 1])])


def test_matrix_products() -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (
            a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2), torch.addmm(c, a, b), torch.bmm(d, d),
            F.linear(d, a), a @ d,
        )  # fmt: skip

    check(function, [normal(3, 4), normal(4, 4), normal(4), normal(2, 4, 4)])


def test_products_of_matrix_and_vector() -> None:
    def function(a: Any, b: Any, v: Any, d: Any) -> Any:
        return (
            torch.addmv(v, a, v, beta=0.5, alpha=2), torch.mv(a, v), torch.dot(v, v),
            torch.addbmm(a, d, d, beta=2, alpha=0.5), torch.baddbmm(v, d, d, beta=0.5, alpha=2),
            torch.addr(a, v, v), torch.outer(v, v), torch.einsum("bij,bkj->ik", d, d),
            torch.einsum("bii->b", d), F.bilinear(a, b, d), F.bilinear(v, v, d, v[:2]),
        )  # fmt: skip

    check(function, [normal(3, 3), normal(3, 3), normal(3), normal(2, 3, 3)])


def test_reductions() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a.sum(), a.sum(1), a.sum((0, -1), keepdim=True), a.mean(), a.mean(-1), (b * b).sum(0),
            a.mean((0, 2), keepdim=True), a.amax(-1), a.amax((0, 1), keepdim=True),
            (a > 1).any(1), (a > 1).any(-1, keepdim=True), (a > 0).sum(1),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(5)])


def test_more_reductions() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a.amin(1), a.amin((0, 2), keepdim=True), a.max(), a.min(), a.prod(1), b.prod(),
            (a > 1).any(), (a > 0).all(1), (b > 0).all(), (b * 0).long().any(), a.var(1), a.std(),
            a.var((0, -1), unbiased=False, keepdim=True), *torch.var_mean(a, 2),
            torch.std_mean(a, 0, keepdim=True)[1], a.norm(), a.norm(dim=1), a.norm(p=1, dim=2),
            a.norm(p=float("inf"), dim=(0, 1)), torch.linalg.vector_norm(b, 3),
            a.sum(dtype=torch.float64),
            (a > 0).any((0, 1)), aten.any.dims(a.detach(), [1, 2], True), (a * 0).detach().any(1),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(5)])


def test_running_sums_and_products() -> None:
    def function(a: Any, i: Any) -> Any:
        return (
            a.cumsum(1), a.cumsum(-1), a.cumprod(0), (a > 0).cumsum(1), i.cumsum(0),
            a[0, 0, 0].cumsum(0),
            i.cumsum(0, dtype=torch.int32), torch.cumsum(i.to(torch.int32), 1),
        )  # fmt: skip

    check(function, [normal(2, 3, 4)], [torch.tensor([[0, 1, 2], [-2, 1, 0]])])


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
