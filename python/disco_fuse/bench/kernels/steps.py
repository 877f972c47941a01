"""Times the steps of all sides in one process, one step of each in turn, on one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from disco_fuse.bench.kernels.plans import DISCO_FUSE, FUSE_OPS, UNFUSED, VALUES_FILE
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.workload import load_workload

TORCH_EAGER, TORCH_COMPILE = "torch_eager", "torch_compile"
SIDES = (DISCO_FUSE, UNFUSED, FUSE_OPS, TORCH_EAGER, TORCH_COMPILE)
LOSS_TOLERANCE = 1e-3
# Of these steps: the second loss shows the first update. Rounding grows from step to step where
# training is not stable; torch.compile's loss of ResNet18 is 2% from eager PyTorch's after twelve.
CHECKED_STEPS = 4
NUM_WARMUP = 2


class Step(Protocol):
    """What trains by one side."""

    def step(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """One step; the first result is the loss."""


def measure_steps(
    reference: str, folder: str, rounds: int, time_limit_s: float, with_compile: bool
) -> dict[str, Any]:
    """Measure every side of the model whose plans lie in ``folder``; for a process of its own.

    A noisy moment of the machine so hits all sides alike. Each trains its own copy of the state
    on the same batches.

    Parameters
    ----------
    rounds : int
        Measured steps of each side, after 2 that do not count.
    time_limit_s : float
        No round begins after it, but the first, counted from the first measured round.
    with_compile : bool
        Measure ``torch.compile`` as well.

    Returns
    -------
    dict
        ``times_ms``, ``cpu_ms`` (processor time of the process) and ``losses`` (side -> values),
        and ``failed`` (side -> reason) for a ``torch.compile`` that raised.
    """
    steps: dict[str, Step] = dict(_our_steps(Path(folder)))
    steps[TORCH_EAGER] = _torch_step(reference, compiled=False)
    if with_compile:
        steps[TORCH_COMPILE] = _torch_step(reference, compiled=True)
    batches = load_workload(reference).batches(0, 1)
    records = {name: _Record() for name in steps}
    failed: dict[str, str] = {}
    end = math.inf
    for number in range(NUM_WARMUP + rounds):
        if number == NUM_WARMUP:
            end = time.perf_counter() + time_limit_s
        elif time.perf_counter() > end:
            break
        batch = next(batches)
        order = list(steps)
        # Another side goes first each time: none always runs in the caches of the same other.
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            try:
                records[name].add(steps[name], batch)
            except Exception as error:
                # Compilers of others may raise anything, in the first step; ours must not fail.
                if name != TORCH_COMPILE or number > 0:
                    raise
                failed[name] = f"{type(error).__name__}: {error}"[:500]
                del steps[name]
    return {
        "times_ms": {name: records[name].times_ms[NUM_WARMUP:] for name in steps},
        "cpu_ms": {name: records[name].cpu_ms[NUM_WARMUP:] for name in steps},
        "losses": {name: records[name].losses for name in steps},
        "failed": failed,
    }


@dataclass(kw_only=True)
class _Record:
    """What one side did, step by step."""

    times_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, step: Step, batch: Any) -> None:
        """Time one step."""
        begin, cpu_begin = time.perf_counter(), time.process_time()
        loss = step.step(batch)[0]
        self.times_ms.append((time.perf_counter() - begin) * 1e3)
        self.cpu_ms.append((time.process_time() - cpu_begin) * 1e3)
        self.losses.append(float(loss))


def wrong_losses(losses: Mapping[str, Sequence[float]]) -> list[str]:
    """Sentences about our sides whose losses are not PyTorch's, or not finite.

    A fast step that computes something else is worth nothing.
    """
    expected = losses[TORCH_EAGER]
    problems = []
    for name in (DISCO_FUSE, UNFUSED, FUSE_OPS):
        for number, (loss, want) in enumerate(zip(losses[name], expected, strict=True)):
            allowed = LOSS_TOLERANCE * abs(want) if number < CHECKED_STEPS else math.inf
            if not math.isfinite(loss) or abs(loss - want) > allowed:
                problems.append(
                    f"loss of {name} in step {number + 1} is {loss:.6f}, but PyTorch has "
                    f"{want:.6f} (allowed: {LOSS_TOLERANCE:g} relative)"
                )
                break
    return problems


def step_of(side: str, reference: str, folder: Path) -> Step:
    """The step of one side; that of PyTorch has its momentum."""
    if side in (TORCH_EAGER, TORCH_COMPILE):
        torch_step = _torch_step(reference, compiled=side == TORCH_COMPILE)
        torch_step.make_momentum()
        result: Step = torch_step
        return result
    with np.load(folder / VALUES_FILE) as file:
        return StepRunner(folder / side, loopback(), dict(file))


def _our_steps(folder: Path) -> dict[str, StepRunner]:
    with np.load(folder / VALUES_FILE) as file:
        values = dict(file)
    communicator = loopback()
    return {
        name: StepRunner(folder / name, communicator, values)
        for name in (DISCO_FUSE, UNFUSED, FUSE_OPS)
    }


def _torch_step(reference: str, *, compiled: bool) -> Any:
    # Needs torch, which the rest of this file does without.
    from disco_fuse.bench.kernels.torch_steps import TorchStep

    return TorchStep(load_workload(reference), compiled=compiled)
