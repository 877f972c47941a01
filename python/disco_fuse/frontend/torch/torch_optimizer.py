"""The torch optimizer that does what one of ours does, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
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


_KINDS: dict[type, type[SGD | Adam | AdamW]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: AdamW,
}
# Options of a group of torch's parameters that decide how, and not what, is computed.
_NO_CHANGE = {
    "params",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "decoupled_weight_decay",
    "initial_lr",
}


def from_torch_optimizer(optimizer: torch.optim.Optimizer) -> Optimizer:
    """The optimizer of ours that does what one of torch's does, from its first step on.

    Raises
    ------
    TypeError
        It is of another kind, has several groups of parameters, or an option that ours has not.
    """
    kind, groups = _KINDS.get(type(optimizer)), optimizer.param_groups
    if kind is None or len(groups) != 1:
        raise TypeError(
            f"torch's {type(optimizer).__name__} with {len(groups)} groups of parameters has no "
            "counterpart here; allowed: SGD, Adam, AdamW with one"
        )
    known = {field.name for field in fields(kind)}
    more = [n for n, x in groups[0].items() if n not in known and n not in _NO_CHANGE and x]
    if more:
        raise TypeError(f"{kind.__name__} has no {', '.join(more)} here")
    given = {name: value for name, value in groups[0].items() if name in known}
    return kind(**{**given, "lr": float(given["lr"])})


def _clipped(
    optimizer: ClipGlobalNorm, parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The inner optimizer, which clips the gradients before every step."""
    inner = to_torch_optimizer(optimizer.optimizer, parameters)

    def clip(*_arguments: Any) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, optimizer.max_norm)

    inner.register_step_pre_hook(clip)
    return inner
