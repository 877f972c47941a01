"""Optimizers that write their update into the training step as plain Relax operators.

One optimizer is one frozen dataclass with the methods of :class:`Optimizer`; what changes the
gradients of another optimizer is an optimizer that holds it: ``LossScaling(optimizer=
ClipGlobalNorm(optimizer=AdamW(), max_norm=1.0))``.
"""

from __future__ import annotations

from disco_fuse.frontend.optimizer.adam import Adam, AdamW
from disco_fuse.frontend.optimizer.base import (
    LOSS_SCALE,
    Optimizer,
    Scalars,
    StateTensor,
    Trained,
    Update,
    is_loss_scaled,
)
from disco_fuse.frontend.optimizer.clip import ClipGlobalNorm
from disco_fuse.frontend.optimizer.loss_scaling import LossScaling
from disco_fuse.frontend.optimizer.sgd import SGD

__all__ = [
    "LOSS_SCALE",
    "SGD",
    "Adam",
    "AdamW",
    "ClipGlobalNorm",
    "LossScaling",
    "Optimizer",
    "Scalars",
    "StateTensor",
    "Trained",
    "Update",
    "is_loss_scaled",
]
