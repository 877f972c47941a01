"""Ranks whose link is cut meanwhile: ``cut_link.py FOLDER TIMEOUT_S NUM_STEPS``.

Every rank averages bucket 7 in each step and writes how many are done to FOLDER/rank-R.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from disco_fuse.runtime import Session, abort_on_error, mpi
from disco_fuse.runtime.session import allreduce_start, allreduce_wait

NUM_ELEMENTS = 60_000


def main() -> None:
    folder, timeout_s, num_steps = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    os.write(1, f"pid {os.getpid()}\n".encode())
    communicator = mpi(timeout_s=timeout_s)
    rank, world_size = communicator.rank, communicator.world_size
    session = Session(communicator)
    with abort_on_error(communicator):
        for step in range(num_steps):
            array = np.full(NUM_ELEMENTS, rank + step, np.float32)
            with session.step():
                allreduce_start(7, array)
                allreduce_wait(7, array)
            assert (array == step + (world_size - 1) / 2).all()
            (folder / f"rank-{rank}").write_text(str(step + 1))
            time.sleep(0.02)
        communicator.barrier("the end")
    communicator.close()


if __name__ == "__main__":
    main()
