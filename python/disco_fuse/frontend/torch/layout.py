"""Names, order and initial values of what goes into a training step."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from tvm import relax

from disco_fuse.frontend.optimizer import Optimizer, StateTensor
from disco_fuse.frontend.random import key_of_seed
from disco_fuse.frontend.torch.constants import to_numpy
from disco_fuse.frontend.torch.converters.registry import TVM_DTYPES
from disco_fuse.frontend.torch.draws import draws_random_numbers
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.training_step import (
    OPTIMIZER_PREFIX,
    RANDOM_KEY,
    RANDOM_STEP,
    RANK,
)

# Averages and updates of these are computed in float32.
HALF_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What main takes after the batch, all in the order of the model.

    Attributes
    ----------
    inputs : tuple of str
        The batch.
    parameters, buffers : tuple of str
    trained : tuple of str
        Those parameters that get a gradient.
    states : dict
        Trained parameter to its full names and state tensors.
    shared : dict
        Full name to state tensor of the optimizer as a whole.
    runtime : dict
        Name to state tensor of the rank and the random numbers, where the step needs them.
    """

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    trained: tuple[str, ...]
    states: dict[str, dict[str, StateTensor]]
    shared: dict[str, StateTensor]
    runtime: dict[str, StateTensor]

    @property
    def all_states(self) -> dict[str, StateTensor]:
        """Full name to state tensor."""
        owned = (item for states in self.states.values() for item in states.items())
        return dict(owned) | self.shared | self.runtime

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of main's parameters after the batch."""
        return (*self.parameters, *self.buffers, *self.all_states)


def make_layout(
    joint: JointGraph,
    inputs: tuple[str, ...],
    optimizer: Optimizer,
    *,
    seed: int,
    needs_rank: bool,
) -> Layout:
    """Fix the order of everything.

    Raises
    ------
    ValueError
        If a tensor of the model has the name of a state tensor.
    """
    parameters = tuple(name for name in joint.tensors if name in joint.parameters)
    trained = tuple(name for name in parameters if name in joint.gradients)
    layout = Layout(
        inputs=inputs,
        parameters=parameters,
        buffers=tuple(name for name in joint.tensors if name in joint.buffers),
        trained=trained,
        states={name: _states(name, optimizer, joint.tensors[name]) for name in trained},
        shared={OPTIMIZER_PREFIX + s.name: s for s in optimizer.shared_state()},
        runtime=_runtime_state(draws_random_numbers(joint.graph), seed, needs_rank),
    )
    twice = [name for name, count in Counter(layout.arguments).items() if count > 1]
    if twice:
        raise ValueError(
            f"{twice} are names in the model and of state that the step adds; rename them"
        )
    return layout


def _runtime_state(draws: bool, seed: int, needs_rank: bool) -> dict[str, StateTensor]:
    values = {RANK: 0} if draws or needs_rank else {}
    if draws:
        values |= {RANDOM_STEP: 0, RANDOM_KEY: key_of_seed(seed)}
    return {
        name: StateTensor(name=name, shape=(), dtype="uint32", value=value)
        for name, value in values.items()
    }


def _states(name: str, optimizer: Optimizer, tensor: torch.Tensor) -> dict[str, StateTensor]:
    dtype = tvm_dtype("a parameter", tensor)
    wide = "float32" if dtype in HALF_DTYPES else dtype
    return {f"{name}.{state.name}": state for state in optimizer.state(tuple(tensor.shape), wide)}


def input_names(
    model: torch.nn.Module, count: int, loss: Callable[..., Any] | None
) -> tuple[str, ...]:
    """Names from the signature of forward; the target of a loss is called "target"."""
    accepted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in signature if parameter.kind in accepted]
    read = count if loss is None else count - 1
    names = [names[i] if i < len(names) else f"input_{i}" for i in range(read)]
    return tuple(names if loss is None else [*names, "target"])


def initial_values(joint: JointGraph, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """Copies of the model's tensors, and the initial state."""
    values = {name: to_numpy(joint.tensors[name]) for name in (*layout.parameters, *layout.buffers)}
    return values | {name: state.initial() for name, state in layout.all_states.items()}


def tvm_dtype(name: str, tensor: torch.Tensor) -> str:
    """TVM's name of a tensor's dtype; TypeError, which calls the tensor `name`, if it has none."""
    if tensor.dtype not in TVM_DTYPES:
        allowed = ", ".join(str(dtype) for dtype in TVM_DTYPES)
        raise TypeError(f"{name} has dtype {tensor.dtype}; supported are {allowed}")
    return TVM_DTYPES[tensor.dtype]


def identifier(name: str) -> str:
    """A name of a variable for a name in the model."""
    return "".join(c if c.isalnum() else "_" for c in name)


def tensor_type(shape: Sequence[int], dtype: str) -> relax.TensorType:
    """The type of a tensor of static shape."""
    return relax.TensorType([int(extent) for extent in shape], dtype)
