"""The result of a frontend: a training step in Relax, with the meaning of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

# State of the whole optimizer, not of one parameter.
OPTIMIZER_PREFIX = "optimizer."
LEARNING_RATE = "optimizer.learning_rate"
# The last input of a weighted step.
BATCH_WEIGHT = "batch_weight"
# uint32 scalars: this rank, the one state in which ranks differ; steps begun and key of the random
# numbers.
RANK, RANDOM_STEP, RANDOM_KEY = "rank", "random.step", "random.key"


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingStep:
    """One training step as a Relax module; two of them are equal only if they are the same object.

    ``main`` takes ``input_names``, then ``parameter_names``, ``buffer_names``, ``state_names``, and
    returns a flat tuple of ``output_names``. Its attributes are ``num_input`` (of the batch),
    ``disco_fuse.gradients`` (names of variables) and ``disco_fuse.donated`` (parameter index,
    output index, ...: that output is the new value of that parameter).

    Parameters
    ----------
    mod : tvm.IRModule
        One function ``main`` with one dataflow block.
    input_names : tuple of str
        The batch, in the order of the example inputs.
    parameter_names, buffer_names : tuple of str
        Names in the model. A parameter that is tied to others has the first of their names;
        what the loss does not read is left out.
    state_names : tuple of str
        Optimizer state, as ``parameter name`` + ``.`` + ``name in the optimizer``; then what there
        is once, as ``optimizer.`` + name. "optimizer.learning_rate" (a float64 scalar) is never
        written by the step: the caller may change it between steps.
    output_names : tuple of str
        "loss", "output_0"..., then the names of updated parameters, buffers and states.
    gradient_names : mapping
        Trained parameter to the variable of main that is its gradient.
    unused_parameters : tuple of str
        Parameters that require a gradient, get none, and are not updated.
    values : mapping
        Initial values by name; read them with :meth:`initial_values`.
    """

    mod: tvm.IRModule
    input_names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    buffer_names: tuple[str, ...]
    state_names: tuple[str, ...]
    output_names: tuple[str, ...]
    gradient_names: Mapping[str, str]
    unused_parameters: tuple[str, ...]
    values: Mapping[str, npt.NDArray[Any]] = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient_names", MappingProxyType(dict(self.gradient_names)))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of main's parameters after the batch: parameters, buffers, state."""
        return self.parameter_names + self.buffer_names + self.state_names

    @property
    def donated(self) -> dict[int, int]:
        """Index of a parameter of main to the index of the output that is its new value."""
        flat = [int(index) for index in self.mod["main"].attrs["disco_fuse.donated"]]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def initial_values(self) -> tuple[npt.NDArray[Any], ...]:
        """Copies of the values of :attr:`names`, in that order, from when the step was made."""
        return tuple(np.array(self.values[name]) for name in self.names)
