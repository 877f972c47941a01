"""One rank of a test: load the plan in the folder ``plan-<rank>``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from disco_fuse.runner import StepRunner
from disco_fuse.runtime import abort_on_error, mpi

communicator = mpi()
with abort_on_error(communicator):
    root = Path(sys.argv[1])
    with np.load(root / "values.npz") as file:
        values = dict(file)
    StepRunner(root / f"plan-{communicator.rank}", communicator, values)
communicator.close()
