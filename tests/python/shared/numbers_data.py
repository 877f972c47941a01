"""Batches whose position can be stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from disco_fuse.workload import Batch

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


def slow_numbers(rank: int, world_size: int) -> Iterator[Batch]:
    """For ``disco-fuse run``: one batch every 20 ms."""

    for batch in Numbers(rank, world_size):
        time.sleep(0.02)
        yield batch


def spoiled_numbers(rank: int, world_size: int) -> Iterator[Batch]:
    """For ``disco-fuse run``: the last rank's second batch holds a NaN."""
    for number, (x, y) in enumerate(Numbers(rank, world_size)):
        wrong = number == 1 and rank == world_size - 1
        yield (x * np.float32(np.nan) if wrong else x), y
