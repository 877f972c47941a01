"""Communication of a compiled training step: communicators, sessions and their records."""

from __future__ import annotations

from disco_fuse.runtime.clock import ClockOffset
from disco_fuse.runtime.communicator import Communicator, loopback, mpi
from disco_fuse.runtime.events import EventKind, StepEvents
from disco_fuse.runtime.guards import abort_on_error, check_same, on_all_ranks
from disco_fuse.runtime.measure import (
    MessageCost,
    measure_allreduce,
    measure_beside_compute,
    outlasting,
    time_alone,
    time_beside,
)
from disco_fuse.runtime.nccl import nccl
from disco_fuse.runtime.session import Session

__all__ = [
    "ClockOffset",
    "Communicator",
    "EventKind",
    "MessageCost",
    "Session",
    "StepEvents",
    "abort_on_error",
    "check_same",
    "loopback",
    "measure_allreduce",
    "measure_beside_compute",
    "mpi",
    "nccl",
    "on_all_ranks",
    "outlasting",
    "time_alone",
    "time_beside",
]
