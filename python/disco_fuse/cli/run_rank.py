"""What one rank of ``disco-fuse run`` does."""

from __future__ import annotations

import faulthandler
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from disco_fuse.cli.output import show, system_failure
from disco_fuse.cli.run_trace import StepRecord
from disco_fuse.cli.synthetic import synthetic_batches, synthetic_values
from disco_fuse.errors import WorkloadError
from disco_fuse.needs import GPU, check_needs
from disco_fuse.plan import Plan, load_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, abort_on_error, loopback, mpi, nccl, on_all_ranks
from disco_fuse.trainer import Checkpoints, Constant, EventLog, Trainer, TrainingResult
from disco_fuse.trainer.events import Event, OnEvent
from disco_fuse.trainer.loop import Batch
from disco_fuse.user_code import user_code
from disco_fuse.workload import call_function, load_function

TERMINATED = 128 + 15  # what shells say of a process that SIGTERM ended
STEP_TIMES = "step ms (p10 - p90)"
_FAILURES = ("nan", "checkpoint")
_WRONG_CALL = click.UsageError.exit_code


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the user asked of every rank; the fields are the options of the command."""

    plan: Path
    steps: int
    data: str | None
    values: Path | None
    learning_rate: float | None
    checkpoints: Path | None
    every: int
    on_nan: Literal["stop", "skip"]
    output: Path | None
    trace: Path | None
    seed: int
    timeout: float
    start_timeout: float
    json_file: str | None


def run_rank(options: RunOptions, num_ranks: int) -> int:
    """Train, and return the exit status; what all ranks refuse is said by rank 0.

    Raises
    ------
    click.ClickException
        If MPI does not know as many ranks as were started.
    """
    communicator = _join(options, num_ranks)
    with abort_on_error(communicator):
        if options.data is not None:
            name = options.data
            try:
                on_all_ranks(communicator, lambda: load_function(name), "--data")
            except ValueError as error:
                return _refused(communicator, error, _WRONG_CALL)
        try:
            plan = on_all_ranks(
                communicator, lambda: _usable(options.plan), f"the plan in {options.plan}"
            )
            communicator = _for_gradients_of(plan, communicator, options)
            log = _log(options, communicator.rank)
            trainer, record = _trainer(options, plan, communicator, log)
        except (ValueError, OSError) as error:
            return _refused(communicator, error)
        try:
            with trainer.runner.recording_kernels() if record else nullcontext():
                result = trainer.train(options.steps)
        except WorkloadError as error:
            if communicator.world_size > 1:
                raise  # the other ranks do not know of it, and are ended
            return _refused(communicator, error)
        try:
            traced = record.finish(options.trace) if record and options.trace else None
            if communicator.rank == 0:
                _report(options, trainer, result, traced)
            on_all_ranks(communicator, lambda: _whole(log), "the events")
        except (ValueError, OSError) as error:
            return _refused(communicator, error)
        # Nobody ends while another still writes: mpirun would end that one too.
        communicator.barrier("the end of the run")
    communicator.close()
    if result.stop_reason == "terminated":
        return TERMINATED
    no_data = result.stop_reason == "data" and result.step == 0
    return 1 if result.stop_reason in _FAILURES or no_data else 0


def _whole(log: EventLog | None) -> bool:
    """``ValueError`` if events are missing in the file."""
    if log is not None and log.failure is not None:
        raise ValueError(log.failure)
    return True


def _refused(communicator: Communicator, error: ValueError | OSError, status: int = 1) -> int:
    """Every rank has the same error; one of them says it, before mpirun may end it."""
    if communicator.rank == 0:
        text = system_failure(error).message if isinstance(error, OSError) else str(error)
        click.ClickException(text).show()
    communicator.barrier("the end of a refused run")
    communicator.close()
    return status


def _join(options: RunOptions, num_ranks: int) -> Communicator:
    """Meet the other ranks, or die with a traceback if they do not come in time.

    MPI waits for ever, inside its initialisation and holding the interpreter: only a watchdog that
    needs neither can end that.
    """
    if num_ranks == 1:
        return loopback()
    faulthandler.dump_traceback_later(options.start_timeout, exit=True, file=2)
    communicator = mpi(timeout_s=options.timeout)
    faulthandler.cancel_dump_traceback_later()
    if communicator.world_size != num_ranks:
        raise click.ClickException(
            f"{num_ranks} ranks were started, but MPI knows {communicator.world_size}: launcher "
            "and MPI of mpi4py do not fit (with Slurm: srun --mpi=pmix, or another that it lists)"
        )
    return communicator


def _usable(folder: Path) -> Plan:
    """The plan of a folder, if this machine has what it needs."""
    plan = load_plan(folder)
    check_needs(plan.needs)
    return plan


def _for_gradients_of(plan: Plan, communicator: Communicator, options: RunOptions) -> Communicator:
    """One of NCCL for a plan whose gradients are on GPUs: GPU n for the n-th rank of a host."""
    if GPU not in plan.needs or plan.num_allreduces == 0:
        return communicator
    alone = communicator.world_size == 1
    return nccl(False if alone else None, timeout_s=options.timeout)


def _trainer(
    options: RunOptions, plan: Plan, communicator: Communicator, log: EventLog | None
) -> tuple[Trainer, StepRecord | None]:
    """The trainer, and what records its steps if that was asked for."""
    values = on_all_ranks(communicator, lambda: _values(options, plan), "the state")
    runner = StepRunner(options.plan, communicator, values)
    data = on_all_ranks(communicator, lambda: _data(options, plan, communicator), "the data")
    if communicator.rank == 0 and plan.world_size != communicator.world_size:
        click.echo(
            f"note: the plan was optimised for {plan.world_size} ranks, this job has "
            f"{communicator.world_size}",
            err=True,
        )
    checkpoints = None
    if options.checkpoints is not None:
        checkpoints = Checkpoints(folder=options.checkpoints, every=options.every)
    rate = options.learning_rate
    record = None if options.trace is None else StepRecord(runner)
    trainer = Trainer(
        runner,
        data,
        schedule=None if rate is None else Constant(lr=rate),
        checkpoints=checkpoints,
        on_nan=options.on_nan,
        on_event=_events([taker for taker in (record, log) if taker is not None]),
    )
    if communicator.rank == 0 and trainer.restored is not None:
        for damaged in trainer.restored.damaged:
            click.echo(f"note: not used: {damaged}", err=True)
        click.echo(f"resumed from {trainer.restored.path}, step {trainer.step}", err=True)
    return trainer, record


def _values(options: RunOptions, plan: Plan) -> dict[str, NDArray[Any]]:
    if options.values is None:
        return synthetic_values(plan, options.seed)
    try:
        with np.load(options.values, allow_pickle=False) as file:
            return dict(file)
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{options.values} is no file of named arrays (npz)") from error


def _data(options: RunOptions, plan: Plan, communicator: Communicator) -> Iterator[Batch]:
    if options.data is None:
        return synthetic_batches(plan, communicator.rank, options.seed)
    batches = call_function(options.data, communicator.rank, communicator.world_size)
    if not hasattr(batches, "__next__"):
        raise ValueError(f"{options.data} returned {type(batches).__name__}, not an iterator")
    return _UserBatches(batches, options.data)


class _UserBatches:
    """The iterator of a user; what it raises says whose it is."""

    def __init__(self, batches: Iterator[Batch], function: str) -> None:
        self._batches = batches
        self._function = function

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        with user_code(f"the iterator of {self._function}"):
            batch = next(self._batches, None)
        if batch is None:
            raise StopIteration
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)  # it may have a state_dict


def _log(options: RunOptions, rank: int) -> EventLog | None:
    folder = options.output
    return None if folder is None else EventLog(folder / f"events-rank-{rank}.jsonl")


def _events(takers: Sequence[OnEvent]) -> OnEvent:
    """One taker for all of them: none, one or both of a file and a record."""

    def on_event(event: Event) -> None:
        for taker in takers:
            taker(event)

    return on_event


def _report(
    options: RunOptions, trainer: Trainer, result: TrainingResult, traced: dict[str, Any] | None
) -> None:
    plan = trainer.runner.plan
    times_ms = np.array(result.step_times_s or [np.nan]) * 1e3
    low, median, high = (float(x) for x in np.percentile(times_ms, [10, 50, 90]))
    if result.detail and (result.stop_reason != "data" or not result.losses):
        click.echo(f"{result.stop_reason}: {result.detail}", err=True)
    data: Event = {
        "plan": plan.name,
        "model": plan.model,
        "world_size": trainer.runner.communicator.world_size,
        "step": result.step,
        "losses": [loss if np.isfinite(loss) else str(loss) for loss in result.losses],
        "skipped": list(result.skipped),
        "step_time_ms": {"p10": low, "median": median, "p90": high} if result.losses else None,
        "predicted_ms": plan.predicted["makespan_us"] / 1e3,
        "stop_reason": result.stop_reason,
        "detail": result.detail,
        "trace": traced,
    }
    rows = [["plan", "ranks", "step", "first loss", "last loss", STEP_TIMES, "stopped by"]]
    if result.losses:
        rows.append(
            [
                plan.name,
                str(data["world_size"]),
                str(result.step),
                f"{result.losses[0]:.4f}",
                f"{result.losses[-1]:.4f}",
                f"{median:.1f} ({low:.1f} - {high:.1f})",
                result.stop_reason,
            ]
        )
    if traced is not None:
        simulated = traced["simulated_exposed_ms"]
        rows[0] += ["kernels ms", "exposed ms", "simulated", "overhead ms"]
        rows[1] += [f"{traced[name]:.1f}" for name in ("kernels_ms", "exposed_ms")]
        rows[1] += ["-" if simulated is None else f"{simulated:.1f}"]
        rows[1] += [f"{traced['overhead_ms']:.1f}"]
    show(rows, data, options.json_file)
