"""The ranks' side of the trainer's tests: ``mpirun -n N python trainer_ranks.py FOLDER``.

FOLDER/plan is trained in several ways by the same processes; rank r writes what came out of each
to FOLDER/results-r.json. Nothing here may end a rank: that is for failing_ranks.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, abort_on_error, mpi
from disco_fuse.trainer import Checkpoints, Constant, Trainer
from disco_fuse.workload import Batch

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from numbers_data import Numbers

NUM_SEEDS = 100


class Job:
    """What the cases share."""

    def __init__(self, folder: Path, communicator: Communicator) -> None:
        self.folder = folder
        self.communicator = communicator
        self.rank, self.world_size = communicator.rank, communicator.world_size
        with np.load(folder / "plan" / "values.npz") as values:
            self.values = dict(values)

    def numbers(self) -> Numbers:
        return Numbers(self.rank, self.world_size)

    def trainer(self, data: Iterator[Batch] | None = None, **options: Any) -> Trainer:
        runner = StepRunner(self.folder / "plan", self.communicator, self.values)
        return Trainer(runner, self.numbers() if data is None else data, **options)

    def checkpoints(self, name: str, **options: Any) -> Checkpoints:
        return Checkpoints(folder=self.folder / name, **options)


def digest(trainer: Trainer) -> str:
    """Of all the state but the rank's number."""
    values = trainer.runner.values()
    whole = b"".join(values[name].tobytes() for name in sorted(values) if name != "rank")
    return hashlib.sha256(whole).hexdigest()


def resumed(job: Job) -> dict[str, Any]:
    """Local statistics, random numbers and data positions differ between ranks."""
    whole = job.trainer()
    expected = whole.train(9).losses
    own = job.numbers()
    checkpoints = job.checkpoints("resumed", every=3)
    losses = job.trainer(own, checkpoints=checkpoints).train(7).losses
    second = job.trainer(checkpoints=checkpoints)
    losses += second.train(9).losses
    statistics = second.runner.value("1.running_mean").tolist()
    return {
        "expected": expected,
        "losses": losses,
        "digests": [digest(whole), digest(second)],
        "statistics": statistics,
    }


def cut_short(job: Job) -> dict[str, Any]:
    """The newest checkpoint lost its second half, as where a host lost its power."""
    expected = job.trainer().train(7).losses
    checkpoints = job.checkpoints("cut", every=2)
    job.trainer(checkpoints=checkpoints).train(5)
    newest = max((job.folder / "cut").glob("step-*.checkpoint"))
    if job.rank == 0:
        os.truncate(newest, newest.stat().st_size // 2)
    job.communicator.barrier()
    events: list[dict[str, Any]] = []
    losses = job.trainer(checkpoints=checkpoints, on_event=events.append).train(7).losses
    return {"expected": expected, "losses": losses, "newest": newest.name, "start": events[0]}


def spoiled(job: Job, at: int) -> Iterator[Batch]:
    """The last rank's batch of one step holds a NaN."""
    for number, (x, y) in enumerate(job.numbers(), start=1):
        wrong = number == at and job.rank == job.world_size - 1
        yield (x * np.float32(np.nan) if wrong else x), y


def skips(job: Job) -> dict[str, Any]:
    digests = []
    trainer = job.trainer(
        spoiled(job, 3), on_nan="skip", on_event=lambda _: digests.append(digest(trainer))
    )
    # Events: start, three steps, skip, two steps, end.
    return asdict(trainer.train(5)) | {"digests": digests}


def stops(job: Job) -> dict[str, Any]:
    return asdict(job.trainer(spoiled(job, 3)).train(5))


def data_ends(job: Job) -> dict[str, Any]:
    """Rank 0 has fewer batches than the others."""
    numbers = job.numbers()
    data = (next(numbers) for _ in range(3 if job.rank == 0 else 6))
    return asdict(job.trainer(data).train(10))


def full_disk(job: Job, on_error: str) -> dict[str, Any]:
    """No file of rank 0 can grow beyond a limit after step 4."""
    events = []

    def on_event(event: dict[str, Any]) -> None:
        events.append(event)
        if (event["event"], event["step"]) == ("step", 4) and job.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints = job.checkpoints(f"full-{on_error}", every=2, on_error=on_error)
    result = job.trainer(checkpoints=checkpoints, on_event=on_event).train(7)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = job.trainer(checkpoints=checkpoints)
    return asdict(result) | {
        "events": [event for event in events if event["event"] == "checkpoint"],
        "files": sorted(path.name for path in checkpoints.folder.iterdir()),
        "resumed_at": again.step,
    }


def terminated(job: Job) -> dict[str, Any]:
    """One rank gets the signal, all end, and rank 0 writes."""

    def on_event(event: dict[str, Any]) -> None:
        if (event["event"], event["step"]) == ("step", 3) and job.rank == job.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    checkpoints = job.checkpoints("terminated")
    result = job.trainer(checkpoints=checkpoints, on_event=on_event).train(1000)
    return asdict(result) | {"resumed_at": job.trainer(checkpoints=checkpoints).step}


def evaluated(job: Job) -> dict[str, Any]:
    events = []
    trainer = job.trainer(
        evaluate=lambda _: {"rank": float(job.rank)}, evaluate_every=2, on_event=events.append
    )
    trainer.train(2)
    return {"events": [event for event in events if event["event"] == "evaluation"]}


def delayed(job: Job) -> dict[str, Any]:
    """Every rank sleeps at random before its data and before its steps."""
    losses = []
    runner = StepRunner(job.folder / "plan", job.communicator, job.values)
    initial = runner.keep_state()
    for seed in range(NUM_SEEDS):
        rng = np.random.default_rng([seed, job.rank])

        def sleeping_data(rng: np.random.Generator = rng) -> Iterator[Batch]:
            for batch in job.numbers():
                time.sleep(rng.exponential(1e-3))
                yield batch

        def sleeping_schedule(step: int, rng: np.random.Generator = rng) -> float:
            time.sleep(rng.exponential(1e-3))
            return Constant(lr=0.02)(step)

        runner.restore_state(initial)
        trainer = Trainer(runner, sleeping_data(), schedule=sleeping_schedule)
        losses.append(trainer.train(3).losses)
    return {"losses": losses}


def exchanged(job: Job) -> dict[str, Any]:
    """Values of other sizes on every rank, one after another, some too big to be sent at once."""
    for size in (0, 1_000_000, 10, 3_000_000):
        everywhere = job.communicator.allgather(bytes([job.rank]) * (size + job.rank))
        for rank, value in enumerate(everywhere):
            assert value == bytes([rank]) * (size + rank)
    return {"ranks": len(everywhere)}


def clocks(job: Job) -> dict[str, Any]:
    return asdict(job.communicator.clock_offset())


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def long_training(job: Job) -> dict[str, Any]:
    """1000 steps with everything on; memory after 200 and in the end."""
    trainer = job.trainer(
        on_nan="skip",
        checkpoints=job.checkpoints("long", every=100),
        evaluate=lambda values: {"count": len(values)},
        evaluate_every=100,
    )
    trainer.train(200)
    before = resident_bytes()
    result = trainer.train(1000)
    return {"step": result.step, "growth_bytes": resident_bytes() - before}


CASES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "exchanged": exchanged,
    "clocks": clocks,
    "resumed": resumed,
    "cut_short": cut_short,
    "skips": skips,
    "stops": stops,
    "data_ends": data_ends,
    "full_disk_stop": lambda job: full_disk(job, "stop"),
    "full_disk_continue": lambda job: full_disk(job, "continue"),
    "terminated": terminated,
    "evaluated": evaluated,
    "delayed": delayed,
    "long_training": long_training,
}


def main() -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    folder = Path(sys.argv[1])
    communicator = mpi(timeout_s=60)
    with abort_on_error(communicator):
        job = Job(folder, communicator)
        results = {name: case(job) for name, case in CASES.items()}
        (folder / f"results-{job.rank}.json").write_text(json.dumps(results))
    communicator.close()


if __name__ == "__main__":
    main()
