"""Workloads whose data-parallel meaning is tested; the ranks call these functions too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from disco_fuse.frontend.optimizer import SGD, AdamW, ClipGlobalNorm, Optimizer
from disco_fuse.workload import Batch, Workload

BATCH = 6


def batches(rank: int, world_size: int) -> Iterator[Batch]:
    """Each rank its share of one stream; the targets grow, so that clipping sets in."""
    rng = np.random.default_rng(7)
    scale = 0.25
    while True:
        x = rng.standard_normal((world_size * BATCH, 12)).astype(np.float32)
        y = rng.standard_normal((world_size * BATCH, 5)).astype(np.float32) * np.float32(scale)
        scale *= 1.5
        own = slice(rank * BATCH, (rank + 1) * BATCH)
        yield x[own], y[own]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)
    )


def _workload(optimizer: Optimizer, model: torch.nn.Module | None = None) -> Workload:
    return Workload(
        name="data_parallel",
        model=model or network(),
        loss=F.mse_loss,
        optimizer=optimizer,
        batches=batches,
    )


def clipped_adamw() -> Workload:
    return _workload(ClipGlobalNorm(optimizer=AdamW(lr=0.02, weight_decay=0.1), max_norm=0.5))


def dropout() -> Workload:
    model = network()
    model.insert(2, torch.nn.Dropout(0.3))
    model.insert(1, torch.nn.Dropout(0.3))
    return _workload(SGD(lr=0.05), model)
