"""Optimizers that write their update into the training step as plain Relax operators.

One optimizer is one frozen dataclass with the methods of :class:`Optimizer`; what changes the
gradients of another optimizer (:class:`ClipGlobalNorm`) is an optimizer that holds it.
"""

from __future__ import annotations

from disco_fuse.frontend.optimizer.adam import Adam, AdamW
from disco_fuse.frontend.optimizer.base import Optimizer, StateTensor, Trained, Update
from disco_fuse.frontend.optimizer.clip import ClipGlobalNorm
from disco_fuse.frontend.optimizer.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "ClipGlobalNorm",
    "Optimizer",
    "StateTensor",
    "Trained",
    "Update",
]
