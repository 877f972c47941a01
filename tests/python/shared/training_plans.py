"""Small plans to train in tests, and data whose position can be stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from disco_fuse.baselines import baseline
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.target import host_target
from disco_fuse.workload import Batch, Workload

BATCH = 4


class Numbers(Iterator[Batch]):
    """Batches for a network from 12 to 5 numbers, drawn from a generator of this rank's own."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self._rng = np.random.default_rng([world_size, rank])

    def __next__(self) -> Batch:
        x = self._rng.standard_normal((BATCH, 12)).astype(np.float32)
        return x, np.tanh(x[:, :5]) * np.float32(2.0)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._rng.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state


def write_training_plan(workload: Workload, folder: Path, **options: Any) -> TrainingStep:
    """Import a workload with batches of `Numbers` and write its plan and `values.npz`."""
    example = [torch.from_numpy(part) for part in next(Numbers())]
    step = training_step(
        workload.model, example, loss=workload.loss, optimizer=workload.optimizer, **options
    )
    target = host_target()
    mod = lower(InsertAllReduce()(step.mod), target, library=False)
    extraction = extract(mod)
    write_plan(
        folder,
        name="default",
        model=workload.name,
        mod=mod,
        extraction=extraction,
        strategy=baseline("ddp", mod, extraction),
        target=target,
        world_size=2,
        cost_model={"name": "none", "digest": ""},
        predicted={"makespan_us": 1.0},
        names=(*step.input_names, *step.names),
    )
    np.savez(folder / "values.npz", **dict(step.values))
    return step
