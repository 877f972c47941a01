"""From a PyTorch model to a training step in Relax.

model, loss -> export (joint graph) -> translate (Relax) -> optimizer updates -> TrainingStep
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax

from disco_fuse.frontend.optimizer import Optimizer
from disco_fuse.frontend.random import RandomSource
from disco_fuse.frontend.torch.export import JointGraph, export
from disco_fuse.frontend.torch.layout import (
    Layout,
    identifier,
    initial_values,
    input_names,
    make_layout,
    tensor_type,
    tvm_dtype,
)
from disco_fuse.frontend.torch.translate import translate
from disco_fuse.frontend.torch.updates import emit_gradients, emit_update
from disco_fuse.frontend.training_step import RANDOM_STEP, TrainingStep


def training_step(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
    optimizer: Optimizer,
    seed: int = 0,
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
    seed : int
        Of the random numbers (0 to 2**32 - 1) of a model with dropout and the like. They depend on
        it, on the rank and on the number of steps, all of them state of the step.

    Raises
    ------
    TypeError
        If an example input is not a tensor, or a dtype is not supported.
    ValueError
        If the loss is not a scalar or depends on no trained parameter, or the model writes to its
        inputs.
    UnsupportedOperatorError
        If the graph holds an operator without a verified translation.
    """
    if not example_inputs or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        kinds = [type(x).__name__ for x in example_inputs]
        raise TypeError(f"example_inputs must be one or more tensors, got {kinds}")
    joint = export(model, example_inputs, loss)
    layout = make_layout(joint, input_names(model, len(example_inputs), loss), optimizer, seed)
    mod, outputs, gradient_names = _build(joint, layout, optimizer)
    return TrainingStep(
        mod=mod,
        input_names=layout.inputs,
        parameter_names=layout.parameters,
        buffer_names=layout.buffers,
        state_names=tuple(layout.all_states),
        output_names=outputs,
        gradient_names=gradient_names,
        unused_parameters=joint.unused_parameters,
        values=initial_values(joint, layout),
    )


def _build(
    joint: JointGraph, layout: Layout, optimizer: Optimizer
) -> tuple[tvm.IRModule, tuple[str, ...], dict[str, str]]:
    """Emit main; also the names of its outputs and of the gradients' variables."""
    builder = relax.BlockBuilder()
    inputs = [_variable(n, node) for n, node in zip(layout.inputs, joint.inputs, strict=True)]
    arguments = _arguments(joint, layout)
    variables = dict(zip(joint.inputs, inputs, strict=True))
    variables |= {node: arguments[name] for name, node in joint.parameters.items()}
    variables |= {node: arguments[name] for name, node in joint.buffers.items()}
    hints = {node: identifier(f"grad_{name}") for name, node in joint.gradients.items()}
    with builder.function("main", [*inputs, *arguments.values()]):
        with builder.dataflow():
            source, new = None, {}
            if layout.random:
                source = RandomSource(builder, *(arguments[name] for name in layout.random))
                one = relax.const(1, "uint32")
                new[RANDOM_STEP] = builder.emit(relax.op.add(arguments[RANDOM_STEP], one))
            values = translate(joint, variables, builder, hints, source)
            gradients = emit_gradients(joint, values, builder)
            new |= {name: values[node] for name, node in joint.new_buffers.items()}
            new |= emit_update(gradients, arguments, layout, builder, optimizer)
            results = {"loss": values[joint.loss]}
            results |= {f"output_{i}": values[node] for i, node in enumerate(joint.outputs)}
            results |= {name: new[name] for name in layout.arguments if name in new}
            result = builder.emit_output(relax.Tuple(list(results.values())))
        builder.emit_func_output(result)
    names = {name: str(gradient.name) for name, gradient in gradients.items()}
    outputs = tuple(results)
    return _finish(builder.get(), layout, outputs, names), outputs, names


def _arguments(joint: JointGraph, layout: Layout) -> dict[str, relax.Var]:
    """Parameters, buffers and states as variables by name."""
    arguments = {n: _variable(f"p_{n}", joint.parameters[n]) for n in layout.parameters}
    arguments |= {n: _variable(f"b_{n}", joint.buffers[n]) for n in layout.buffers}
    for name, state in layout.all_states.items():
        arguments[name] = relax.Var(identifier(f"s_{name}"), tensor_type(state.shape, state.dtype))
    return arguments


def _variable(name: str, placeholder: fx.Node) -> relax.Var:
    value = placeholder.meta["val"]
    return relax.Var(identifier(name), tensor_type(value.shape, tvm_dtype(name, value)))


def _finish(
    mod: tvm.IRModule, layout: Layout, outputs: tuple[str, ...], gradients: dict[str, str]
) -> tvm.IRModule:
    """Remove what nobody reads and attach the attributes."""
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    mod = tvm.transform.Sequential(passes)(mod)
    positions = {name: index for index, name in enumerate(outputs)}
    donated: list[int] = []
    for index, name in enumerate(layout.arguments, start=len(layout.inputs)):
        if name in positions:
            donated += (index, positions[name])
    main = mod["main"].with_attr("num_input", len(layout.inputs))
    main = main.with_attr("disco_fuse.gradients", list(dict.fromkeys(gradients.values())))
    mod["main"] = main.with_attr("disco_fuse.donated", donated)
    relax.analysis.well_formed(mod)
    return mod
