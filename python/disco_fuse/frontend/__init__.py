"""Front doors: what turns a model into a training step in Relax."""

from __future__ import annotations

from disco_fuse.frontend.optimizer import (
    SGD,
    Adam,
    AdamW,
    ClipGlobalNorm,
    LossScaling,
    Optimizer,
    StateTensor,
)
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.frontend.tvm_adam import RelaxAdam

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "ClipGlobalNorm",
    "LossScaling",
    "Optimizer",
    "RelaxAdam",
    "StateTensor",
    "TrainingStep",
]
