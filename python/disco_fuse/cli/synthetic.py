"""Made-up state and batches of a plan, to try it where neither weights nor data are at hand."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes  # noqa: F401 - numpy learns the names of bfloat16 and its like
import numpy as np
from numpy.typing import NDArray

from disco_fuse.plan import Plan, TensorSpec
from disco_fuse.trainer.loop import Batch

_DEVIATION = 0.02  # of made-up weights, that of GPT-2's initialisation (Radford et al., 2019)
_SCALARS = {"optimizer.learning_rate": 1e-3, "optimizer.loss_scale": 1.0}


def synthetic_values(plan: Plan, seed: int) -> dict[str, NDArray[np.generic]]:
    """Small random weights, variances of 1, and optimizer state before the first step."""
    rng = np.random.default_rng(seed)
    state = plan.tensors[plan.num_inputs :]
    names = {spec.name for spec in state}
    return {spec.name: _value(spec, names, rng) for spec in state}


def _value(spec: TensorSpec, names: set[str], rng: np.random.Generator) -> NDArray[np.generic]:
    owner = spec.name.rpartition(".")[0]
    dtype = np.dtype(spec.dtype)
    if spec.name in _SCALARS:
        return np.full(spec.shape, _SCALARS[spec.name], dtype)
    if spec.name.endswith("running_var"):
        return np.ones(spec.shape, dtype)
    if owner in names or owner == "optimizer" or not _is_float(dtype):
        return np.zeros(spec.shape, dtype)
    return np.asarray(rng.standard_normal(spec.shape) * _DEVIATION).astype(dtype)


def synthetic_batches(plan: Plan, rank: int, seed: int) -> Iterator[Batch]:
    """Endless batches: normal numbers, and zeros and ones where indices or classes are meant."""
    rng = np.random.default_rng([seed, rank])
    inputs = plan.tensors[: plan.num_inputs]
    while True:
        yield tuple(_input(spec, rng) for spec in inputs)


def _input(spec: TensorSpec, rng: np.random.Generator) -> NDArray[np.generic]:
    dtype = np.dtype(spec.dtype)
    if _is_float(dtype):
        return np.asarray(rng.standard_normal(spec.shape)).astype(dtype)
    return rng.integers(0, 2, spec.shape).astype(dtype)


def _is_float(dtype: np.dtype[np.generic]) -> bool:
    # ml_dtypes' numbers are of kind "V" to numpy.
    return dtype.kind in "fV"
