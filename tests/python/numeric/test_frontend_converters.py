"""Every verified operator against eager PyTorch: values and gradients, in float64.

A case is a function of parameters; its results become outputs of a step, their weighted sum is the
loss, and one step of SGD with learning rate 1 shows the gradients. The operators that a case really
sends through converters are read off its joint graph, and the last test compares their union with
the verified list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import assert_close, run_steps
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.torch.constants import fold_constants
from disco_fuse.frontend.torch.converters import CONVERTERS
from disco_fuse.frontend.torch.export import export
from disco_fuse.frontend.torch.verified import RANDOM_OPERATORS, VERIFIED_OPERATORS

aten = torch.ops.aten
Function = Callable[..., Any]

COVERED: set[str] = set()


class Model(nn.Module):
    """Loss: all floating-point results, each weighted elementwise so that none cancels."""

    def __init__(self, function: Function, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.values = nn.ParameterList([nn.Parameter(p.clone()) for p in parameters])

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = self.function(*self.values, *inputs)
        results = results if isinstance(results, tuple | list) else (results,)
        loss = sum(value.sum() * 0.125 for value in self.values)
        for result in results:
            if result.is_floating_point():
                weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype)
                loss = loss + (result * weights.view(result.shape)).sum()
        return (loss, *results)


def check(
    function: Function,
    parameters: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor] = (),
    tolerance: float = 1e-11,
) -> None:
    """Compare results and gradients of a function; both are checked not to be trivial."""
    model = Model(function, parameters)
    inputs = [*inputs, torch.zeros(1)]  # a step has at least one input

    def ignore_last(*arguments: torch.Tensor) -> Any:
        return function(*arguments[:-1])

    model.function = ignore_last
    joint = export(model, inputs, None)
    folded = fold_constants(joint.graph, joint.constants)
    COVERED.update(
        str(node.target)
        for node in joint.graph.nodes
        if node.op == "call_function" and node not in folded
    )
    step = training_step(model, inputs, optimizer=SGD(lr=1.0))
    (results,) = run_steps(step, [tuple(inputs)])
    loss, *outputs = model(*inputs)
    gradients = torch.autograd.grad(loss, list(model.values))
    assert_close(results["loss"], loss.detach(), "loss", tolerance)
    for index, output in enumerate(outputs):
        assert_close(results[f"output_{index}"], output.detach(), f"output {index}", tolerance)
    for index, (parameter, gradient) in enumerate(zip(model.values, gradients, strict=True)):
        gained = parameter.detach().numpy() - results[f"values.{index}"]
        assert_close(gained, gradient, f"gradient {index}", tolerance)
        assert np.ptp(gradient.numpy()) > 0 or gradient.numel() == 1, "a gradient without content"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64) + 0.25


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_unary() -> None:
    functions = (
        torch.neg, torch.exp, torch.erf, torch.tanh, torch.sigmoid, torch.relu, torch.abs,
        F.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.clamp(-0.5, 0.75),
        lambda x: x.clamp(min=0.25), lambda x: x.clamp(max=0.25), F.silu,
        torch.square, lambda x: x**3,
    )  # fmt: skip
    check(lambda *xs: [f(x) for f, x in zip(functions, xs, strict=True)], [normal(3, 5)] * 15)


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


def test_positions() -> None:
    def function(a: Any, b: Any) -> Any:
        left, right = a.split([1, 3], dim=2)
        return (
            a.view(6, 4), a.permute(2, 0, 1), a.transpose(-1, 0).reshape(4, 6), left, right * 2,
            a.permute(2, 0, 1).permute(1, 0, 2) * 2,
            b.expand(2, 3, 4), a.unsqueeze(1) + b, a[:, 1:], a[:, :, 1:4:2], a[:, -1], a[1, :, 2],
            torch.cat([a, b.expand(2, 3, 4), a], 1), torch.stack([a, a * 2], -1), a.flatten(1),
            left.squeeze(-1), left.squeeze((-1,)), F.pad(a, (1, 2, 0, 1), value=0.5), a[:, 0:2],
            torch.chunk(a, 2, -1)[1], a.repeat(1, 2, 1), aten.squeeze.dim(left, 2),
            aten.reshape.default(a, [4, 6]), aten._unsafe_view.default(a * 3, [4, 6]),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(1, 4)])


def test_writes_to_slices() -> None:
    def function(a: Any, b: Any) -> Any:
        whole, start, middle = a * 1, a * 1, a * 1
        whole[:, :] = b
        start[:, :2] = b[:, :2]
        middle[:, 1:3] = b[:, 1:3] * 2
        return whole, start, middle, a[:, 1:3].exp()

    check(function, [normal(3, 4), normal(3, 4)])


def test_indexing() -> None:
    def function(weight: Any, a: Any, i: Any, j: Any) -> Any:
        return (
            F.embedding(i, weight), F.embedding(i, weight, padding_idx=1), weight[i - 2],
            torch.index_select(weight, 0, j), torch.index_select(a, 1, j), weight[j],
            torch.gather(a, 1, i), torch.gather(a, 0, i[:1, :3]),
        )  # fmt: skip

    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    check(function, [normal(4, 3), normal(2, 3)], [indices, torch.tensor([2, 0, 2])])


def test_scatter() -> None:
    def function(a: Any, b: Any, i: Any, k: Any) -> Any:
        return (
            aten.scatter.value(a, 1, i, 0.5),
            aten.scatter.value(a, 0, k, -2),
            torch.scatter_add(a, 1, k.expand(2, 3), b),
            torch.scatter_add(a, 0, k, b[:1]),
        )

    indices = torch.tensor([[1], [0]]), torch.tensor([[1, 0, 1]])
    check(function, [normal(2, 3), normal(2, 3)], indices)


def test_accumulation_into_rows() -> None:
    def function(a: Any, b: Any, i: Any) -> Any:
        return (
            aten.index_put.default(a, [i], b, True),
            aten.index_put.default(a, [i - 2], b[0], True),
        )

    check(function, [normal(3, 4), normal(5, 4)], [torch.tensor([0, 2, 2, 1, 2])])


def test_layer_norm() -> None:
    def function(a: Any, weight: Any, bias: Any) -> Any:
        return (
            F.layer_norm(a, (4,), weight, bias), F.layer_norm(a, (4,)),
            F.layer_norm(a, (3, 4), eps=1e-3),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(4), normal(4)])


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    def function(a: Any, weight: Any, bias: Any) -> Any:
        mean, var = torch.zeros(3).double() + 0.5, torch.ones(3).double() * 2
        return (
            F.batch_norm(a, mean * 1, var * 1, weight, bias, training=True, momentum=0.3),
            F.batch_norm(a, mean * 1, var * 1, training=True, eps=1e-3),
        )

    check(function, [normal(*shape), normal(3), normal(3)])


@pytest.mark.parametrize(
    ("kernel", "size", "options"),
    [
        ((3, 3), (7, 6), {"padding": 1}),
        ((3, 3), (8, 7), {"stride": 2, "padding": 1}),  # rows that no window reaches
        ((3, 2), (9, 8), {"stride": (2, 3), "dilation": (2, 1), "padding": (0, 1)}),
        ((1, 1), (5, 6), {"stride": 2}),
        ((4, 4), (8, 8), {"stride": 4}),
    ],
)
def test_convolution(kernel: tuple[int, int], size: tuple[int, int], options: Any) -> None:
    def function(x: Any, weight: Any, bias: Any) -> Any:
        return F.conv2d(x, weight, bias, **options), F.conv2d(x, weight, **options)

    check(function, [normal(2, 3, *size), normal(4, 3, *kernel), normal(4)])


@pytest.mark.parametrize(
    "options", [{}, {"stride": 1}, {"stride": 2, "padding": 1}, {"padding": (1, 0)}]
)
def test_max_pool(options: Any) -> None:
    def function(x: Any, ties: Any) -> Any:
        return F.max_pool2d(x, 3, **options), F.max_pool2d(ties, (3, 2), **options)

    ties = torch.randint(0, 2, (2, 2, 7, 8)).double()
    check(function, [normal(2, 2, 7, 8), ties])


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"stride": 1, "padding": 1, "count_include_pad": False}],
)
def test_average_pool(options: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        return F.avg_pool2d(x, 3, **options), F.avg_pool2d(y, (2, 3), **options)

    check(function, [normal(2, 2, 7, 8), normal(1, 2, 6, 6)])


def test_every_verified_operator_has_a_converter() -> None:
    assert set(CONVERTERS) >= VERIFIED_OPERATORS
    assert set(CONVERTERS) <= VERIFIED_OPERATORS


def test_every_verified_operator_is_covered(request: pytest.FixtureRequest) -> None:
    here = [item for item in request.session.items if item.path == request.path]
    functions = {item.function for item in here}  # type: ignore[attr-defined]
    if len(functions) < 20:
        pytest.skip("needs all tests of this file")
    # test_dropout.py covers what draws random numbers.
    assert sorted(VERIFIED_OPERATORS - RANDOM_OPERATORS - COVERED) == []
