"""Clipping of all gradients by their global norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import relax

from disco_fuse.frontend.optimizer.base import (
    SCALAR_DTYPE,
    Optimizer,
    Scalars,
    StateTensor,
    Trained,
    Update,
    is_loss_scaled,
)

op = relax.op

# Of torch.nn.utils.clip_grad_norm_.
_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class ClipGlobalNorm:
    """An optimizer whose gradients are clipped as by ``torch.nn.utils.clip_grad_norm_``.

        norm = sqrt(sum of the squares of all elements of all averaged gradients)
        grad = grad * min(1, max_norm / (norm + 1e-6))

    Parameters
    ----------
    optimizer : Optimizer
        What updates the parameters.
    max_norm : float
        Positive.

    Raises
    ------
    ValueError
        If max_norm is not a positive number, or the optimizer scales the loss.
    """

    optimizer: Optimizer
    max_norm: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.max_norm) and self.max_norm > 0.0):
            raise ValueError(f"max_norm must be a finite number > 0, got {self.max_norm}")
        if is_loss_scaled(self.optimizer):
            raise ValueError(
                "clipping scaled gradients is a mistake: let LossScaling hold ClipGlobalNorm, got "
                f"ClipGlobalNorm of {self.optimizer}"
            )

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """That of the optimizer."""
        return self.optimizer.state(shape, dtype)

    def shared_state(self) -> tuple[StateTensor, ...]:
        """That of the optimizer."""
        return self.optimizer.shared_state()

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update; see the class."""
        scalars = Scalars(builder)
        squares = []
        for one in trained:
            square = builder.emit(op.sum(op.multiply(one.gradient, one.gradient)))
            squares.append(builder.emit(op.astype(square, SCALAR_DTYPE))
                           if one.dtype != SCALAR_DTYPE else square)  # fmt: skip
        total = reduce(lambda a, b: builder.emit(op.add(a, b)), squares)
        norm = op.add(op.sqrt(total), relax.const(_EPSILON, SCALAR_DTYPE))
        ratio = op.divide(relax.const(self.max_norm, SCALAR_DTYPE), norm)
        factor = builder.emit(op.minimum(ratio, relax.const(1.0, SCALAR_DTYPE)))
        clipped = [
            one.with_gradient(
                builder.emit(op.multiply(one.gradient, scalars.cast(factor, one.dtype)))
            )
            for one in trained
        ]
        return self.optimizer.emit(builder, clipped, shared)
