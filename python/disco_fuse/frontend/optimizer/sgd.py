"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from disco_fuse.frontend.optimizer.base import (
    LEARNING_RATE,
    Scalars,
    StateTensor,
    Trained,
    Update,
    check_not_negative,
    shared_scalar,
)

op = relax.op


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent, step for step that of ``torch.optim.SGD`` (dampening 0).

        g = grad + weight_decay * param
        b = momentum * b + g                      (b starts at 0)
        param = param - lr * (g + momentum * b if nesterov else b)

    Parameters
    ----------
    lr : float
        Learning rate of the first step; the shared state "learning_rate" holds it.
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
        check_not_negative(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs momentum > 0, got momentum=0.0")

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The momentum buffer, if there is momentum."""
        if self.momentum == 0.0:
            return ()
        return (StateTensor(name="momentum_buffer", shape=shape, dtype=dtype),)

    def shared_state(self) -> tuple[StateTensor, ...]:
        """The learning rate."""
        return (shared_scalar(LEARNING_RATE, self.lr),)

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update; see the class."""
        scalars = Scalars(builder)
        results = [
            self._emit_one(builder, one, scalars.cast(shared[LEARNING_RATE], one.dtype))
            for one in trained
        ]
        return Update(
            parameters=tuple(parameter for parameter, _ in results),
            states=tuple(state for _, state in results),
            shared={},
        )

    def _emit_one(
        self, builder: relax.BlockBuilder, one: Trained, lr: relax.Expr
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        def scaled(factor: float, tensor: relax.Expr) -> relax.Expr:
            return builder.emit(op.multiply(tensor, relax.const(factor, one.dtype)))

        direction, new_state = one.gradient, {}
        if self.weight_decay != 0.0:
            direction = builder.emit(op.add(direction, scaled(self.weight_decay, one.parameter)))
        if self.momentum != 0.0:
            kept = scaled(self.momentum, one.state["momentum_buffer"])
            buffer = builder.emit(op.add(kept, direction))
            new_state["momentum_buffer"] = buffer
            direction = (
                builder.emit(op.add(direction, scaled(self.momentum, buffer)))
                if self.nesterov
                else buffer
            )
        change = builder.emit(op.multiply(direction, lr))
        return builder.emit(op.subtract(one.parameter, change)), new_state
