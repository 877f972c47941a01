"""Checkpoints of a job: rank 0 writes and reads files, all ranks agree on what became of them.

save     digests of all tensors -> those in which ranks differ are gathered -> rank 0 writes
restore  rank 0 takes the newest whole file -> header to all -> broadcast of the tensors
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco_fuse.frontend.training_step import RANK
from disco_fuse.runner import StepRunner
from disco_fuse.trainer.checkpoint_file import (
    Header,
    StoredTensor,
    as_bytes,
    check_tensors,
    read_header,
    read_tensors,
    write_checkpoint,
)

_NAME = re.compile(r"step-(\d+)\.checkpoint")


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where and when checkpoints are written.

    Attributes
    ----------
    folder : Path
        Of this training alone; rank 0's disk is enough. It is made if needed.
    every : int
        A checkpoint after each so many steps, and at the end; 0: at the end only.
    keep : int
        Whole checkpoints that stay, from 2: the newest may turn out to be damaged.
    on_error : str
        What a failed checkpoint (a full disk) does: "stop" the training, or "continue" it. Earlier
        checkpoints stay as they are.
    resume : bool
        Start from the newest whole checkpoint of the folder, if there is one.
    """

    folder: Path
    every: int = 0
    keep: int = 2
    on_error: Literal["stop", "continue"] = "stop"
    resume: bool = True

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(f"every is {self.every}; allowed: from 0")
        if self.keep < 2:
            raise ValueError(f"keep is {self.keep}; allowed: from 2")
        if self.on_error not in ("stop", "continue"):
            raise ValueError(f"on_error is {self.on_error!r}; allowed: stop, continue")


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a training was resumed from.

    Attributes
    ----------
    path : str
        On rank 0's disk.
    step : int
    position : object
        Of this rank's data.
    damaged : tuple of str
        Newer files that could not be used, and why.
    same_plan : bool
        Whether it was trained with this very plan; with another one of the same model the losses
        may differ in their last bits.
    """

    path: str
    step: int
    position: Any
    damaged: tuple[str, ...]
    same_plan: bool


def save(runner: StepRunner, config: Checkpoints, step: int, position: Any) -> str | None:
    """Write a checkpoint; all ranks call this, and all get the same answer.

    Parameters
    ----------
    runner : StepRunner
    config : Checkpoints
    step : int
        Steps done.
    position : object
        Of this rank's data, made of what JSON knows; None without one.

    Returns
    -------
    str or None
        Why it failed.

    Raises
    ------
    TypeError
        If the position is made of anything else.
    """
    communicator = runner.communicator
    what = f"the checkpoint of step {step}"
    try:
        json.dumps(position, allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise TypeError(f"state_dict() of the data must be what JSON can hold: {wrong}") from wrong
    names = [spec.name for spec in runner.state]
    digests = [hashlib.sha256(as_bytes([runner.value(n)])[0].data).digest() for n in names]
    everywhere = communicator.allgather((digests, position), what)
    differing = {
        name
        for index, name in enumerate(names)
        if name != RANK and len({theirs[index] for theirs, _ in everywhere}) > 1
    }
    own = {name: runner.value(name) for name in names if name in differing}
    by_rank = communicator.allgather(own, what) if differing else []
    error = None
    if communicator.rank == 0:
        header = _header(runner, step, differing, [position for _, position in everywhere])

        def value_of(tensor: StoredTensor) -> NDArray[Any]:
            if tensor.rank is None:
                return runner.value(tensor.name)
            stored: NDArray[Any] = by_rank[tensor.rank][tensor.name]
            return stored

        try:
            config.folder.mkdir(parents=True, exist_ok=True)
            path = config.folder / f"step-{step:09d}.checkpoint"
            write_checkpoint(path, header, value_of)
            _prune(config, path)
        except OSError as failure:
            error = f"{what} failed: {failure}"
    answers: list[str | None] = communicator.allgather(error, what)
    return answers[0]


def _header(runner: StepRunner, step: int, differing: set[str], positions: Sequence[Any]) -> Header:
    world_size = runner.communicator.world_size
    tensors = []
    for spec in runner.state:
        ranks = range(world_size) if spec.name in differing else [None]
        tensors += [
            StoredTensor(name=spec.name, shape=spec.shape, dtype=spec.dtype, rank=rank)
            for rank in ranks
        ]
    return Header(
        step=step,
        world_size=world_size,
        plan=runner.plan.name,
        plan_digest=runner.plan.digest,
        positions=tuple(positions),
        tensors=tuple(tensors),
    )


def _prune(config: Checkpoints, written: Path) -> None:
    """Remove all but the newest whole checkpoints, and what writers that died left behind.

    Damaged files do not count, so that there always are as many whole ones as were asked for.
    `written` is known to be whole.
    """
    for leftover in config.folder.glob(".step-*.checkpoint.tmp"):
        leftover.unlink()
    num_whole = 0
    for _, path in _files(config.folder):
        if num_whole >= config.keep:
            path.unlink()
            continue
        with suppress(ValueError):
            if path != written:
                read_header(path)
            num_whole += 1


def _files(folder: Path) -> list[tuple[int, Path]]:
    """(step, file) of a folder's checkpoints, the newest first."""
    found = []
    for path in folder.glob("step-*.checkpoint"):
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def _newest(folder: Path) -> tuple[Path, Header, tuple[str, ...]] | None:
    """The newest whole checkpoint, and what is wrong with newer ones; None without any file.

    Raises
    ------
    ValueError
        If there are files and none is whole: starting anew must be the user's decision.
    """
    damaged: list[str] = []
    for _, path in _files(folder):
        try:
            return path, read_header(path), tuple(damaged)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    if damaged:
        raise ValueError(f"no checkpoint in {folder} is whole: {'; '.join(damaged)}")
    return None


def restore(runner: StepRunner, config: Checkpoints) -> Restored | None:
    """Set the state of all ranks to the newest whole checkpoint; all ranks call this.

    Returns
    -------
    Restored or None
        None if the folder holds no checkpoint.

    Raises
    ------
    ValueError
        On every rank: no file is whole; it is of another model or optimizer; it holds values or
        data positions of each rank, and there are more or fewer ranks now.
    """
    communicator = runner.communicator
    found, error = None, None
    if communicator.rank == 0:
        try:
            found = _newest(config.folder)
        except ValueError as failure:
            error = str(failure)
    found, error = communicator.allgather((found, error), "finding a checkpoint")[0]
    if error is not None:
        raise ValueError(error)
    if found is None:
        return None
    path, header, damaged = found
    _check(header, runner)
    if communicator.rank == 0:
        arrays = read_tensors(path, header)
    else:
        arrays = [np.empty(tensor.shape, np.dtype(tensor.dtype)) for tensor in header.tensors]
    communicator.broadcast(as_bytes(arrays))
    for tensor, array in zip(header.tensors, arrays, strict=True):
        if tensor.name != RANK and tensor.rank in (None, communicator.rank):
            runner.set_value(tensor.name, array)
    return Restored(
        path=str(path),
        step=header.step,
        position=header.positions[communicator.rank % header.world_size],
        damaged=damaged,
        same_plan=header.plan_digest == runner.plan.digest,
    )


def _check(header: Header, runner: StepRunner) -> None:
    check_tensors(header, {spec.name: (spec.shape, spec.dtype) for spec in runner.state})
    world_size = runner.communicator.world_size
    of_ranks = any(position is not None for position in header.positions) or any(
        tensor.rank is not None for tensor in header.tensors
    )
    if of_ranks and header.world_size != world_size:
        raise ValueError(
            f"the checkpoint of step {header.step} holds values of each of {header.world_size} "
            f"ranks (data positions or local buffers), and there are {world_size} now"
        )
