"""From a named model to a lowered module with its AllReduces, and on to a search problem."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import tvm

from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.lower import lower
from disco_fuse.target import host_target
from disco_fuse.tuning.problem import Problem
from disco_fuse.user_code import user_code
from disco_fuse.workload import Workload, load_workload


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedStep:
    """A training step after lowering.

    Attributes
    ----------
    step : TrainingStep
        What the frontend made of the model.
    mod : tvm.IRModule
        Lowered, with one AllReduce per gradient.
    extraction : Extraction
    import_s : float
        Seconds from the model to the lowered module.
    """

    step: TrainingStep
    mod: tvm.IRModule
    extraction: Extraction
    import_s: float


def import_step(
    reference: str,
    *,
    library_convolutions: bool = False,
    batch: int | None = None,
    target: tvm.target.Target | None = None,
) -> ImportedStep:
    """Import the workload that ``reference`` names.

    Parameters
    ----------
    reference : str
        ``package.module:function`` or ``file.py:function``.
    library_convolutions : bool
        See :func:`disco_fuse.lower.lower`.
    batch : int, optional
        Samples of a rank instead of those of the example batch.
    target : tvm.target.Target, optional
        What the step will be built for, by default this machine's processor; a GPU calls no
        libraries.

    Raises
    ------
    ValueError
        ``reference`` names no workload, or its code raises.
    UnsupportedOperatorError
        The model uses an operator that is not verified.
    """
    # Needs torch, which a search from a saved problem does without.
    from disco_fuse.frontend.torch import training_step

    workload = load_workload(reference)
    example = workload.example_tensors() if batch is None else _resized(workload, batch)
    begin = time.perf_counter()
    with user_code(f"the model or the loss of {reference}"):
        step = training_step(
            workload.model, example, loss=workload.loss, optimizer=workload.optimizer
        )
    mod = tvm.transform.Sequential([InsertAllReduce()])(step.mod)
    target = host_target() if target is None else target
    mod = lower(
        mod,
        target,
        library=target.kind.name == "llvm" and library_available(),
        library_convolutions=library_convolutions,
    )
    import_s = time.perf_counter() - begin
    return ImportedStep(step=step, mod=mod, extraction=extract(mod), import_s=import_s)


def _resized(workload: Workload, batch: int) -> tuple[Any, ...]:
    """The example batch, cut or repeated along the first axis of each of its parts.

    Raises
    ------
    ValueError
        The parts differ in it, so that it is not the batch.
    """
    example = workload.example_tensors()
    sizes = {tuple(part.shape[:1]) for part in example}
    if len(sizes) != 1 or () in sizes:
        shapes = [tuple(part.shape) for part in example]
        raise ValueError(f"the batch is not the first axis of all parts: shapes {shapes}")
    ((size,),) = sizes
    rows = [i % size for i in range(batch)]
    return tuple(part[rows] for part in example)


def import_problem(
    name: str, reference: str, *, library_convolutions: bool = False, batch: int | None = None
) -> Problem:
    """The search problem of the workload that ``reference`` names; it is called ``name``."""
    step = import_step(reference, library_convolutions=library_convolutions, batch=batch)
    return problem_of(name, step, library_convolutions=library_convolutions)


def problem_of(name: str, step: ImportedStep, *, library_convolutions: bool) -> Problem:
    """The search problem of a step that was imported before."""
    return Problem(
        name=name,
        graph=step.extraction.graph,
        emission=fuse_ops(step.mod, step.extraction),
        library_convolutions=library_convolutions,
    )


def import_and_save(name: str, reference: str, library_convolutions: bool, file: str) -> None:
    """:func:`import_problem`, written to ``file``; for a process of its own."""
    import_problem(name, reference, library_convolutions=library_convolutions).save(file)
