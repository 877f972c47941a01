"""What the models of the zoo share: seeded weights, an optimizer, and random batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
from torch import nn

from disco_fuse.frontend.optimizer import SGD
from disco_fuse.workload import Batch, Workload

Batches = Callable[[int, int], Iterator[Batch]]

# cross_entropy skips targets of this value.
IGNORED = -100


def define(
    name: str,
    build: Callable[[], nn.Module],
    batches: Batches,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Workload:
    """A workload whose weights are the same on every call; torch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().train()
    return Workload(
        name=name,
        model=model,
        loss=loss,
        optimizer=SGD(lr=0.01, momentum=0.9),
        batches=batches,
    )


def images(*, batch: int, size: int, classes: int) -> Batches:
    """Batches of normal images, float32 [batch, 3, size, size], and classes, int64 [batch]."""

    def batches(rank: int, _world_size: int) -> Iterator[Batch]:
        generator = np.random.default_rng(rank)
        while True:
            pixels = generator.standard_normal((batch, 3, size, size), np.float32)
            yield pixels, generator.integers(classes, size=batch)

    return batches


def next_tokens(*, batch: int, time: int, vocab: int) -> Batches:
    """Batches of random tokens and the tokens one position later, both int64 [batch, time]."""

    def batches(rank: int, _world_size: int) -> Iterator[Batch]:
        generator = np.random.default_rng(rank)
        while True:
            tokens = generator.integers(vocab, size=(batch, time + 1))
            yield tokens[:, :-1].copy(), tokens[:, 1:].copy()

    return batches


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of logits [batch, time, vocab] for targets [batch, time], in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
