"""Checks a model of the transformers library against eager PyTorch, weights at random.

Five steps of SGD with momentum: loss, logits, buffers, weights and momentum of every parameter
after each (the momentum after the first step is the gradient itself). Models in float64 must agree
to 1e-9; those that compute part of their values in float32 whatever their dtype (their RMS norm, or
their loss) must agree better than torch agrees with itself between float32 and float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from eager_reference import relative_error, run_steps
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import to_torch_optimizer, training_step

STEPS = 5
SGD_STEP = SGD(lr=0.05, momentum=0.9)
Inputs = dict[str, torch.Tensor]
Case = tuple[nn.Module, Callable[[], Inputs]]


class Labelled(nn.Module):
    """Passes inputs by keyword, as these models want their labels, and returns loss and logits."""

    def __init__(self, model: nn.Module, names: list[str], options: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)
        logits = result.get("logits", result.get("logits_per_image"))
        assert logits is not None, list(result)
        return result.loss, logits


def words(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape)


def text(**more: torch.Tensor) -> Inputs:
    """Two sentences, the second of them shorter; some labels do not count."""
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 6:] = 0
    labels = words(2, 8).masked_fill(mask == 0, -100)
    return {"input_ids": words(2, 8), "attention_mask": mask, "labels": labels} | more


def image(size: int, batch: int = 2) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.arange(batch) % 3}


SMALL = {"vocab_size": 64, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def cast(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs.values())


def eager_steps(
    model: nn.Module, batches: list[tuple[torch.Tensor, ...]]
) -> list[dict[str, torch.Tensor]]:
    """Loss, logits, parameters, buffers and momentum after each step of torch itself."""
    optimizer = to_torch_optimizer(SGD_STEP, [p for p in model.parameters() if p.requires_grad])
    history = []
    for batch in batches:
        optimizer.zero_grad()
        loss, logits = model(*batch)
        loss.backward()
        optimizer.step()
        values = {"loss": loss, "output_0": logits}
        values |= dict(model.named_parameters()) | dict(model.named_buffers())
        for name, parameter in model.named_parameters():
            if parameter in optimizer.state:
                state = optimizer.state[parameter]["momentum_buffer"]
                values[f"{name}.momentum_buffer"] = state
        history.append({name: value.detach().clone() for name, value in values.items()})
    return history


def worst_error(
    actual: list[Mapping[str, Any]], expected: list[dict[str, torch.Tensor]]
) -> tuple[float, str]:
    """The largest relative error of all tensors after all steps, and where it is.

    What is below a millionth of the loss is compared absolutely: in exact arithmetic, the gradient
    of an attention's key bias is zero.
    """
    errors = []
    for number, (results, wanted) in enumerate(zip(actual, expected, strict=True)):
        for name in results:
            if name.startswith(("optimizer.", "random", "rank")):  # learning rate and the like
                continue
            error = relative_error(results[name], wanted[name], name, floor=1e-6)
            errors.append((error, f"{name} after step {number}"))
    return max(errors)


def _like(values: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> Any:
    return {name: value.to(others[name].dtype) for name, value in values.items()}


def check(
    case: Callable[[], Case],
    *,
    float32_inside: bool,
    unused: tuple[str, ...] = (),
    steps: int = STEPS,
    **options: Any,
) -> None:
    """Compare `steps` steps; `options` go to the model's forward.

    `unused` are the parameters that the loss does not depend on, without "model." in front.
    """
    torch.manual_seed(0)
    model, make_inputs = case()
    inputs = [make_inputs() for _ in range(steps)]
    model = Labelled(model.double().train(), list(inputs[0]), options)
    batches = [cast(x, torch.float64) for x in inputs]
    step = training_step(model, batches[0], optimizer=SGD_STEP)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(step.gradient_names) | set(step.unused_parameters) == trained
    assert step.unused_parameters == tuple(f"model.{name}" for name in unused)
    expected = eager_steps(copy.deepcopy(model), batches)
    error, where = worst_error(run_steps(step, batches), expected)
    tolerance = 1e-9
    if float32_inside:
        single = eager_steps(copy.deepcopy(model).float(), [cast(x, torch.float32) for x in inputs])
        tolerance = worst_error(
            [_like(*pair) for pair in zip(single, expected, strict=True)], expected
        )[0]
    assert np.isfinite(error)
    assert error <= tolerance, f"{where}: relative error {error}, allowed {tolerance}"
