"""Communicators: all ranks of one job, behind one class whatever carries the messages."""

from __future__ import annotations

import math
import pickle
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from disco_fuse import _ffi
from disco_fuse.runtime.clock import ClockOffset, measure_offset
from disco_fuse.runtime.control import ControlChannel
from disco_fuse.runtime.topology import host_groups

DEFAULT_TIMEOUT_S = 300.0


class Communicator:
    """The ranks of one job and the thread that moves their gradients.

    Create one with :func:`loopback`, :func:`mpi` or :func:`disco_fuse.runtime.nccl`. All ranks make
    the same calls in the same order. After a failed AllReduce or broadcast every later one fails
    too.

    Parameters
    ----------
    handle
        The C++ communicator.
    control
        For everything but gradients, or None for the only rank of a job.
    gradients
        The mpi4py communicator that `handle` uses: kept so that it stays valid.
    """

    def __init__(
        self, handle: Any, control: ControlChannel | None = None, gradients: Any | None = None
    ) -> None:
        self._handle = handle
        self._control = control
        self._gradients = gradients
        self.rank: int = 0 if control is None else control.rank
        self.world_size: int = 1 if control is None else control.world_size
        # Also runs at interpreter exit, before mpi4py finalises MPI: the thread must be gone then.
        self._close = weakref.finalize(self, _close, handle, control)

        self._device_handle: Any | None = None
        self.device: int | None = None
        """The GPU of this rank if gradients travel between GPUs, else None."""

    def on_device(self, handle: Any, device: int) -> None:
        """Send gradients by the C++ NCCL communicator `handle` from now on, from GPU `device`."""
        self._device_handle, self.device = handle, device

    @property
    def device_handle(self) -> Any:
        """The C++ NCCL communicator, or None."""
        return self._device_handle

    @property
    def handle(self) -> Any:
        """The C++ communicator between hosts."""
        return self._handle

    def close(self) -> None:
        """End the communication thread; a collective under way fails. Idempotent.

        The other ranks are told: if they wait for this one later, they fail instead.
        """
        self._close()

    def barrier(self, what: str = "a barrier") -> None:
        """Return when every rank has called this; errors are those of :meth:`allgather`."""
        if self._control is not None:
            self._control.exchange(b"", what)

    def allgather(self, value: Any, what: str = "an allgather") -> list[Any]:
        """The (picklable) `value` of every rank, in rank order, on every rank.

        Raises
        ------
        RuntimeError
            If a rank has left the job or sends nothing for the communicator's timeout; it names
            that rank and `what` was to be done.
        """
        if self._control is None:
            return [value]
        return [pickle.loads(data) for data in self._control.exchange(pickle.dumps(value), what)]

    def clock_offset(self) -> ClockOffset:
        """How far the clock of rank 0 is ahead of this rank's; all ranks call this together."""
        if self._control is None:
            return ClockOffset(offset_ns=0, error_ns=0)
        return measure_offset(self._control)

    def abort(self, exit_code: int) -> None:
        """End all ranks at once. A single rank of its own job raises SystemExit instead."""
        if self._control is None:
            raise SystemExit(exit_code)
        self._control.abort(exit_code)

    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> None:
        """Overwrite `arrays` on every rank by those of rank `root`.

        Parameters
        ----------
        arrays
            Contiguous CPU arrays (numpy or anything with DLPack) of the same shapes and dtypes,
            in the same order, on every rank.
        root
            The rank whose values count.

        Raises
        ------
        ValueError
            If `root` is no rank, or the arrays' shapes or dtypes differ between ranks.
        """
        if not 0 <= root < self.world_size:
            raise ValueError(f"root is {root}; allowed: 0 to {self.world_size - 1}")
        layout = [(tuple(int(d) for d in a.shape), str(a.dtype)) for a in arrays]
        for rank, other in enumerate(self.allgather(layout)):
            if other != layout:
                raise ValueError(
                    f"rank {rank} broadcasts arrays {_first_difference(other, layout)} "
                    f"of rank {self.rank}"
                )
        move = _ffi.function("runtime.broadcast")
        for index, array in enumerate(arrays):
            move(self._handle, array, index, root)

    def helper_cpu_us(self) -> float:
        """Processor time that the communication thread has used so far, in microseconds."""
        return int(_ffi.function("runtime.helper_cpu_ns")(self._handle)) / 1e3


def _close(handle: Any, control: ControlChannel | None) -> None:
    try:
        if control is not None:
            control.leave()
    finally:
        _ffi.function("runtime.close")(handle)


def _first_difference(theirs: list[Any], mine: list[Any]) -> str:
    if len(theirs) != len(mine):
        return f"({len(theirs)} of them) unlike the {len(mine)}"
    index = next(i for i, (a, b) in enumerate(zip(theirs, mine, strict=True)) if a != b)
    return f"with number {index} as {theirs[index]} unlike the {mine[index]}"


def loopback() -> Communicator:
    """The communicator of a job with one rank: averages are the values themselves."""
    return Communicator(_ffi.function("runtime.loopback")())


def mpi(
    comm: Any | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    hosts: Sequence[Hashable] | None = None,
) -> Communicator:
    """A communicator over MPI, for ranks started by ``mpirun``. All ranks call this together.

    Gradients travel by an AllReduce of our own over MPI's non-blocking messages, driven by one
    thread that sleeps while nothing arrives. With as many ranks, from two, on each of several hosts
    buckets are added within the hosts first, so that less passes between them.

    Parameters
    ----------
    comm
        An mpi4py intra-communicator; ``MPI.COMM_WORLD`` if None. It is duplicated.
    timeout_s
        Seconds without any progress after which an AllReduce gives up; likewise a barrier or an
        allgather that not all ranks reach.
    hosts
        The host of every rank, the same on all of them; whatever shares memory by MPI if None.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    RuntimeError
        If MPI was not initialised for several threads.
    ValueError
        If `timeout_s` is not a positive number, or there are not as many hosts as ranks.
    """
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}; allowed: a positive number of seconds")
    from mpi4py import MPI

    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            f"MPI was initialised with thread level {MPI.Query_thread()}, but the communication "
            f"thread needs MPI_THREAD_MULTIPLE ({MPI.THREAD_MULTIPLE}): leave "
            "mpi4py.rc.thread_level at 'multiple' before mpi4py.MPI is imported"
        )
    control = (MPI.COMM_WORLD if comm is None else comm).Dup()
    gradients = control.Dup()
    for duplicate in (control, gradients):
        duplicate.Set_errhandler(MPI.ERRORS_RETURN)
    size = control.Get_size()
    if hosts is None:
        shared = control.Split_type(MPI.COMM_TYPE_SHARED)
        hosts = control.allgather(shared.bcast(control.Get_rank()))  # a host's least rank
        shared.Free()
    if len(hosts) != size:
        raise ValueError(f"there are {len(hosts)} hosts for {size} ranks; allowed: one for each")
    handle = _ffi.function("runtime.mpi")(
        MPI.__file__,
        _as_int64(MPI._handleof(gradients)),
        _as_int64(MPI._handleof(MPI.BYTE)),
        gradients.Get_rank(),
        size,
        timeout_s,
        *host_groups(hosts, control.Get_rank()),
    )
    return Communicator(handle, ControlChannel(control, timeout_s, MPI.Status()), gradients)


def _as_int64(handle: int) -> int:
    """The same 64 bits as a signed number: MPICH's handles are negative ints, sign-extended."""
    return handle - 2**64 if handle >= 2**63 else handle
