"""Models in bfloat16 and float16 against eager PyTorch in the same dtype and in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import compile_main
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.torch.constants import to_numpy


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
