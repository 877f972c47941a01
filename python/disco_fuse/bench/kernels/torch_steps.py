"""PyTorch's training step, eager and compiled, on one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from disco_fuse.frontend.torch import to_torch_optimizer
from disco_fuse.workload import Batch, Workload


class TorchStep:
    """Loss, backward and optimizer of a workload, as its user would write them.

    Parameters
    ----------
    workload : Workload
    compiled : bool
        Compile loss with backward, and the optimizer, by ``torch.compile``.
    """

    def __init__(self, workload: Workload, *, compiled: bool = False) -> None:
        torch.set_num_threads(1)
        self._model = workload.model
        self._loss = workload.loss
        self._optimizer = to_torch_optimizer(workload.optimizer, self._model.parameters())
        self._forward, self._update = self._loss_of, self._optimizer.step
        if compiled:
            self._forward = torch.compile(self._loss_of)
            self._update = torch.compile(self._optimizer.step)

    def step(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        """Run one step and return the loss."""
        tensors = [torch.from_numpy(np.ascontiguousarray(part)) for part in batch]
        self._optimizer.zero_grad()
        loss = self._forward(*tensors)
        loss.backward()
        self._update()
        return (loss.detach().numpy(),)

    def make_momentum(self) -> None:
        """Make the optimizer's momentum now, as ours is; torch else waits for the first step.

        A momentum of zeros gives the same first step as none. Optimizers without one ignore it.
        """
        for group in self._optimizer.param_groups:
            if group.get("momentum", 0.0):
                for parameter in group["params"]:
                    buffer = torch.full_like(parameter, 0.0, requires_grad=False)
                    self._optimizer.state[parameter]["momentum_buffer"] = buffer

    def _loss_of(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self._loss(self._model(*tensors[:-1]), tensors[-1])
