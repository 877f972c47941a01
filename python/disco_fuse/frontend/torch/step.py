"""From a PyTorch model to a training step in Relax.

model, loss -> export (joint graph) -> translate (Relax) -> optimizer updates -> TrainingStep
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
import tvm
from torch import fx
from tvm import relax

from disco_fuse.frontend.optimizer import Optimizer, StateTensor
from disco_fuse.frontend.torch.constants import to_numpy
from disco_fuse.frontend.torch.converters.registry import TVM_DTYPES, Expr
from disco_fuse.frontend.torch.export import JointGraph, export
from disco_fuse.frontend.torch.translate import translate
from disco_fuse.frontend.training_step import TrainingStep


def training_step(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
    optimizer: Optimizer,
) -> TrainingStep:
    """Import forward, backward and update of a model as one Relax function.

    With ``loss``, the last example input is the target, and the training loss is
    ``loss(model(*inputs[:-1]), inputs[-1])``, as in the usual training loop. Without it the model
    itself returns the loss, or a tuple or list with the loss first; the other results become
    outputs of the step.

    The model runs in the mode it is in (``model.train()`` or not), and neither its weights, nor its
    gradients, buffers or mode are changed. Shapes and dtypes are those of the examples.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters with ``requires_grad`` are trained; the others stay as they are.
    example_inputs : sequence of torch.Tensor
        One batch; only shapes and dtypes matter, as long as the model does not branch on values.
    loss : callable, optional
        A function or module from (model output, target) to a scalar tensor.
    optimizer : Optimizer
        Writes the updates, for instance :class:`disco_fuse.frontend.SGD`.

    Raises
    ------
    TypeError
        If an example input is not a tensor, or a dtype is not supported.
    ValueError
        If the loss is not a scalar or depends on no trained parameter, or the model writes to its
        inputs.
    UnsupportedOperatorError
        If the graph holds an operator without a verified translation, or a random one.
    """
    if not example_inputs or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        kinds = [type(x).__name__ for x in example_inputs]
        raise TypeError(f"example_inputs must be one or more tensors, got {kinds}")
    joint = export(model, example_inputs, loss)
    layout = _layout(joint, _input_names(model, len(example_inputs), loss), optimizer)
    mod, gradient_names = _build(joint, layout, optimizer)
    return TrainingStep(
        mod=mod,
        input_names=layout.inputs,
        parameter_names=layout.parameters,
        buffer_names=layout.buffers,
        state_names=tuple(layout.states),
        output_names=layout.outputs,
        gradient_names=gradient_names,
        unused_parameters=joint.unused_parameters,
        values=_values(joint, layout),
    )


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Names of main's parameters and outputs; states by name, with the tensor each describes."""

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    states: dict[str, StateTensor]
    outputs: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.parameters, *self.buffers, *self.states)


def _input_names(
    model: torch.nn.Module, count: int, loss: Callable[..., Any] | None
) -> tuple[str, ...]:
    """Names from the signature of forward; the target of a loss is called "target"."""
    accepted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in signature if parameter.kind in accepted]
    read = count if loss is None else count - 1
    names = [names[i] if i < len(names) else f"input_{i}" for i in range(read)]
    return tuple(names if loss is None else [*names, "target"])


def _layout(joint: JointGraph, inputs: tuple[str, ...], optimizer: Optimizer) -> _Layout:
    """Fix the order of everything, that of the model."""
    parameters = tuple(name for name in joint.tensors if name in joint.parameters)
    buffers = tuple(name for name in joint.tensors if name in joint.buffers)
    trained = [name for name in parameters if name in joint.gradients]
    states = {
        f"{name}.{state.name}": state
        for name in trained
        for state in _states(optimizer, joint.tensors[name])
    }
    outputs = (
        "loss",
        *(f"output_{i}" for i in range(len(joint.outputs))),
        *trained,
        *(name for name in buffers if name in joint.new_buffers),
        *states,
    )
    return _Layout(
        inputs=inputs, parameters=parameters, buffers=buffers, states=states, outputs=outputs
    )


def _states(optimizer: Optimizer, tensor: torch.Tensor) -> tuple[StateTensor, ...]:
    return optimizer.state(tuple(tensor.shape), _dtype("a parameter", tensor))


def _dtype(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in TVM_DTYPES:
        allowed = ", ".join(str(dtype) for dtype in TVM_DTYPES)
        raise TypeError(f"{name} has dtype {tensor.dtype}; supported are {allowed}")
    return TVM_DTYPES[tensor.dtype]


def _build(
    joint: JointGraph, layout: _Layout, optimizer: Optimizer
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Emit main; also the names of the gradients' variables."""
    builder = relax.BlockBuilder()
    inputs = [_variable(n, node) for n, node in zip(layout.inputs, joint.inputs, strict=True)]
    arguments = {n: _variable(f"p_{n}", joint.parameters[n]) for n in layout.parameters}
    arguments |= {n: _variable(f"b_{n}", joint.buffers[n]) for n in layout.buffers}
    for name, state in layout.states.items():
        arguments[name] = relax.Var(_identifier(f"s_{name}"), _type(state.shape, state.dtype))
    variables = dict(zip(joint.inputs, inputs, strict=True))
    variables |= {node: arguments[name] for name, node in joint.parameters.items()}
    variables |= {node: arguments[name] for name, node in joint.buffers.items()}
    hints = {node: _identifier(f"grad_{name}") for name, node in joint.gradients.items()}
    with builder.function("main", [*inputs, *arguments.values()]):
        with builder.dataflow():
            values = translate(joint, variables, builder, hints)
            gradients = _gradients(joint, values, builder)
            new = {name: values[node] for name, node in joint.new_buffers.items()}
            for name, gradient in gradients.items():
                new |= _update(name, gradient, arguments, layout, builder, optimizer)
            first = [values[node] for node in (joint.loss, *joint.outputs)]
            rest = [new[name] for name in layout.outputs[len(first) :]]
            result = builder.emit_output(relax.Tuple([*first, *rest]))
        builder.emit_func_output(result)
    names = {name: str(gradient.name) for name, gradient in gradients.items()}
    return _finish(builder.get(), layout, names), names


def _variable(name: str, placeholder: fx.Node) -> relax.Var:
    value = placeholder.meta["val"]
    return relax.Var(_identifier(name), _type(value.shape, _dtype(name, value)))


def _type(shape: Sequence[int], dtype: str) -> relax.TensorType:
    return relax.TensorType([int(extent) for extent in shape], dtype)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _gradients(
    joint: JointGraph, values: Mapping[fx.Node, Expr], builder: relax.BlockBuilder
) -> dict[str, relax.Var]:
    """The variable that is averaged over ranks, for every trained parameter.

    A gradient that the backward pass reads again (or that is no computed value) gets a copy of its
    own: averaging it in place would change what the backward pass reads.
    """
    output = joint.graph.output_node()
    gradients: dict[str, relax.Var] = {}
    copies: dict[fx.Node, relax.Var] = {}
    for name, node in joint.gradients.items():
        value = values[node]
        read_again = set(node.users) != {output} or node in (joint.loss, *joint.outputs)
        if (read_again or not isinstance(value, relax.DataflowVar)) and node not in copies:
            one = relax.const(1, value.ty.dtype)
            hint = _identifier(f"grad_{name}")
            copies[node] = builder.emit(relax.op.multiply(value, one), name_hint=hint)
        gradients[name] = copies.get(node, value)
    return gradients


def _update(
    name: str,
    gradient: relax.Var,
    arguments: Mapping[str, relax.Var],
    layout: _Layout,
    builder: relax.BlockBuilder,
    optimizer: Optimizer,
) -> dict[str, relax.Var]:
    """Emit the update of one parameter; its new value and new state by name."""
    prefix = f"{name}."
    owned = {s.name: n for n, s in layout.states.items() if n == prefix + s.name}
    state = {short: arguments[full] for short, full in owned.items()}
    new, new_state = optimizer.emit(builder, arguments[name], gradient, state)
    if set(new_state) != set(state):
        raise ValueError(
            f"{optimizer} returned the state {sorted(new_state)} for '{name}', declared was "
            f"{sorted(state)}"
        )
    return {name: new} | {owned[short]: variable for short, variable in new_state.items()}


def _finish(mod: tvm.IRModule, layout: _Layout, gradients: dict[str, str]) -> tvm.IRModule:
    """Remove what nobody reads and attach the attributes."""
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    mod = tvm.transform.Sequential(passes)(mod)
    outputs = {name: index for index, name in enumerate(layout.outputs)}
    donated: list[int] = []
    for index, name in enumerate(layout.arguments, start=len(layout.inputs)):
        if name in outputs:
            donated += (index, outputs[name])
    main = mod["main"].with_attr("num_input", len(layout.inputs))
    main = main.with_attr("disco_fuse.gradients", list(dict.fromkeys(gradients.values())))
    mod["main"] = main.with_attr("disco_fuse.donated", donated)
    relax.analysis.well_formed(mod)
    return mod


def _values(joint: JointGraph, layout: _Layout) -> dict[str, npt.NDArray[Any]]:
    """Copies of the model's tensors, and the initial state."""
    values = {name: to_numpy(joint.tensors[name]) for name in (*layout.parameters, *layout.buffers)}
    return values | {name: state.initial() for name, state in layout.states.items()}
