"""Adam and AdamW.

Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015); Loshchilov and
Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019). Rounding follows the documented formula
of torch.optim.Adam: epsilon is added after the bias correction of the second moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from disco_fuse.frontend.optimizer.base import (
    LEARNING_RATE,
    SCALAR_DTYPE,
    Scalars,
    StateTensor,
    Trained,
    Update,
    check_not_negative,
    shared_scalar,
)

op = relax.op

_STEP = "step"


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam, step for step that of ``torch.optim.Adam`` (no amsgrad).

        t = t + 1                                  (t starts at 0)
        g = grad + weight_decay * param
        m = beta1 * m + (1 - beta1) * g            (m, v start at 0)
        v = beta2 * v + (1 - beta2) * g * g
        param = param - lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + eps)

    Parameters
    ----------
    lr : float
        Learning rate of the first step; the shared state "learning_rate" holds it.
    betas : pair of float
        Decay of the first and the second moment, from 0 to below 1.
    eps, weight_decay : float
        Not negative; a weight decay of 0 leaves the term out.

    Raises
    ------
    ValueError
        For a value outside these limits.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.betas, self.eps, self.weight_decay)

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The two moments."""
        return _moments(shape, dtype)

    def shared_state(self) -> tuple[StateTensor, ...]:
        """The learning rate and the number of steps made."""
        return (shared_scalar(LEARNING_RATE, self.lr), shared_scalar(_STEP, 0.0))

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update; see the class."""
        if self.weight_decay != 0.0:
            trained = [self._with_decay(builder, one) for one in trained]
        decayed = [one.parameter for one in trained]
        return _emit(builder, trained, decayed, shared, self.betas, self.eps)

    def _with_decay(self, builder: relax.BlockBuilder, one: Trained) -> Trained:
        decay = op.multiply(one.parameter, relax.const(self.weight_decay, one.dtype))
        return one.with_gradient(builder.emit(op.add(one.gradient, decay)))


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW, step for step that of ``torch.optim.AdamW`` (no amsgrad).

    As :class:`Adam` without the term in g; instead the parameter is multiplied by
    ``1 - lr * weight_decay`` before it is changed.

    Parameters
    ----------
    lr, betas, eps, weight_decay
        As in :class:`Adam`; the default weight decay is torch's.

    Raises
    ------
    ValueError
        For a value outside the limits.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        _check(self.lr, self.betas, self.eps, self.weight_decay)

    def state(self, shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
        """The two moments."""
        return _moments(shape, dtype)

    def shared_state(self) -> tuple[StateTensor, ...]:
        """The learning rate and the number of steps made."""
        return (shared_scalar(LEARNING_RATE, self.lr), shared_scalar(_STEP, 0.0))

    def emit(
        self,
        builder: relax.BlockBuilder,
        trained: Sequence[Trained],
        shared: Mapping[str, relax.Expr],
    ) -> Update:
        """Emit one update; see the class."""
        decayed = [one.parameter for one in trained]
        if self.weight_decay != 0.0:
            scalars = Scalars(builder)
            decay = op.multiply(shared[LEARNING_RATE], _scalar(self.weight_decay))
            kept = builder.emit(op.subtract(_scalar(1.0), decay))
            decayed = [
                builder.emit(op.multiply(one.parameter, scalars.cast(kept, one.dtype)))
                for one in trained
            ]
        return _emit(builder, trained, decayed, shared, self.betas, self.eps)


def _check(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, got {betas}")


def _scalar(value: float) -> relax.Expr:
    return relax.const(value, SCALAR_DTYPE)


def _moments(shape: tuple[int, ...], dtype: str) -> tuple[StateTensor, ...]:
    return (
        StateTensor(name="exp_avg", shape=shape, dtype=dtype),
        StateTensor(name="exp_avg_sq", shape=shape, dtype=dtype),
    )


def _emit(
    builder: relax.BlockBuilder,
    trained: Sequence[Trained],
    decayed: Sequence[relax.Expr],
    shared: Mapping[str, relax.Expr],
    betas: tuple[float, float],
    eps: float,
) -> Update:
    """The moments and the change of the `decayed` parameters."""
    one = _scalar(1.0)
    step = builder.emit(op.add(shared[_STEP], one))
    # 1 - beta ** t of both moments, as the size of a step and the root that v is divided by.
    first, second = (op.subtract(one, op.power(_scalar(beta), step)) for beta in betas)
    size = builder.emit(op.divide(shared[LEARNING_RATE], first))
    root = builder.emit(op.sqrt(second))
    scalars = Scalars(builder)
    parameters, states = [], []
    for item, parameter in zip(trained, decayed, strict=True):
        mean, square = _new_moments(builder, item, betas)
        deviation = op.divide(op.sqrt(square), scalars.cast(root, item.dtype))
        divisor = builder.emit(op.add(deviation, relax.const(eps, item.dtype)))
        change = op.multiply(op.divide(mean, divisor), scalars.cast(size, item.dtype))
        parameters.append(builder.emit(op.subtract(parameter, change)))
        states.append({"exp_avg": mean, "exp_avg_sq": square})
    return Update(parameters=tuple(parameters), states=tuple(states), shared={_STEP: step})


def _new_moments(
    builder: relax.BlockBuilder, item: Trained, betas: tuple[float, float]
) -> tuple[relax.Expr, relax.Expr]:
    def mixed(old: relax.Expr, new: relax.Expr, beta: float) -> relax.Expr:
        kept = op.multiply(old, relax.const(beta, item.dtype))
        return builder.emit(op.add(kept, op.multiply(new, relax.const(1.0 - beta, item.dtype))))

    mean = mixed(item.state["exp_avg"], item.gradient, betas[0])
    squared = op.multiply(item.gradient, item.gradient)
    return mean, mixed(item.state["exp_avg_sq"], squared, betas[1])
