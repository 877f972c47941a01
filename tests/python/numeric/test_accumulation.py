"""Micro-batches, weights and loss scaling against eager torch, in float64 where it can be."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import assert_close, compile_main, run_steps
from torch import nn

from disco_fuse.frontend import SGD, Adam, AdamW, ClipGlobalNorm, LossScaling, TrainingStep
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.insert import InsertAllReduce

MICRO = 4
STEPS = 4


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
    ).to(dtype)  # fmt: skip


def batches(accumulate: int, dtype: torch.dtype = torch.float64) -> list[Any]:
    torch.manual_seed(1)
    size = accumulate * MICRO
    return [(torch.randn(size, 6).to(dtype), torch.randn(size, 3).to(dtype)) for _ in range(STEPS)]


def check_tensors(model: nn.Module, results: Any, step: TrainingStep, tolerance: float) -> None:
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in (*step.parameter_names, *step.buffer_names):
        assert_close(results[name], tensors[name].detach(), name, tolerance)


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scaling"])
def test_micro_batches_as_calls_of_backward(accumulate: int, scaled: bool) -> None:
    """Batch normalisation makes the micro-batches differ from one big batch."""
    model, data = network(), batches(accumulate)
    inner = ClipGlobalNorm(optimizer=Adam(lr=0.01), max_norm=0.5)
    optimizer = LossScaling(optimizer=inner, scale=1024.0) if scaled else inner
    step = training_step(
        model, data[0], loss=F.mse_loss, optimizer=optimizer, accumulate=accumulate
    )
    history = run_steps(step, data)
    theirs = to_torch_optimizer(inner, model.parameters())
    for batch, results in zip(data, history, strict=True):
        theirs.zero_grad()
        losses = []
        for x, y in zip(*(part.chunk(accumulate) for part in batch), strict=True):
            loss = F.mse_loss(model(x), y)
            (loss / accumulate).backward()
            losses.append(loss.detach())
        theirs.step()
        assert_close(results["loss"], torch.stack(losses).mean(), "loss")
        check_tensors(model, results, step, 1e-9)


def test_one_allreduce_per_gradient() -> None:
    model = network()
    model[3].weight.requires_grad_(False)
    for mode, buffers in (("local", 0), ("average", 2), ("broadcast", 3)):
        step = training_step(
            model,
            batches(3)[0],
            loss=F.mse_loss,
            optimizer=SGD(lr=0.1),
            accumulate=3,
            weighted=True,
            buffers=mode,
        )
        text = InsertAllReduce()(step.mod).script()
        assert len(step.gradient_names) == 4
        assert text.count("R.ccl.allreduce(") == 4 + 1 + buffers  # gradients, weight, statistics


class WithOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.linear(x)
        return F.mse_loss(hidden, y), hidden, hidden.sum()


def test_outputs_of_micro_batches_are_joined() -> None:
    model, (batch, *_) = WithOutputs().double(), batches(2)
    step = training_step(model, batch, optimizer=SGD(lr=0.1), accumulate=2)
    (results,) = run_steps(step, [batch])
    parts = [model(x, y) for x, y in zip(*(part.chunk(2) for part in batch), strict=True)]
    assert_close(results["output_0"], torch.cat([p[1] for p in parts]).detach(), "hidden")
    assert_close(results["output_1"], torch.stack([p[2] for p in parts]).detach(), "sums")


def test_micro_batches_draw_their_own_masks() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 8))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            dropped = F.dropout(self.weight * x, 0.5)
            return dropped.sum(), dropped

    batch = (torch.ones(128, 8),)
    step = training_step(Drawing(), batch, optimizer=SGD(lr=1.0), accumulate=2)
    (results,) = run_steps(step, [batch])
    first, second = np.split(results["output_0"], 2)
    assert 0.3 < (first != second).mean() < 0.7
    np.testing.assert_allclose(1.0 - results["weight"], (first + second) / 2, rtol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_make_the_gradient_of_all_samples(accumulate: int) -> None:
    """Padded batches with weights equal one batch of all real samples."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            error = ((self.linear(x) - y) ** 2).mean(1) * real
            return error.sum() / real.sum()

    model = Masked().double()
    reference = copy.deepcopy(model)
    torch.manual_seed(3)
    size = accumulate * MICRO
    real = torch.tensor([1, 1, 1, 0, 1, 0, 0, 0][:size]).double()
    data = [(torch.randn(size, 6).double(), torch.randn(size, 3).double(), real) for _ in range(3)]
    step = training_step(
        model, data[0], optimizer=Adam(lr=0.1), accumulate=accumulate, weighted=True
    )
    assert step.input_names == ("x", "y", "real", "batch_weight")
    weight = real.view(accumulate, MICRO).sum(1).float()
    history = run_steps(step, [(*batch, weight) for batch in data])
    theirs = torch.optim.Adam(reference.parameters(), lr=0.1)
    for (x, y, mask), results in zip(data, history, strict=True):
        theirs.zero_grad()
        loss = reference(x[mask > 0], y[mask > 0], mask[mask > 0])
        loss.backward()
        theirs.step()
        assert_close(results["loss"], loss.detach(), "loss")
        check_tensors(reference, results, step, 1e-9)


def scaled_run(optimizer: LossScaling, data: Sequence[Any], spoiled: int) -> Any:
    """Our steps in float32; the batch `spoiled` holds an infinity."""
    data = list(data)
    data[spoiled] = (data[spoiled][0] * math.inf, data[spoiled][1])
    model = nn.Linear(6, 3)
    step = training_step(model, data[0], loss=F.mse_loss, optimizer=optimizer)
    main, values, history = compile_main(step.mod), list(step.initial_values()), []
    for batch in data:
        outputs = main(*(x.numpy() for x in batch), *values)
        for parameter, output in step.donated.items():
            values[parameter - 2] = outputs[output]
        history.append(dict(zip(step.names, values, strict=True)))
    return model, data, step, history


def test_dynamic_loss_scaling_as_torchs_grad_scaler() -> None:
    """Overflow by the scale (2**126 at first) and by a batch; growth after two good steps."""
    torch.manual_seed(4)
    data = [(torch.randn(8, 6) * 40, torch.randn(8, 3)) for _ in range(16)]
    inner = ClipGlobalNorm(optimizer=AdamW(lr=0.01), max_norm=5.0)
    optimizer = LossScaling(optimizer=inner, scale=2.0**126, growth_interval=2)
    model, data, step, history = scaled_run(optimizer, data, spoiled=12)
    theirs = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    scales = []
    for (x, y), results in zip(data, history, strict=True):
        theirs.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.unscale_(theirs)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(theirs)
        scaler.update()
        scales.append(scaler.get_scale())
        assert results["optimizer.loss_scale"] == scaler.get_scale()
        assert results["optimizer.good_steps"] == scaler._get_growth_tracker()
        check_tensors(model, results, step, 1e-5)
    changes = np.sign(np.diff(scales))
    assert {-1.0, 0.0, 1.0} == set(changes.tolist())
    assert history[-1]["optimizer.step"] == theirs.state[model.weight]["step"] < 16


def test_static_loss_scaling_skips_an_overflow() -> None:
    torch.manual_seed(5)
    data = [(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(4)]
    optimizer = LossScaling(optimizer=SGD(lr=0.1, momentum=0.9), scale=8.0, dynamic=False)
    _, _, step, history = scaled_run(optimizer, data, spoiled=2)
    assert "optimizer.good_steps" not in step.names
    for name in step.names:
        np.testing.assert_array_equal(history[1][name], history[2][name])
        assert np.isfinite(history[3][name]).all()
    assert not np.array_equal(history[2]["weight"], history[3]["weight"])


def test_float16_gradients_are_averaged_in_float32() -> None:
    """Values of a half-precision model close to torch's, with the update in float32."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).half()
    data = [(torch.randn(8, 6).half(), torch.randn(8, 3).half()) for _ in range(5)]
    optimizer = LossScaling(optimizer=SGD(lr=0.1, momentum=0.9), scale=256.0)
    step = training_step(model, data[0], loss=F.mse_loss, optimizer=optimizer)
    assert str(step.values["0.weight"].dtype) == "float16"
    assert str(step.values["0.weight.momentum_buffer"].dtype) == "float32"
    gradients = set(step.gradient_names.values())
    for binding in step.mod["main"].body.blocks[0].bindings:
        if str(binding.var.name) in gradients:
            assert str(binding.var.ty.dtype.dtype) == "float32"
    history = run_steps(step, data)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for (x, y), results in zip(data, history, strict=True):
        theirs.zero_grad()
        F.mse_loss(model(x), y).backward()
        theirs.step()
        check_tensors(model, results, step, 5e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be above 0.0"),
        ({"scale": math.inf}, "scale must be above 0.0 and below inf, got inf"),
        ({"growth_factor": 1.0}, "growth_factor must be above 1.0"),
        ({"backoff_factor": 1.0}, "backoff_factor must be above 0.0 and below 1.0, got 1.0"),
        ({"growth_interval": 0}, "growth_interval must be at least 1, got 0"),
        ({"optimizer": LossScaling(optimizer=SGD(lr=0.1))}, "scaled twice"),
    ],
)
def test_impossible_loss_scaling(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossScaling(**{"optimizer": SGD(lr=0.1), **options})


def test_scaled_gradients_are_not_clipped() -> None:
    with pytest.raises(ValueError, match="let LossScaling hold ClipGlobalNorm"):
        ClipGlobalNorm(optimizer=LossScaling(optimizer=SGD(lr=0.1)), max_norm=1.0)


@pytest.mark.parametrize("accumulate", [0, -1, 3])
def test_impossible_micro_batches(accumulate: int) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|\[\[4, 6\], \[4, 3\]\]"):
        training_step(
            network(), batches(1)[0], loss=F.mse_loss, optimizer=SGD(lr=1), accumulate=accumulate
        )
