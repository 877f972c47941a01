"""Checks one function through the frontend against eager PyTorch: values and gradients, float64.

A case is a function of parameters; its results become outputs of a step, their weighted sum is the
loss, and one step of SGD with learning rate 1 shows the gradients. The operators that a case really
sends through converters are read off its joint graph and collected in COVERED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from converter_coverage import COVERED
from eager_reference import assert_close, run_steps
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.torch.constants import fold_constants
from disco_fuse.frontend.torch.export import export

Function = Callable[..., Any]


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
