"""A session: the gradient buckets of one compiled step on one rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from disco_fuse import _ffi
from disco_fuse.runtime.communicator import Communicator
from disco_fuse.runtime.events import StepEvents


class Session:
    """Buffers and records that a compiled step's start and wait calls use.

    Parameters
    ----------
    communicator
        The ranks to average over; several sessions may share one.
    max_events
        Events of a step that are kept, on each of the two threads (32 bytes each). On a GPU the
        times are the GPU's own.

    Examples
    --------
    >>> session = Session(loopback())
    >>> with session.step():
    ...     loss, *_ = vm["main"](*arguments)
    >>> session.events().overlap()
    """

    def __init__(self, communicator: Communicator, *, max_events: int = 16384) -> None:
        if max_events < 1:
            raise ValueError(f"max_events is {max_events}; allowed: at least 1")
        self.communicator = communicator
        on_device = communicator.device_handle is not None
        self._prefix = "runtime.device_" if on_device else "runtime."
        handle = communicator.device_handle if on_device else communicator.handle
        self._handle = self._function("session")(handle, max_events)
        self._begin_ns = 0

    def _function(self, name: str) -> Any:
        """The C++ function of this kind of session."""
        return _ffi.function(self._prefix + name)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one step inside; its start and wait calls use this session.

        It counts for the calling thread only, which must run the step.

        Raises
        ------
        ValueError
            If a bucket was started but not waited for.
        """
        swap = self._function("swap_current_session")
        self._begin_ns = time.monotonic_ns()
        self._function("begin_step")(self._handle)
        previous = swap(self._handle)
        try:
            yield
            self._function("finish_step")(self._handle)
        finally:
            swap(previous)

    @contextmanager
    def recording_kernels(self, vm: Any) -> Iterator[None]:
        """Record the kernels that the Relax virtual machine `vm` runs inside.

        Costs about half a microsecond a kernel: measure step times without it.
        """
        vm.set_instrument(self._function("record_kernel"))
        try:
            yield
        finally:
            vm.set_instrument(None)

    def events(self) -> StepEvents:
        """The record of the last finished step."""
        rows = np.empty((int(self._function("num_events")(self._handle)), 4), np.int64)
        self._function("copy_events")(self._handle, rows)
        return StepEvents(
            rows=rows,
            kernel_names=tuple(map(str, self._function("kernel_names")(self._handle))),
            num_dropped=int(self._function("num_dropped_events")(self._handle)),
            begin_ns=self._begin_ns,
        )

    def copied_bytes(self) -> dict[int, int]:
        """Bytes that had to be packed in the last step, by bucket.

        0 where every gradient was computed in the bucket's memory, or is the only one of it. On a
        GPU nothing is ever packed: NCCL reduces the gradients where they are, in one launch.
        """
        if self.communicator.device_handle is not None:
            return {}
        copied = _ffi.function("runtime.copied_bytes")(self._handle)
        return {int(bucket): int(num_bytes) for bucket, num_bytes in copied.items()}


def allreduce_start(bucket: int, *arrays: Any) -> None:
    """What a compiled step calls: hand the gradients of `bucket` over. Inside a step only."""
    _ffi.function("runtime.allreduce_start")(bucket, *arrays)


def allreduce_wait(bucket: int, *arrays: Any) -> None:
    """What a compiled step calls: return when `arrays` hold their averages over all ranks."""
    _ffi.function("runtime.allreduce_wait")(bucket, *arrays)
