"""Models in bfloat16 and float16 against eager PyTorch in the same dtype and in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import compile_main, run_steps
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.frontend.torch.constants import to_numpy

NUM_STEPS = 5
MOMENTUM = SGD(lr=0.05, momentum=0.9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1, groups=2)
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.norm(self.first(self.conv(x.view(-1, 2, 4)).flatten(1)))))


def gradients(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    F.cross_entropy(model(x), target).backward()
    return {name: p.grad.double().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_close_to_float64_as_torch_is(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net().to(dtype)
    x, target = torch.randn(64, 8).to(dtype), torch.randint(0, 8, (64,))
    step = training_step(model, (x, target), loss=F.cross_entropy, optimizer=SGD(lr=1.0))
    results = compile_main(step.mod)(to_numpy(x), target.numpy(), *step.initial_values())
    values = dict(zip(step.output_names, results, strict=True))
    exact = gradients(copy.deepcopy(model).double(), x.double(), target)
    half = gradients(copy.deepcopy(model), x, target)
    for name, parameter in model.named_parameters():
        assert str(values[name].dtype) == str(dtype).removeprefix("torch.")
        before = to_numpy(parameter).astype(np.float64)
        ours = before - values[name].astype(np.float64)
        rounding = np.abs(before).max() * torch.finfo(dtype).eps  # of the new weight
        scale = np.abs(exact[name]).max()
        allowed = 2 * np.abs(half[name] - exact[name]).max() + rounding + scale * 2**-9
        assert np.abs(ours - exact[name]).max() <= allowed, name


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        y = F.interpolate(F.hardswish(self.second(y)), scale_factor=2)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Attentive(nn.Module):
    """Tied embedding, causal attention, softmax over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 16)
        self.norm = nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        heads = self.project(self.norm(x)).view(*words.shape, 2, 24).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, -1), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return F.linear(x, self.words.weight).transpose(1, 2)


class Autocast(nn.Module):
    """Weights in float32; torch computes the products in bfloat16 and casts on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x)


def after_steps(model: nn.Module, batches: Any) -> dict[str, Any]:
    """Parameters, buffers and momentum of torch itself after a step on every batch, in float64."""
    optimizer = to_torch_optimizer(MOMENTUM, list(model.parameters()))
    for x, target in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, parameter in model.named_parameters():
        tensors[f"{name}.momentum_buffer"] = optimizer.state[parameter]["momentum_buffer"]
    return {name: tensor.detach().double().numpy() for name, tensor in tensors.items()}


def check_steps(model: nn.Module, exact: nn.Module, batches: Any, eps: float) -> None:
    """After five steps, no tensor is farther from the exact one than twice what torch's is."""
    step = training_step(model, batches[0], loss=F.cross_entropy, optimizer=MOMENTUM)
    wide = [tuple(x.double() if x.is_floating_point() else x for x in b) for b in batches]
    reference = after_steps(exact, wide)
    half = after_steps(copy.deepcopy(model), batches)
    results = run_steps(step, batches)[-1]
    assert set(half) <= set(results)
    for name, wanted in reference.items():
        error = np.abs(results[name].astype(np.float64) - wanted).max()
        allowed = 2 * np.abs(half[name] - wanted).max() + eps * np.abs(wanted).max()
        assert error <= allowed, f"{name}: {error}, allowed {allowed}"


def half_batches(dtype: torch.dtype, *shape: int, classes: int) -> Any:
    return [
        (torch.randn(*shape).to(dtype), torch.randint(0, classes, (shape[0],)))
        for _ in range(NUM_STEPS)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_five_steps_of_convolutions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Convolutional().to(dtype).train()
    batches = half_batches(dtype, 8, 3, 12, 12, classes=5)
    check_steps(model, copy.deepcopy(model).double(), batches, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_five_steps_of_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Attentive().to(dtype)
    batches = [
        (torch.randint(0, 12, (4, 6)), torch.randint(0, 12, (4, 6))) for _ in range(NUM_STEPS)
    ]
    check_steps(model, copy.deepcopy(model).double(), batches, torch.finfo(dtype).eps)


def test_five_steps_under_autocast() -> None:
    torch.manual_seed(0)
    model = Autocast()
    batches = half_batches(torch.float32, 16, 8, classes=8)
    eps = torch.finfo(torch.bfloat16).eps
    exact = nn.ModuleDict({"net": copy.deepcopy(model.net).double()})
    exact.forward = exact["net"].forward  # the same names, without autocast
    check_steps(model, exact, batches, eps)


def test_autocast_keeps_weights_in_float32() -> None:
    x, target = half_batches(torch.float32, 4, 8, classes=8)[0]
    step = training_step(Autocast(), (x, target), loss=F.cross_entropy, optimizer=MOMENTUM)
    dtypes = {str(value.dtype) for value in step.initial_values()}
    assert dtypes == {"float32", "float64"}, dtypes  # the learning rate is in float64
    assert "bfloat16" in step.mod.script()
