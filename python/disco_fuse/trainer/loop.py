"""The training loop of one rank.

    step on the batch | fetch the next batch | losses, wishes to end, ends of data: to all ranks
    -> skip or stop | checkpoint | evaluation | next step

One small exchange per step makes all ranks decide alike: a loss that is not finite on one rank, a
signal that reached one rank, data that ended on one rank are known to all before the next step.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco_fuse.frontend.optimizer import LOSS_SCALE
from disco_fuse.frontend.training_step import OPTIMIZER_PREFIX
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import abort_on_error
from disco_fuse.trainer.checkpoint import Checkpoints, Restored, restore, save
from disco_fuse.trainer.events import OnEvent
from disco_fuse.trainer.schedule import Schedule
from disco_fuse.trainer.termination import termination_requested

Batch = Sequence[NDArray[Any]]
Evaluate = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]]
StopReason = Literal["steps", "data", "nan", "terminated", "checkpoint"]


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What one call of :meth:`Trainer.train` did.

    Attributes
    ----------
    step : int
        Steps done since the beginning, those before a resume included.
    losses : tuple of float
        Mean loss of the ranks, one per step of this call; not finite where it was skipped.
    step_times_s : tuple of float
        Wall time of each step with the exchange behind it.
    skipped : tuple of int
        Numbers (from 1) of steps that were undone because a loss was not finite.
    stop_reason : str
        "steps": as many as asked for; "data": no more batches on some rank; "nan": a loss was not
        finite; "terminated": by SIGTERM; "checkpoint": one could not be written.
    detail : str
        Which rank and why, for the last three.
    """

    step: int
    losses: tuple[float, ...]
    step_times_s: tuple[float, ...]
    skipped: tuple[int, ...]
    stop_reason: StopReason
    detail: str = ""


@dataclass(frozen=True)
class _Stop:
    """Why a training ends."""

    reason: StopReason
    detail: str = ""


@dataclass
class _Done:
    """What one call has done so far."""

    losses: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Vote:
    """What one rank tells the others after a step."""

    loss: float
    terminated: bool
    has_batch: bool


class Trainer:
    """Trains a plan on batches from an iterator; every rank of the job has one.

    Parameters
    ----------
    runner : StepRunner
        The loaded plan with its state.
    data : iterator
        Batches of this rank, as :meth:`StepRunner.step` takes them. If it has ``state_dict()`` and
        ``load_state_dict(state)``, its position is part of checkpoints (the state must be made of
        what JSON knows); without, a resumed training draws and drops the batches already used.
    schedule : callable, optional
        Steps done -> learning rate of the next; see :mod:`disco_fuse.trainer.schedule`. By default
        the rate of the state stays.
    checkpoints : Checkpoints, optional
        Where and when to write them, and whether to resume.
    on_nan : str
        When a loss is NaN or infinite on any rank: "stop" ends the training on all; "skip" undoes
        the step on all and goes on. To undo, a copy of the state is made before every step, which
        takes as much memory as the state and the time to copy it. An optimizer in `LossScaling`
        needs no copy: it leaves parameters and its state alone whenever averaged gradients are not
        finite, and lowers its scale; nothing else is undone then.
    evaluate : callable, optional
        Values of the state by name -> figures by name. Called on every rank; the means over the
        ranks become an event.
    evaluate_every : int
        After each so many steps.
    on_event : callable, optional
        Called with every event, for instance an :class:`EventLog`.

    Raises
    ------
    ValueError
        For arguments out of range, and where resuming is impossible (see
        :func:`disco_fuse.trainer.checkpoint.restore`).

    Examples
    --------
    >>> communicator = mpi()
    >>> runner = StepRunner(folder, communicator, step.values)
    >>> trainer = Trainer(runner, batches, checkpoints=Checkpoints(folder=Path("run"), every=100))
    >>> trainer.train(1000).losses[-1]
    """

    def __init__(
        self,
        runner: StepRunner,
        data: Iterator[Batch],
        *,
        schedule: Schedule | None = None,
        checkpoints: Checkpoints | None = None,
        on_nan: Literal["stop", "skip"] = "stop",
        evaluate: Evaluate | None = None,
        evaluate_every: int = 0,
        on_event: OnEvent | None = None,
    ) -> None:
        if on_nan not in ("stop", "skip"):
            raise ValueError(f"on_nan is {on_nan!r}; allowed: stop, skip")
        if evaluate_every < 0 or (evaluate is not None) != (evaluate_every > 0):
            raise ValueError(
                f"evaluate_every is {evaluate_every}; allowed: from 1 with evaluate, 0 without"
            )
        self.runner = runner
        self.step = 0
        self.restored: Restored | None = None
        self._communicator = runner.communicator
        self._data = data
        self._schedule = schedule
        self._checkpoints = checkpoints
        self._undo = on_nan == "skip" and not _skips_by_itself(runner)
        self._on_nan = on_nan
        self._evaluate, self._evaluate_every = evaluate, evaluate_every
        self._on_event = on_event
        self._kept: Sequence[Any] = ()
        self._position: Any = None
        self._batch: Batch | None = None
        self._saved_step = -1
        if checkpoints is not None and checkpoints.resume:
            self._resume(checkpoints)

    def _facts(self) -> dict[str, Any]:
        """What a training is, for its first event."""
        communicator, plan = self._communicator, self.runner.plan
        return {
            "rank": communicator.rank,
            "world_size": communicator.world_size,
            "plan": plan.name,
            "plan_digest": plan.digest,
            "num_kernels": plan.num_kernels,
            "restored": None if self.restored is None else asdict(self.restored),
        }

    def _resume(self, checkpoints: Checkpoints) -> None:
        self.restored = restore(self.runner, checkpoints)
        if self.restored is None:
            return
        self.step = self._saved_step = self.restored.step
        if hasattr(self._data, "load_state_dict"):
            self._data.load_state_dict(self.restored.position)
            return
        for _ in range(self.step):
            if next(self._data, None) is None:
                raise ValueError(f"the data ends before step {self.step}, where training resumes")

    def train(self, num_steps: int) -> TrainingResult:
        """Train until `num_steps` are done since the beginning, or something ends it earlier.

        If a rank fails, all are ended (:func:`disco_fuse.runtime.abort_on_error`). SIGTERM and
        SIGUSR1 on any rank end the training on all of them after the step under way, with a
        checkpoint if there are checkpoints.

        Raises
        ------
        ValueError
            If the learning rate of a step is no finite number >= 0.
        RuntimeError
            If a rank does not answer in time; a gradient bucket is named where one is missing.
        """
        with abort_on_error(self._communicator), termination_requested() as terminated:
            self._report("start", **self._facts())
            if self._batch is None:
                self._fetch()
            result = self._train(num_steps, terminated)
            self._report("end", reason=result.stop_reason, detail=result.detail)
            return result

    def _train(self, num_steps: int, terminated: Callable[[], bool]) -> TrainingResult:
        done = _Done()
        stop = self._agreed_end(self._vote(0.0, terminated))
        while stop is None and self.step < num_steps:
            votes = self._one_step(done, terminated)
            stop = self._judge(votes, done) or self._every_now_and_then()
            stop = stop or self._agreed_end(votes)
        if stop is None or (stop.reason == "data" and self.step >= num_steps):
            stop = _Stop("steps")
        if self._checkpoints is not None and stop.reason in ("steps", "data", "terminated"):
            stop = self._save() or stop
        return TrainingResult(
            step=self.step,
            losses=tuple(done.losses),
            step_times_s=tuple(done.times_s),
            skipped=tuple(done.skipped),
            stop_reason=stop.reason,
            detail=stop.detail,
        )

    def _one_step(self, done: _Done, terminated: Callable[[], bool]) -> list[_Vote]:
        begin = time.perf_counter()
        if self._schedule is not None:
            self.runner.set_learning_rate(_checked_rate(self._schedule(self.step), self.step))
        if self._undo:
            self._kept = self.runner.keep_state(self._kept)
        assert self._batch is not None
        loss = float(self.runner.step(self._batch)[0])
        own_us, exposed_us = (time.perf_counter() - begin) * 1e6, self.runner.exposed_us()
        self.step += 1
        self._fetch()
        votes = self._vote(loss, terminated)
        losses = [vote.loss for vote in votes]
        done.losses.append(float(np.mean(losses)))
        done.times_s.append(time.perf_counter() - begin)
        self._report(
            "step",
            loss=done.losses[-1],
            losses=losses,
            seconds=done.times_s[-1],
            busy_us=own_us - exposed_us,
            exposed_us=exposed_us,
        )
        return votes

    def _fetch(self) -> None:
        """Draw the batch of the next step, and note the position before it."""
        if hasattr(self._data, "state_dict"):
            self._position = copy.deepcopy(self._data.state_dict())
        self._batch = next(self._data, None)

    def _vote(self, loss: float, terminated: Callable[[], bool]) -> list[_Vote]:
        own = _Vote(loss=loss, terminated=terminated(), has_batch=self._batch is not None)
        return self._communicator.allgather(own, f"the end of step {self.step}")

    def _judge(self, votes: list[_Vote], done: _Done) -> _Stop | None:
        """What follows from losses that are not finite."""
        bad = [rank for rank, vote in enumerate(votes) if not math.isfinite(vote.loss)]
        if not bad:
            return None
        detail = f"the loss of step {self.step} is {votes[bad[0]].loss} on rank {bad[0]}"
        if self._on_nan == "stop":
            return _Stop("nan", detail)
        if self._undo:
            self.runner.restore_state(self._kept)
        done.skipped.append(self.step)
        self._report("skip", detail=detail)
        return None

    def _every_now_and_then(self) -> _Stop | None:
        if self._evaluate is not None and self.step % self._evaluate_every == 0:
            own = {name: float(x) for name, x in self._evaluate(self.runner.values()).items()}
            figures = self._communicator.allgather(own, f"the evaluation after step {self.step}")
            means = {name: float(np.mean([one[name] for one in figures])) for name in own}
            self._report("evaluation", **means)
        every = 0 if self._checkpoints is None else self._checkpoints.every
        return self._save() if every and self.step % every == 0 else None

    def _save(self) -> _Stop | None:
        """Write a checkpoint, unless there is one of this step; what to do if that fails."""
        assert self._checkpoints is not None
        if self._saved_step == self.step:
            return None
        failure = save(self.runner, self._checkpoints, self.step, self._position)
        if failure is None:
            self._saved_step = self.step
        self._report("checkpoint", failure=failure)
        if failure is None or self._checkpoints.on_error == "continue":
            return None
        return _Stop("checkpoint", failure)

    def _agreed_end(self, votes: list[_Vote]) -> _Stop | None:
        asked = [rank for rank, vote in enumerate(votes) if vote.terminated]
        if asked:
            return _Stop("terminated", f"rank {asked[0]} was asked to end")
        ended = [rank for rank, vote in enumerate(votes) if not vote.has_batch]
        return _Stop("data", f"rank {ended[0]} has no more batches") if ended else None

    def _report(self, event: str, **facts: Any) -> None:
        if self._on_event is not None:
            self._on_event({"event": event, "step": self.step, **facts})


def _skips_by_itself(runner: StepRunner) -> bool:
    """Whether the step leaves parameters alone when gradients are not finite."""
    return any(spec.name == OPTIMIZER_PREFIX + LOSS_SCALE for spec in runner.state)


def _checked_rate(rate: float, step: int) -> float:
    if not (math.isfinite(rate) and rate >= 0.0):
        raise ValueError(f"the schedule gives {rate} for step {step}; allowed: finite, >= 0")
    return rate
