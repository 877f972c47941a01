"""Fusion groups for the tests of the CUDA schedules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from disco_fuse.kernels.cpu import MarkOps
from disco_fuse.target import gpu_target
from disco_fuse.testing import group_module

TARGET = gpu_target("sm_90")

Build = Callable[..., Any]
Spec = tuple[tuple[int, ...], str]


def f32(*shape: int) -> Spec:
    """Shape and type of a float32 tensor."""
    return shape, "float32"


def fused(build: Build, specs: Sequence[Spec]) -> tirx.PrimFunc:
    """The PrimFunc of one fusion group, legalised for a GPU.

    `build(emit, *variables)` emits Relax ops and returns the group's outputs.
    """
    types = [relax.TensorType(shape, dtype) for shape, dtype in specs]
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        MarkOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with TARGET:
        mod = tvm.transform.Sequential(passes)(group_module(build, types))
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


def random_inputs(specs: Sequence[Spec], seed: int = 0) -> list[NDArray[Any]]:
    """Standard normal numbers; integers are 0 to 3, booleans half true."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for shape, dtype in specs:
        if dtype == "bool":
            arrays.append(rng.random(shape) > 0.5)
        elif dtype.startswith("int"):
            arrays.append(rng.integers(0, 4, shape).astype(dtype))
        else:
            arrays.append(np.asarray(rng.standard_normal(shape), dtype=dtype))
    return arrays


def buffer_inputs(func: tirx.PrimFunc, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The inputs, and outputs that hold something else than a result."""
    rest = func.params[len(inputs) :]
    shapes = [([int(e) for e in buffer.ty.shape], str(buffer.ty.dtype)) for buffer in rest]
    return [*inputs, *(np.full(shape, 77, dtype) for shape, dtype in shapes)]


@contextmanager
def rules_used() -> Iterator[list[str]]:
    """Names of the rules that write something meanwhile, in order."""
    names: list[str] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            rule, _, rest = record.getMessage().partition(": wrote")
            if rest:
                names.append(rule)

    logger = logging.getLogger("disco_fuse.kernels")
    handler, level = Note(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield names
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
