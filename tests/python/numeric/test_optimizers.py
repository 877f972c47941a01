"""Optimizers in the graph against torch.optim, over 20 steps in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import assert_close, check_against_eager, compile_main
from torch import nn
from tvm import relax

from disco_fuse.frontend import SGD, Adam, AdamW, ClipGlobalNorm, Optimizer
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.insert import InsertAllReduce

STEPS = 20
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.1),
    "momentum": SGD(lr=0.05, momentum=0.9),
    "nesterov": SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.02),
    "adam": Adam(lr=0.02),
    "adam with weight decay": Adam(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    "adamw": AdamW(lr=0.02, weight_decay=0.1),
    "adamw without weight decay": AdamW(lr=0.02, weight_decay=0.0),
}


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def batches(count: int = STEPS, dtype: torch.dtype = torch.float64) -> list[Any]:
    # Small targets at first, large ones later: clipping must do both, leave alone and clip.
    torch.manual_seed(1)
    return [(torch.randn(4, 6).to(dtype), torch.randn(4, 3).to(dtype) * i) for i in range(count)]


@pytest.mark.parametrize("clipped", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_torch(name: str, clipped: bool) -> None:
    optimizer = OPTIMIZERS[name]
    if clipped:
        optimizer = ClipGlobalNorm(optimizer=optimizer, max_norm=4.0)
    check_against_eager(network(), batches(), loss=F.mse_loss, optimizer=optimizer)


def test_clipping_clips_some_steps_and_not_others() -> None:
    model, norms = network(), []
    theirs = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        theirs.zero_grad()
        F.mse_loss(model(x), y).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 4.0)))
        theirs.step()
    assert 3 <= sum(norm > 4.0 for norm in norms) <= STEPS - 3


def test_adam_in_float32_has_torchs_precision() -> None:
    """The bias correction of the first steps would be off by 1e-5 if computed in float32."""
    data = batches(3, torch.float32)
    check_against_eager(
        network(torch.float32), data, loss=F.mse_loss, optimizer=Adam(lr=0.02), tolerance=2e-6
    )


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_learning_rate_is_an_input(name: str) -> None:
    """A schedule sets it between the steps of one compiled module."""
    ours, model, data = OPTIMIZERS[name], network(), batches()
    step = training_step(model, data[0], loss=F.mse_loss, optimizer=ours)
    theirs = to_torch_optimizer(ours, model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=STEPS)
    main, values = compile_main(step.mod), list(step.initial_values())
    position = step.names.index("optimizer.learning_rate")
    for x, y in data:
        values[position] = np.array(theirs.param_groups[0]["lr"])
        outputs = main(x.numpy(), y.numpy(), *values)
        for parameter, output in step.donated.items():
            values[parameter - 2] = outputs[output]
        theirs.zero_grad()
        F.mse_loss(model(x), y).backward()
        theirs.step()
        schedule.step()
    for parameter_name, expected in model.named_parameters():
        actual = values[step.names.index(parameter_name)]
        assert_close(actual, expected.detach(), parameter_name)


def test_clipping_reads_averaged_gradients() -> None:
    """After the AllReduces were inserted, nothing but them reads a rank's own gradient."""
    optimizer = ClipGlobalNorm(optimizer=AdamW(), max_norm=1.0)
    step = training_step(network(), batches(1)[0], loss=F.mse_loss, optimizer=optimizer)
    bindings = InsertAllReduce()(step.mod)["main"].body.blocks[0].bindings
    names = set(step.gradient_names.values())
    readers = [
        binding.value.op.name
        for binding in bindings
        if names & {str(variable.name) for variable in relax.analysis.free_vars(binding.value)}
    ]
    assert readers == ["relax.ccl.allreduce"] * len(names)


def test_names_of_shared_state_are_reserved() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.optimizer = nn.Module()
            self.optimizer.step = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.optimizer.step

    data = (torch.randn(4, 6), torch.randn(4, 3))
    with pytest.raises(ValueError, match=r"optimizer\.step"):
        training_step(Net(), data, loss=F.mse_loss, optimizer=Adam())


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"eps": math.nan}, "eps must be"),
        ({"weight_decay": math.inf}, "weight_decay must be"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers from 0 to below 1, got \(0.9, 1.0\)"),
    ],
)
def test_impossible_options(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.inf])
def test_impossible_norms(max_norm: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be a finite number > 0"):
        ClipGlobalNorm(optimizer=SGD(lr=0.1), max_norm=max_norm)


def test_an_optimizer_that_torch_has_not() -> None:
    with pytest.raises(TypeError, match="int has no counterpart"):
        to_torch_optimizer(3, network().parameters())  # type: ignore[arg-type]
