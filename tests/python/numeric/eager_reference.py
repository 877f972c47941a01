"""Runs a training step on the CPU and compares it, step by step, with eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import tvm
from tvm import relax

from disco_fuse.frontend import SGD, Optimizer, TrainingStep
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.frontend.torch.constants import to_numpy

Batch = tuple[torch.Tensor, ...]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def compile_main(mod: tvm.IRModule) -> Callable[..., list[npt.NDArray[Any]]]:
    """The module's main as a function of numpy arrays; plain legalised kernels, no schedule."""
    legal = relax.transform.LegalizeOps()(mod)
    machine = relax.VirtualMachine(tvm.compile(legal, target="llvm"), tvm.cpu())

    def run(*arrays: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        result = machine["main"](*(tvm.runtime.tensor(a) for a in arrays))
        return [tensor.numpy() for tensor in result]

    return run


def run_steps(step: TrainingStep, batches: Sequence[Batch]) -> list[dict[str, npt.NDArray[Any]]]:
    """Results of consecutive steps by name; every step starts from the values before it."""
    main = compile_main(step.mod)
    values = list(step.initial_values())
    history = []
    for batch in batches:
        outputs = main(*(to_numpy(x) for x in batch), *values)
        for parameter, output in step.donated.items():
            values[parameter - len(step.input_names)] = outputs[output]
        history.append(dict(zip(step.output_names, outputs, strict=True)))
        history[-1] |= dict(zip(step.names, values, strict=True))
    return history


def relative_error(actual: Any, expected: Any, name: str, floor: float = 1e-3) -> float:
    """Largest difference relative to the largest expected value, or to `floor` if that is more."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, name
    assert actual.dtype == expected.dtype, name
    assert np.isfinite(actual).all(), name
    if actual.dtype == bool:
        actual, expected = actual.astype(int), expected.astype(int)
    scale = max(float(np.abs(expected).max(initial=0.0)), floor)
    return float(np.abs(actual - expected).max(initial=0.0)) / scale


def assert_close(actual: Any, expected: Any, name: str, tolerance: float = 1e-9) -> None:
    """Shape, dtype and values, the latter to a relative error."""
    error = relative_error(actual, expected, name)
    assert error <= tolerance, f"{name}: relative error {error}"


def check_against_eager(
    model: torch.nn.Module,
    batches: Sequence[Batch],
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    tolerance: float = 1e-9,
) -> TrainingStep:
    """Compare loss, weights, buffers and optimizer state after every step; weights in float64."""
    ours = optimizer or SGD(lr=0.05, momentum=0.9)
    reference = copy.deepcopy(model)
    step = training_step(model, batches[0], loss=loss, optimizer=ours)
    theirs = to_torch_optimizer(ours, [p for p in reference.parameters() if p.requires_grad])
    for number, (batch, results) in enumerate(zip(batches, run_steps(step, batches), strict=True)):
        theirs.zero_grad()
        value = loss(reference(*batch[:-1]), batch[-1]) if loss else reference(*batch)
        value = value[0] if isinstance(value, tuple) else value
        value.backward()
        theirs.step()
        assert_close(results["loss"], value.detach(), f"loss of step {number}", tolerance)
        tensors = dict(reference.named_parameters()) | dict(reference.named_buffers())
        for name in (*step.parameter_names, *step.buffer_names):
            expected = tensors[name].detach()
            assert_close(results[name], expected, f"{name} after step {number}", tolerance)
        for name in step.state_names:
            parameter, _, state = name.rpartition(".")
            if parameter not in tensors:  # there once, for the whole optimizer
                continue
            expected = theirs.state[tensors[parameter]][state]
            assert_close(results[name], expected, f"{name} after step {number}", tolerance)
    return step
