"""Trains a plan on every rank: ``train_ranks.py FOLDER PLAN WORKLOAD NUM_STEPS``.

Reads FOLDER/values.npz; rank r writes its losses and final state to FOLDER/rank-r.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from disco_fuse.runner import StepRunner
from disco_fuse.runtime import abort_on_error, mpi
from disco_fuse.workload import load_workload

folder, plan, reference, num_steps = sys.argv[1:]
communicator = mpi()
with abort_on_error(communicator):
    with np.load(Path(folder) / "values.npz") as file:
        runner = StepRunner(Path(plan), communicator, dict(file))
    stream = load_workload(reference).batches(communicator.rank, communicator.world_size)
    losses = [runner.step(next(stream))[0] for _ in range(int(num_steps))]
    results = runner.values() | {"losses": np.array(losses)}
    np.savez(Path(folder) / f"rank-{communicator.rank}.npz", **results)
communicator.close()
