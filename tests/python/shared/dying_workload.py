"""The small workload, but rank 1 does not survive its third batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

from small_workload import workload

from disco_fuse.workload import Batch, Workload


def _dying(how: str) -> Workload:
    whole = workload()

    def batches(rank: int, world_size: int) -> Iterator[Batch]:
        for number, batch in enumerate(whole.batches(rank, world_size)):
            if rank == 1 and number == 3:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the disk with the data is gone")
            yield batch

    return replace(whole, batches=batches)


def killed() -> Workload:
    return _dying("killed")


def raising() -> Workload:
    return _dying("raising")
