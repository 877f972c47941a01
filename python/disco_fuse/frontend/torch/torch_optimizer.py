"""The torch optimizer that does what one of ours does."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from disco_fuse.frontend.optimizer import SGD, Optimizer


def to_torch_optimizer(
    optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The same optimizer in torch, over ``parameters``.

    Raises
    ------
    TypeError
        The optimizer has no counterpart here.
    """
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(
            parameters,
            lr=optimizer.lr,
            momentum=optimizer.momentum,
            weight_decay=optimizer.weight_decay,
            nesterov=optimizer.nesterov,
        )
    raise TypeError(f"{type(optimizer).__name__} has no counterpart in torch here; allowed: SGD")
