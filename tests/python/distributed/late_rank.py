"""``disco-fuse run`` on a rank; the second one does not come to MPI."""

from __future__ import annotations

import os
import time

from failing_ranks import rank_before_mpi

from disco_fuse.cli.main import main

os.write(1, f"pid {os.getpid()}\n".encode())
if rank_before_mpi() == 1:
    time.sleep(1000)
main(prog_name="disco-fuse")
