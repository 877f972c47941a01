"""What a training step needs from an optimizer, and what optimizers share.

An optimizer sees all parameters at once, with their averaged gradients, since a global norm or an
overflow concerns all of them. Its numbers that change between steps (learning rate, step count)
are shared state: float64 scalars that are arguments of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from tvm import relax

op = relax.op

LEARNING_RATE = "learning_rate"
LOSS_SCALE = "loss_scale"
# Shared scalars are computed once a step, so they cost nothing in the precision of Python's floats,
# which is that of torch's optimizers; 1 - 0.999 ** step in float32 would be off by 1e-5.
SCALAR_DTYPE = "float64"


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """One state tensor, filled with `value` before the first step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: float = 0.0

    def initial(self) -> npt.NDArray[Any]:
        """The value before the first step."""
        if self.value == 0:
            # Pages of zeros take no memory before they are written; for Adam that is two models.
            return np.zeros(self.shape, self.dtype)
        return np.full(self.shape, self.value, self.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """One parameter in an update.

    Attributes
    ----------
    parameter, gradient : relax.Expr
        Of equal shape and dtype.
    state : mapping
        Name to variable, for every tensor of :meth:`Optimizer.state`.
    """

    parameter: relax.Expr
    gradient: relax.Expr
    state: Mapping[str, relax.Expr]

    @property
    def dtype(self) -> str:
        """Dtype of parameter and gradient."""
        return str(self.gradient.ty.dtype.dtype)

    def with_gradient(self, gradient: relax.Expr) -> Trained:
        """The same with another gradient."""
        return replace(self, gradient=gradient)


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """New values: parameters and states in the order of what was trained, and shared state.

    Shared state that is absent stays as it is.
    """

    parameters: tuple[relax.Expr, ...]
    states: tuple[Mapping[str, relax.Expr], ...]
    shared: Mapping[str, relax.Expr]


@runtime_checkable
class Optimizer(Protocol):
    """What a training step needs from an optimizer."""

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The state tensors that a parameter of this shape and dtype needs, in a fixed order."""
        ...

    def shared_state(self) -> tuple[StateTensor, ...]:
        """The state that there is once, in a fixed order.

        "learning_rate" is one of it. If "loss_scale" is, the backward pass starts from the loss
        times that.
        """
        ...

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update of all parameters.

        Parameters
        ----------
        builder : relax.BlockBuilder
            Inside a dataflow block.
        trained : sequence of Trained
            Every trained parameter; float16 ones arrive in float32.
        shared : mapping
            Name to variable, for every tensor of :meth:`shared_state`.
        """
        ...


def is_loss_scaled(optimizer: Optimizer) -> bool:
    """Whether the backward pass starts from the loss times the shared state "loss_scale"."""
    return any(state.name == LOSS_SCALE for state in optimizer.shared_state())


class Scalars:
    """Shared scalars in the dtype of who reads them, each cast once.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where casts are emitted.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._casts: dict[tuple[relax.Expr, str], relax.Expr] = {}

    def cast(self, scalar: relax.Expr, dtype: str) -> relax.Expr:
        """The scalar in the given dtype."""
        if str(scalar.ty.dtype.dtype) == dtype:
            return scalar
        if (scalar, dtype) not in self._casts:
            self._casts[scalar, dtype] = self._builder.emit(op.astype(scalar, dtype))
        return self._casts[scalar, dtype]


def shared_scalar(name: str, value: float) -> StateTensor:
    """A shared scalar with its value before the first step."""
    return StateTensor(name=name, shape=(), dtype=SCALAR_DTYPE, value=value)


def check_not_negative(**values: float) -> None:
    """ValueError for a value that is no finite number >= 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0.0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")
