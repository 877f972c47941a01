"""A model small enough to train in a test; the ranks call `workload` too."""

from __future__ import annotations

import torch

from disco_fuse.frontend.optimizer import SGD
from disco_fuse.workload import Workload
from disco_fuse.zoo.byte_gpt import ByteGPT, next_byte_loss, text_batches

CONTEXT = 16


def workload() -> Workload:
    torch.manual_seed(0)
    return Workload(
        name="tiny",
        model=ByteGPT(num_layers=1, width=32, num_heads=2, context=CONTEXT),
        loss=next_byte_loss,
        optimizer=SGD(lr=0.1, momentum=0.9),
        batches=lambda rank, world_size: text_batches(
            batch=2, context=CONTEXT, rank=rank, world_size=world_size
        ),
    )
