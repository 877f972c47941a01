"""Learning-rate schedules: functions of the number of steps already done, from 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]
"""Steps done so far -> learning rate of the next one; the same on every rank, without state."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate for ever.

    Parameters
    ----------
    lr : float
        A finite number >= 0.
    """

    lr: float

    def __post_init__(self) -> None:
        _check_rates(lr=self.lr)

    def __call__(self, step: int) -> float:
        """The rate of the step after `step` others."""
        del step
        return self.lr


@dataclass(frozen=True, kw_only=True)
class LinearWarmup:
    """``then(step) * min(1, (step + 1) / num_steps)``: the first steps are smaller ones.

    Gradual warm-up of P. Goyal et al., "Accurate, large minibatch SGD" (2017), section 2.2. It does
    not delay the schedule behind it.

    Parameters
    ----------
    num_steps : int
        From 1; the full rate is reached by the step of that number.
    then : Schedule
        The rate that is warmed up.
    """

    num_steps: int
    then: Schedule

    def __post_init__(self) -> None:
        _check_length(self.num_steps)

    def __call__(self, step: int) -> float:
        """The rate of the step after `step` others."""
        return self.then(step) * min(1.0, (step + 1) / self.num_steps)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """``final + (lr - final) * (1 + cos(pi * step / num_steps)) / 2``, then `final`.

    Annealing of I. Loshchilov and F. Hutter, "SGDR" (2017), equation 5, without restarts.

    Parameters
    ----------
    lr, final : float
        Rates of the first step and of those from `num_steps` on; finite numbers >= 0.
    num_steps : int
        From 1.
    """

    lr: float
    num_steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(lr=self.lr, final=self.final)
        _check_length(self.num_steps)

    def __call__(self, step: int) -> float:
        """The rate of the step after `step` others."""
        share = min(1.0, step / self.num_steps)
        return self.final + (self.lr - self.final) * 0.5 * (1.0 + math.cos(math.pi * share))


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not (math.isfinite(rate) and rate >= 0.0):
            raise ValueError(f"{name} must be a finite number >= 0, got {rate}")


def _check_length(num_steps: int) -> None:
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
