"""The torch optimizer that does what one of ours does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from disco_fuse.frontend.optimizer import SGD, Adam, AdamW, ClipGlobalNorm, Optimizer


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
    if isinstance(optimizer, Adam | AdamW):
        kind = torch.optim.Adam if isinstance(optimizer, Adam) else torch.optim.AdamW
        return kind(
            parameters,
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
    if isinstance(optimizer, ClipGlobalNorm):
        return _clipped(optimizer, list(parameters))
    raise TypeError(
        f"{type(optimizer).__name__} has no counterpart in torch here; allowed: SGD, Adam, AdamW, "
        "ClipGlobalNorm"
    )


def _clipped(
    optimizer: ClipGlobalNorm, parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The inner optimizer, which clips the gradients before every step."""
    inner = to_torch_optimizer(optimizer.optimizer, parameters)

    def clip(*_arguments: Any) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, optimizer.max_norm)

    inner.register_step_pre_hook(clip)
    return inner
