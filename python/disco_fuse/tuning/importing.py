"""From a named model to a lowered module with its AllReduces, and on to a search problem."""

from __future__ import annotations

import time
from dataclasses import dataclass

import tvm

from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.lower import lower
from disco_fuse.target import host_target
from disco_fuse.tuning.problem import Problem
from disco_fuse.workload import load_workload


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


def import_step(reference: str, *, library_convolutions: bool = False) -> ImportedStep:
    """Import the workload that ``reference`` names.

    Parameters
    ----------
    reference : str
        ``package.module:function`` or ``file.py:function``.
    library_convolutions : bool
        See :func:`disco_fuse.lower.lower`.

    Raises
    ------
    ValueError
        ``reference`` names no workload.
    UnsupportedOperatorError
        The model uses an operator that is not verified.
    """
    # Needs torch, which a search from a saved problem does without.
    from disco_fuse.frontend.torch import training_step

    workload = load_workload(reference)
    example = workload.example_tensors()
    begin = time.perf_counter()
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    mod = tvm.transform.Sequential([InsertAllReduce()])(step.mod)
    mod = lower(
        mod,
        host_target(),
        library=library_available(),
        library_convolutions=library_convolutions,
    )
    import_s = time.perf_counter() - begin
    return ImportedStep(step=step, mod=mod, extraction=extract(mod), import_s=import_s)


def import_problem(name: str, reference: str, *, library_convolutions: bool = False) -> Problem:
    """The search problem of the workload that ``reference`` names; it is called ``name``."""
    step = import_step(reference, library_convolutions=library_convolutions)
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
