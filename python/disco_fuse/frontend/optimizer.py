"""Optimizers that write their update into the training step as plain Relax operators.

An optimizer is a frozen dataclass with the two methods of :class:`Optimizer`; another one is
another class. It sees one parameter at a time and keeps its state in named tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tvm import relax

op = relax.op


@dataclass(frozen=True, kw_only=True)
class StateTensor:
    """One state tensor of one parameter, filled with `value` before the first step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: float = 0.0

    def initial(self) -> npt.NDArray[Any]:
        """The value before the first step."""
        return np.full(self.shape, self.value, self.dtype)


class Optimizer(Protocol):
    """What a training step needs from an optimizer."""

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The state tensors that a parameter of this shape and dtype needs, in a fixed order."""
        ...

    def emit(
        self,
        builder: relax.BlockBuilder,
        param: relax.Var,
        grad: relax.Var,
        state: Mapping[str, relax.Var],
    ) -> tuple[relax.Var, dict[str, relax.Var]]:
        """Emit one update.

        Parameters
        ----------
        builder : relax.BlockBuilder
            Inside a dataflow block.
        param, grad : relax.Var
            Parameter and its gradient, of equal shape and dtype.
        state : mapping
            Name to variable, for every tensor of :meth:`state`.

        Returns
        -------
        tuple
            The new parameter, and the new state under the same names.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent, step for step that of ``torch.optim.SGD`` (dampening 0).

        g = grad + weight_decay * param
        b = momentum * b + g                      (b starts at 0)
        param = param - lr * (g + momentum * b if nesterov else b)

    Parameters
    ----------
    lr : float
        Learning rate, a constant of the compiled step.
    momentum, weight_decay : float
        Not negative; 0 leaves the term out.
    nesterov : bool
        Needs momentum.

    Raises
    ------
    ValueError
        For a value outside these limits.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if not (0.0 <= value < float("inf")):
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs momentum > 0, got momentum=0.0")

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The momentum buffer, if there is momentum."""
        if self.momentum == 0.0:
            return ()
        return (StateTensor(name="momentum_buffer", shape=shape, dtype=dtype),)

    def emit(
        self,
        builder: relax.BlockBuilder,
        param: relax.Var,
        grad: relax.Var,
        state: Mapping[str, relax.Var],
    ) -> tuple[relax.Var, dict[str, relax.Var]]:
        """Emit one update; see the class."""
        dtype = str(param.ty.dtype.dtype)

        def scaled(factor: float, tensor: relax.Var) -> relax.Var:
            return builder.emit(op.multiply(tensor, relax.const(factor, dtype)))

        direction, new_state = grad, {}
        if self.weight_decay != 0.0:
            direction = builder.emit(op.add(direction, scaled(self.weight_decay, param)))
        if self.momentum != 0.0:
            kept = scaled(self.momentum, state["momentum_buffer"])
            buffer = builder.emit(op.add(kept, direction))
            new_state["momentum_buffer"] = buffer
            direction = (
                builder.emit(op.add(direction, scaled(self.momentum, buffer)))
                if self.nesterov
                else buffer
            )
        return builder.emit(op.subtract(param, scaled(self.lr, direction))), new_state
