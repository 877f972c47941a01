"""Models that a training step cannot hold: each is refused, with an error that says what and where.

Several of these would otherwise import without an error and train wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step

Function = Callable[["Inner", torch.Tensor], torch.Tensor]


class Inner(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.plain = torch.zeros(6).double()
        self.register_buffer("kept", torch.zeros(6))
        self.scale = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


class Outer(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.inner = Inner(function)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.linear(x))


def refuse(model: nn.Module) -> str:
    batch = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    with pytest.raises(UnsupportedOperatorError) as caught:
        training_step(model.double(), batch, loss=F.mse_loss, optimizer=SGD(lr=0.1))
    return str(caught.value)


class Sevenfold(torch.autograd.Function):
    """Doubles, and says that its derivative is 7."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_context: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def rebinds_buffer(self: Inner, x: torch.Tensor) -> torch.Tensor:
    self.kept = self.kept + x.detach().mean(0)
    return x * self.kept


def rebinds_attribute(self: Inner, x: torch.Tensor) -> torch.Tensor:
    self.plain = self.plain + 1
    return x * self.plain


def writes_attribute(self: Inner, x: torch.Tensor) -> torch.Tensor:
    self.plain.view(2, 3).add_(1)
    return x * self.plain


def hooked(_self: Inner, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda grad: grad * 3)
    return x * 2


DATA = "depends on the values of tensors"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _, x: torch.linalg.svdvals(x).sum() * x, ["aten._linalg_svd", "module 'inner'"]),
        (lambda _, x: x * x[x > 0].sum(), [DATA, "aten.index.Tensor", "module 'inner'"]),
        (lambda _, x: x * torch.nonzero(x > 0).sum(), [DATA, "aten.nonzero"]),
        (lambda _, x: x if x.sum() > 0 else -x, [DATA, "x if x.sum() > 0 else -x"]),
        (lambda _, x: x[: int((x > 0).sum())].sum() * x, [DATA, "int((x > 0).sum())"]),
        (lambda _, x: x * x.sum().item(), [DATA, "aten.item"]),
        (lambda _, x: torch.fft.fft(x).real, ["aten._fft_r2c", "module 'inner'"]),
        (lambda _, x: torch.view_as_complex(x.view(4, 3, 2)).abs().repeat(1, 2),
         ["aten.view_as_complex"]),
        (lambda _, x: Sevenfold.apply(x), ["autograd function Sevenfold", "gradients wrong"]),
        (rebinds_buffer, ["assigns to 'inner.kept'", "write to it in place"]),
        (rebinds_attribute, ["assigns to 'inner.plain'", "register_buffer"]),
        (writes_attribute, ["aten.add_", "not a buffer", "module 'inner'", "register_buffer"]),
        (hooked, ["hook on a tensor", "x.register_hook(lambda grad: grad * 3)"]),
        (lambda _, x: x.to(torch.float8_e4m3fn).double() * x, ["float8_e4m3fn", "float32"]),
        (lambda _, x: x * (x.detach() // 0.1), ["aten.div.Tensor_mode", "integers, not float64"]),
        (lambda _, x: x + torch.randn_like(x), ["random numbers", "module 'inner'"]),
        (lambda _, x: x * torch.combinations(x[0]).sum(), [DATA, "torch.combinations(x[0])"]),
        (lambda self, x: x * self.scale.float().weight.double().sum(),
         ["changes the dtype or device of a parameter", "self.scale.float()"]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The tensor attribute self.model.inner.plain:UserWarning")
def test_refused(function: Function, words: list[str]) -> None:
    message = refuse(Outer(function))
    for part in words:
        assert part in message
    assert "test_frontend_refusals.py:" in message or "assigns to" in message


def test_hooks_of_modules_and_parameters() -> None:
    model = Outer(lambda _, x: x)
    handle = model.linear.weight.register_hook(lambda grad: grad * 2)
    assert "hook of parameter 'linear.weight'" in refuse(model)
    handle.remove()
    model.inner.register_full_backward_hook(lambda _module, _before, _after: None)
    assert "backward hook of module 'inner'" in refuse(model)


def test_what_torch_itself_cannot_differentiate() -> None:
    model = Outer(lambda _, x: torch.linalg.inv(x.T @ x + torch.eye(6).double() * 9).sum() * x)
    assert "torch's joint export of forward and backward pass fails" in refuse(model)


def test_dtypes_that_have_no_counterpart() -> None:
    batch = torch.randn(4, 6).double(), torch.zeros(4, 6, dtype=torch.complex128)
    model = Outer(lambda _, x: x).double()
    with pytest.raises(TypeError, match=r"torch\.complex128; supported are .*torch\.float32"):
        training_step(model, batch, loss=lambda y, t: F.mse_loss(y, t.real), optimizer=SGD(lr=0.1))


def test_a_refused_model_can_still_be_used() -> None:
    model = Outer(lambda _, x: Sevenfold.apply(x)).double()
    refuse(model)
    x = torch.randn(4, 6).double().requires_grad_()
    handle = x.register_hook(lambda grad: grad)
    model(x).sum().backward()
    handle.remove()
    torch.testing.assert_close(x.grad, 7 * model.linear.weight.sum(0).expand(4, 6))
