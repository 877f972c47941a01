"""Training: a loop over batches with a schedule, checkpoints and clean ends on all ranks."""

from __future__ import annotations

from disco_fuse.trainer.checkpoint import Checkpoints, Restored
from disco_fuse.trainer.events import EventLog
from disco_fuse.trainer.loop import Trainer, TrainingResult
from disco_fuse.trainer.schedule import Constant, Cosine, LinearWarmup, Schedule

__all__ = [
    "Checkpoints",
    "Constant",
    "Cosine",
    "EventLog",
    "LinearWarmup",
    "Restored",
    "Schedule",
    "Trainer",
    "TrainingResult",
]
