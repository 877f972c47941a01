"""Workloads whose data-parallel meaning is tested; the ranks call these functions too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from disco_fuse.frontend.optimizer import SGD, AdamW, ClipGlobalNorm, LossScaling, Optimizer
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


def overflowing_batches(rank: int, world_size: int) -> Iterator[Batch]:
    """The last rank's third batch holds an infinity."""
    for step, (x, y) in enumerate(batches(rank, world_size)):
        spoiled = step == 2 and rank == world_size - 1
        yield (x * np.float32(np.inf) if spoiled else x), y


def overflowing() -> Workload:
    optimizer = LossScaling(optimizer=SGD(lr=0.05, momentum=0.9), scale=16.0, growth_interval=3)
    return replace(_workload(optimizer), batches=overflowing_batches)


def normalised() -> Workload:
    model = network()
    model.insert(1, torch.nn.BatchNorm1d(16))
    return _workload(SGD(lr=0.05), model)


class Masked(torch.nn.Module):
    """Mean error of the real samples of a padded batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, x: torch.Tensor, y: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        errors = ((self.model(x) - y) ** 2).mean(1) * real
        return errors.sum() / real.sum()


def padded_batches(rank: int, world_size: int) -> Iterator[Batch]:
    """Ranks with different numbers of real samples; the last input is their number."""
    for x, y in batches(rank, world_size):
        real = (np.arange(BATCH) < BATCH - 4 * rank).astype(np.float32)
        yield x, y, real, real.sum(keepdims=True)


def padded() -> Workload:
    optimizer = ClipGlobalNorm(optimizer=AdamW(lr=0.02), max_norm=0.5)
    return replace(_workload(optimizer, Masked()), batches=padded_batches)
