"""PyTorch's DistributedDataParallel (gloo) as more strategies, on the same ranks and batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from disco_fuse.compare.spec import DdpOptions
from disco_fuse.frontend.torch import to_torch_optimizer
from disco_fuse.runtime import Communicator
from disco_fuse.workload import Workload


@contextmanager
def process_group(communicator: Communicator, rendezvous: Path) -> Iterator[None]:
    """PyTorch's process group over gloo.

    Parameters
    ----------
    communicator : Communicator
        Only tells rank and world size; gradients travel by gloo.
    rendezvous : Path
        A file that does not exist yet, the same on all ranks.
    """
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=rendezvous.absolute().as_uri(),
        rank=communicator.rank,
        world_size=communicator.world_size,
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class DdpRunner:
    """Trains a copy of the model of a workload with DDP; inside a :func:`process_group`."""

    def __init__(self, workload: Workload, options: DdpOptions) -> None:
        self._workload = workload
        self._wrapped = DistributedDataParallel(
            copy.deepcopy(workload.model), bucket_cap_mb=options.bucket_cap_mb
        )
        self._model: Any = torch.compile(self._wrapped) if options.compiled else self._wrapped
        self._start()

    def _start(self) -> None:
        """From the workload's weights, with a new optimizer."""
        self._wrapped.module.load_state_dict(self._workload.model.state_dict())
        parameters = self._wrapped.parameters()
        self._optimizer = to_torch_optimizer(self._workload.optimizer, parameters)

    def compile(self, batch: tuple[NDArray[Any], ...]) -> str | None:
        """Let torch compile, by a step that then is undone; why that failed, if it did."""
        try:
            self.step(batch)
        except Exception as error:  # what the compiler raises is the result of this attempt
            return f"{type(error).__name__}: {error}"
        self._start()
        return None

    def step(self, batch: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
        """Run one step and return the loss."""
        tensors = [torch.from_numpy(np.ascontiguousarray(part)) for part in batch]
        self._optimizer.zero_grad()
        loss = self._workload.loss(self._model(*tensors[:-1]), tensors[-1])
        loss.backward()
        self._optimizer.step()
        return (loss.detach().numpy(),)
