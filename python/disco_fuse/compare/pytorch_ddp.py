"""PyTorch's DistributedDataParallel (gloo) as one more strategy, on the same ranks and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from disco_fuse.frontend.torch import to_torch_optimizer
from disco_fuse.runtime import Communicator
from disco_fuse.workload import Workload


class DdpRunner:
    """Trains the model of a workload with DDP at its defaults.

    Parameters
    ----------
    workload : Workload
    communicator : Communicator
        Only tells rank and world size; gradients travel by gloo.
    rendezvous : Path
        A file that does not exist yet, the same on all ranks.
    """

    def __init__(self, workload: Workload, communicator: Communicator, rendezvous: Path) -> None:
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=rendezvous.absolute().as_uri(),
            rank=communicator.rank,
            world_size=communicator.world_size,
        )
        self._model = DistributedDataParallel(workload.model)
        self._loss = workload.loss
        self._optimizer = to_torch_optimizer(workload.optimizer, self._model.parameters())

    def step(self, batch: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
        """Run one step and return the loss."""
        tensors = [torch.from_numpy(np.ascontiguousarray(part)) for part in batch]
        self._optimizer.zero_grad()
        loss = self._loss(self._model(*tensors[:-1]), tensors[-1])
        loss.backward()
        self._optimizer.step()
        return (loss.detach().numpy(),)

    def close(self) -> None:
        """Leave the process group."""
        torch.distributed.destroy_process_group()
