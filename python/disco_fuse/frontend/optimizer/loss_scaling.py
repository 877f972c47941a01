"""Loss scaling: keeps small half-precision gradients from vanishing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import relax

from disco_fuse.frontend.optimizer.base import (
    LOSS_SCALE,
    SCALAR_DTYPE,
    Optimizer,
    Scalars,
    StateTensor,
    Trained,
    Update,
    is_loss_scaled,
    shared_scalar,
)

op = relax.op

_GOOD_STEPS = "good_steps"


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """An optimizer behind a scaled loss, as with ``torch.amp.GradScaler``.

        backward pass of loss_scale * loss; grad = averaged gradient / loss_scale
        all gradients finite:  update; after `growth_interval` such steps in a row,
                               loss_scale *= growth_factor
        otherwise:             parameters and state stay; loss_scale *= backoff_factor

    Overflow is looked for in the averaged gradients: infinities and NaN survive an average, so all
    ranks agree without a message of their own.

    Parameters
    ----------
    optimizer : Optimizer
        What updates the parameters; it may clip, which then acts on unscaled gradients.
    scale : float
        Positive; the scale of the first step.
    dynamic : bool
        Whether the scale changes. Without, an overflow still skips the update.
    growth_factor, backoff_factor : float
        Above 1; between 0 and 1.
    growth_interval : int
        At least 1.

    Raises
    ------
    ValueError
        For a value outside these limits, or an optimizer that scales the loss already.
    """

    optimizer: Optimizer
    scale: float = 65536.0
    dynamic: bool = True
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        limits = {"scale": (0.0, math.inf), "growth_factor": (1.0, math.inf)}
        limits |= {"backoff_factor": (0.0, 1.0)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low < value < high:
                raise ValueError(f"{name} must be above {low} and below {high}, got {value}")
        if self.growth_interval < 1:
            raise ValueError(f"growth_interval must be at least 1, got {self.growth_interval}")
        if is_loss_scaled(self.optimizer):
            raise ValueError(f"the loss is scaled twice: {self.optimizer}")

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """That of the optimizer."""
        return self.optimizer.state(shape, dtype)

    def shared_state(self) -> tuple[StateTensor, ...]:
        """That of the optimizer, the scale, and how many steps went well since it changed."""
        own = [shared_scalar(LOSS_SCALE, self.scale)]
        if self.dynamic:
            own.append(shared_scalar(_GOOD_STEPS, 0.0))
        return (*self.optimizer.shared_state(), *own)

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update; see the class."""
        finite = _all_finite(builder, [one.gradient for one in trained])
        inverse = builder.emit(op.divide(_scalar(1.0), shared[LOSS_SCALE]))
        scalars = Scalars(builder)
        unscaled = [
            one.with_gradient(
                builder.emit(op.multiply(one.gradient, scalars.cast(inverse, one.dtype)))
            )
            for one in trained
        ]
        update = self.optimizer.emit(builder, unscaled, shared)

        def kept(new: relax.Expr, old: relax.Expr) -> relax.Expr:
            return builder.emit(op.where(finite, new, old))

        new_shared = {name: kept(new, shared[name]) for name, new in update.shared.items()}
        if self.dynamic:
            new_shared |= self._new_scale(builder, finite, shared)
        return Update(
            parameters=tuple(
                kept(new, one.parameter)
                for new, one in zip(update.parameters, trained, strict=True)
            ),
            states=tuple(
                {name: kept(value, one.state[name]) for name, value in new.items()}
                for new, one in zip(update.states, trained, strict=True)
            ),
            shared=new_shared,
        )

    def _new_scale(
        self, builder: relax.BlockBuilder, finite: relax.Expr, shared: Mapping[str, relax.Expr]
    ) -> dict[str, relax.Expr]:
        scale = shared[LOSS_SCALE]
        steps = builder.emit(op.add(shared[_GOOD_STEPS], _scalar(1.0)))
        grows = builder.emit(op.greater_equal(steps, _scalar(float(self.growth_interval))))
        grown = op.where(grows, op.multiply(scale, _scalar(self.growth_factor)), scale)
        shrunk = op.multiply(scale, _scalar(self.backoff_factor))
        counted = op.where(grows, _scalar(0.0), steps)
        return {
            LOSS_SCALE: builder.emit(op.where(finite, grown, shrunk)),
            _GOOD_STEPS: builder.emit(op.where(finite, counted, _scalar(0.0))),
        }


def _all_finite(builder: relax.BlockBuilder, tensors: Sequence[relax.Expr]) -> relax.Expr:
    """A bool scalar: no tensor holds an infinity or NaN."""
    flags = [builder.emit(op.min(op.astype(op.isfinite(tensor), "float32"))) for tensor in tensors]
    least = reduce(lambda a, b: builder.emit(op.minimum(a, b)), flags)
    return builder.emit(op.greater(least, relax.const(0.5, "float32")))


def _scalar(value: float) -> relax.Expr:
    return relax.const(value, SCALAR_DTYPE)
