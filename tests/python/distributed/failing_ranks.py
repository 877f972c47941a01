"""Ranks of which one does not do its part: ``mpirun -n N python failing_ranks.py CASE FOLDER``.

The last rank is the one that fails. FOLDER/plan is what is trained.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, abort_on_error, mpi
from disco_fuse.trainer import Constant, Trainer
from disco_fuse.workload import Batch

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from numbers_data import Numbers

TIMEOUT_S = 3.0


def say_end(rank: int) -> None:
    os.write(1, f"rank {rank}: ends at {time.time()}\n".encode())


def is_last(communicator: Communicator) -> bool:
    return communicator.rank == communicator.world_size - 1


def runner_of(folder: Path, communicator: Communicator) -> StepRunner:
    with np.load(folder / "plan" / "values.npz") as values:
        return StepRunner(folder / "plan", communicator, dict(values))


def leaves_after_joining(folder: Path, communicator: Communicator) -> None:
    """The last rank ends well right after mpi(); the others need it."""
    if is_last(communicator):
        say_end(communicator.rank)
        sys.exit(0)
    runner_of(folder, communicator)


def leaves_between_steps(folder: Path, communicator: Communicator) -> None:
    """The last rank does fewer steps than the others."""
    data = Numbers(communicator.rank, communicator.world_size)
    trainer = Trainer(runner_of(folder, communicator), data)
    trainer.train(3)
    if is_last(communicator):
        say_end(communicator.rank)
        sys.exit(0)
    trainer.train(6)


def slow_data(folder: Path, communicator: Communicator) -> None:
    """The last rank's fourth batch does not come."""

    def data() -> Iterator[Batch]:
        for number, batch in enumerate(Numbers(communicator.rank, communicator.world_size)):
            if number == 3 and is_last(communicator):
                say_end(communicator.rank)
                time.sleep(1000)
            yield batch

    Trainer(runner_of(folder, communicator), data()).train(10)


def slow_step(folder: Path, communicator: Communicator) -> None:
    """The last rank does not begin its third step."""

    def schedule(step: int) -> float:
        if step == 2 and is_last(communicator):
            say_end(communicator.rank)
            time.sleep(1000)
        return Constant(lr=0.02)(step)

    data = Numbers(communicator.rank, communicator.world_size)
    Trainer(runner_of(folder, communicator), data, schedule=schedule).train(10)


def rank_before_mpi() -> int:
    """This rank's number, as Open MPI or MPICH tells its processes."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    (number,) = {os.environ[name] for name in names if name in os.environ}
    return int(number)


def killed_at_start(folder: Path) -> None:
    """The second rank dies when the first one runs and has not joined, or is just joining."""
    runs = folder / f"rank-0-of-{os.getppid()}"
    if rank_before_mpi() == 0:
        runs.touch()
        return
    while not runs.exists():
        time.sleep(0.01)
    say_end(1)
    os.kill(os.getpid(), signal.SIGKILL)


CASES: dict[str, Callable[[Path, Communicator], None]] = {
    case.__name__: case
    for case in (leaves_after_joining, leaves_between_steps, slow_data, slow_step)
}


def main() -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    name, folder = sys.argv[1:]
    if name == "killed_at_start":
        killed_at_start(Path(folder))
    communicator = mpi(timeout_s=TIMEOUT_S)
    if name == "leaves_after_joining":  # also without the guard nobody may wait for ever
        CASES[name](Path(folder), communicator)
        return
    with abort_on_error(communicator):
        CASES[name](Path(folder), communicator)


if __name__ == "__main__":
    main()
