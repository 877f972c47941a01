"""Small plans to train in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from data_parallel_workloads import network
from numbers_data import Numbers

from disco_fuse.baselines import baseline
from disco_fuse.extract import extract
from disco_fuse.frontend import AdamW
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.target import host_target
from disco_fuse.workload import Workload


def small_workload() -> Workload:
    """All kinds of state: dropout, running statistics, an optimizer with moments and a count."""
    model = network()
    model.insert(1, torch.nn.BatchNorm1d(16))
    model.insert(2, torch.nn.Dropout(0.3))
    return Workload(
        name="small",
        model=model,
        loss=F.mse_loss,
        optimizer=AdamW(lr=0.02, weight_decay=0.1),
        batches=Numbers,
    )


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
