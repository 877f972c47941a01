"""A communicator over NCCL: gradients stay on the GPUs, everything else goes over MPI."""

from __future__ import annotations

import importlib.util
import math
import weakref
from pathlib import Path
from typing import Any

from disco_fuse import _ffi
from disco_fuse.runtime.communicator import DEFAULT_TIMEOUT_S, Communicator, loopback, mpi

CUDA_LIBRARY = "libcuda.so.1"
"""The CUDA driver."""


def find_nccl() -> str:
    """The NCCL library: that of the Python package ``nvidia-nccl-*``, else the system's name.

    A PyTorch built for CUDA depends on that package, so both then use one library.
    """
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder) / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return "libnccl.so.2"


def nccl(
    comm: Any | None = None,
    *,
    device: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    nccl_library: str | None = None,
    cuda_library: str = CUDA_LIBRARY,
) -> Communicator:
    """A communicator over NCCL, one GPU a rank. All ranks call this together.

    AllReduces run on a CUDA stream of their own and average on the way; a bucket of many tensors
    is one launch, without copies. The host waits only at the end of a step. Everything that is not
    a gradient travels as with :func:`mpi`.

    Parameters
    ----------
    comm
        An mpi4py intra-communicator; ``MPI.COMM_WORLD`` if None. False for a job of one rank
        without MPI.
    device : int, optional
        The GPU of this rank, as CUDA counts in this process; by default the rank's number among
        the ranks of its host.
    timeout_s
        Seconds that all ranks have to join, and a step to end. Then an error names the bucket that
        has not arrived.
    nccl_library, cuda_library
        Names or paths of the libraries; NCCL is :func:`find_nccl` by default.

    Raises
    ------
    RuntimeError
        If CUDA or NCCL is not there, fails, or is older than NCCL 2.10; or as for :func:`mpi`.
    ValueError
        If `timeout_s` is not a positive number, or `device` is negative.
    """
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}; allowed: a positive number of seconds")
    if device is not None and device < 0:
        raise ValueError(f"device is {device}; allowed: the number of a GPU, from 0")
    library = find_nccl() if nccl_library is None else nccl_library
    host = loopback() if comm is False else mpi(comm, timeout_s=timeout_s)
    try:
        ordinal = _local_rank(comm) if device is None else device
        ids = host.allgather(_unique_id(library, host.rank), "agreeing on an NCCL id")
        if isinstance(ids[0], str):
            raise RuntimeError(f"rank 0: {ids[0]}")
        handle = _ffi.function("runtime.nccl")(
            library, cuda_library, ids[0], host.rank, host.world_size, ordinal, timeout_s
        )
    except BaseException:
        host.close()
        raise
    host.on_device(handle, ordinal)
    weakref.finalize(host, _ffi.function("runtime.device_close"), handle)
    return host


def _unique_id(library: str, rank: int) -> bytes | str | None:
    """Rank 0's id of the job, or the reason why it has none; other ranks have none to give."""
    if rank != 0:
        return None
    try:
        return bytes(_ffi.function("runtime.nccl_unique_id")(library))
    except RuntimeError as error:  # all ranks must hear of it: they would wait for the id
        return str(error)


def _local_rank(comm: Any) -> int:
    """This rank's number among the ranks of its host."""
    if comm is False:
        return 0
    from mpi4py import MPI

    world = MPI.COMM_WORLD if comm is None else comm
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return int(local.Get_rank())
    finally:
        local.Free()
