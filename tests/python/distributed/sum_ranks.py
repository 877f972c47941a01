"""One rank of a test: the sum, not the average, over all ranks."""

from __future__ import annotations

import os

import numpy as np

from disco_fuse import _ffi
from disco_fuse.runtime import Session, abort_on_error, mpi
from disco_fuse.runtime.session import allreduce_wait

communicator = mpi()
os.write(1, f"pid {os.getpid()}\n".encode())  # in one piece, beside the other ranks
with abort_on_error(communicator):
    values = np.full(70_000, communicator.rank + 1.0, np.float32)
    with Session(communicator).step():
        _ffi.function("runtime.allreduce_start_sum")(0, values)
        allreduce_wait(0, values)
    size = communicator.world_size
    np.testing.assert_array_equal(values, np.float32(size * (size + 1) / 2))
communicator.close()
