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

from disco_fuse.frontend.optimizer import LOSS_SCALE, Optimizer, is_loss_scaled
from disco_fuse.frontend.random import RandomSource
from disco_fuse.frontend.torch.buffers import (
    BUFFER_MODES,
    BufferMode,
    emit_buffers,
    writes_statistics,
)
from disco_fuse.frontend.torch.converters.registry import Expr, dtype_of
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
from disco_fuse.frontend.torch.micro_batches import (
    Scaling,
    emit_loss,
    emit_micro_batches,
    emit_outputs,
    micro_batch,
)
from disco_fuse.frontend.torch.updates import (
    emit_gradients,
    emit_total_weight,
    emit_update,
    emit_weighted_mean,
)
from disco_fuse.frontend.training_step import (
    BATCH_WEIGHT,
    OPTIMIZER_PREFIX,
    RANDOM_KEY,
    RANDOM_STEP,
    RANK,
    TrainingStep,
)


def training_step(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
    optimizer: Optimizer,
    accumulate: int = 1,
    weighted: bool = False,
    buffers: BufferMode = "broadcast",
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
    accumulate : int
        The batch is that many micro-batches, one after the other along axis 0 of every input.
        Forward and backward run on each (batch normalisation sees one at a time), and the mean of
        their gradients is averaged over ranks and applied once, as k calls of
        ``(loss / k).backward()``. The step's loss is the mean; other outputs are joined along
        axis 0.
    weighted : bool
        The step takes one more input at the end, "batch_weight", float32[accumulate]: the number of
        samples or tokens that each micro-batch's mean loss stands for. Gradients become
        ``sum(weight * gradient) / sum(weight)`` over micro-batches and ranks, which for batches of
        unequal or masked size is the gradient of the joined batch. The loss is weighted likewise,
        within the rank. The weights of a step must not all be 0.
    buffers : str
        What becomes of floating-point buffers that the model writes, such as running statistics:
        with "broadcast" all ranks get rank 0's, as with PyTorch's DDP; with "average" the average
        of all ranks; with "local" each keeps its own.
    seed : int
        Of the random numbers (0 to 2**32 - 1) of a model with dropout and the like. They depend on
        it, on the rank and on the number of steps, all of them state of the step.

    Raises
    ------
    TypeError
        If `model`, `example_inputs`, `loss` or `optimizer` is of another kind, or a dtype is not
        supported.
    ValueError
        If the loss is not a scalar or depends on no trained parameter, the model writes to its
        inputs, `buffers` is none of these words, or `accumulate` does not divide the leading size
        of an input.
    UnsupportedOperatorError
        If the graph holds an operator without a verified translation.
    """
    _check_arguments(model, example_inputs, loss, optimizer)
    if buffers not in BUFFER_MODES:
        raise ValueError(f"buffers is {buffers!r}; allowed: {', '.join(BUFFER_MODES)}")
    scaled = weighted or is_loss_scaled(optimizer)
    factor = None if scaled else 1.0 / accumulate if accumulate > 0 else 1.0
    joint = export(model, micro_batch(example_inputs, accumulate), loss, factor)
    names = input_names(model, len(example_inputs), loss)
    needs_rank = buffers == "broadcast" and writes_statistics(joint)
    layout = make_layout(joint, names, optimizer, seed=seed, needs_rank=needs_rank)
    inputs = [
        relax.Var(identifier(name), tensor_type(x.shape, tvm_dtype(name, x)))
        for name, x in zip(names, example_inputs, strict=True)
    ]
    weight = relax.Var(BATCH_WEIGHT, tensor_type([accumulate], "float32")) if weighted else None
    return _build(joint, layout, optimizer, inputs, weight, accumulate, buffers)


def _check_arguments(model: object, examples: object, loss: object, optimizer: object) -> None:
    """Refuse what is not what the parameter of that name takes, before torch fails on it."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(examples, torch.Tensor) or not isinstance(examples, Sequence):
        kind = type(examples).__name__
        raise TypeError(f"example_inputs must be a tuple or list of tensors, got a {kind}")
    if not examples or not all(isinstance(x, torch.Tensor) for x in examples):
        kinds = [type(x).__name__ for x in examples]
        raise TypeError(f"example_inputs must be one or more tensors, got {kinds}")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function (output, target) -> scalar, got {loss!r}")
    if loss is not None and len(examples) < 2:
        raise ValueError("with a loss, example_inputs are the model's inputs and the target: got 1")
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__module__ + "." + type(optimizer).__qualname__
        raise TypeError(
            f"optimizer must be one of disco_fuse.frontend (SGD, Adam, AdamW, ...), got {kind}: "
            "the update is part of the step's graph, which torch.optim cannot write"
        )


def _build(
    joint: JointGraph,
    layout: Layout,
    optimizer: Optimizer,
    inputs: list[relax.Var],
    weight: relax.Var | None,
    accumulate: int,
    buffers: BufferMode,
) -> TrainingStep:
    """Emit main."""
    builder = relax.BlockBuilder()
    arguments = _arguments(joint, layout)
    batch = inputs if weight is None else [*inputs, weight]
    with builder.function("main", [*batch, *arguments.values()]):
        with builder.dataflow():
            results, averaged = _emit(
                joint, layout, optimizer, builder, arguments, inputs, weight, accumulate, buffers
            )
            result = builder.emit_output(relax.Tuple(list(results.values())))
        builder.emit_func_output(result)
    input_names = (*layout.inputs, *([] if weight is None else [BATCH_WEIGHT]))
    gradient_names = {name: str(averaged[name].name) for name in layout.trained}
    to_average = dict.fromkeys(str(variable.name) for variable in averaged.values())
    return TrainingStep(
        mod=_finish(builder.get(), layout, len(batch), tuple(results), list(to_average)),
        input_names=input_names,
        parameter_names=layout.parameters,
        buffer_names=layout.buffers,
        state_names=tuple(layout.all_states),
        output_names=tuple(results),
        gradient_names=gradient_names,
        unused_parameters=joint.unused_parameters,
        values=initial_values(joint, layout),
    )


def _emit(
    joint: JointGraph,
    layout: Layout,
    optimizer: Optimizer,
    builder: relax.BlockBuilder,
    arguments: dict[str, relax.Var],
    inputs: list[relax.Var],
    weight: relax.Var | None,
    accumulate: int,
    buffers: BufferMode,
) -> tuple[dict[str, Expr], dict[str, relax.Var]]:
    """Emit the body; the step's outputs, and what is averaged over ranks, by name."""
    source, new = None, {}
    if RANDOM_STEP in layout.runtime:
        state = (arguments[name] for name in (RANDOM_STEP, RANK, RANDOM_KEY))
        source = RandomSource(builder, *state)
        one = relax.const(1, "uint32")
        new[RANDOM_STEP] = builder.emit(relax.op.add(arguments[RANDOM_STEP], one))
    scaling = Scaling(weight=weight, loss_scale=arguments.get(OPTIMIZER_PREFIX + LOSS_SCALE))
    variables = {node: arguments[name] for name, node in joint.parameters.items()}
    variables |= {node: arguments[name] for name, node in joint.buffers.items()}
    hints = {node: identifier(f"grad_{name}") for name, node in joint.gradients.items()}
    results = emit_micro_batches(
        joint, inputs, variables, builder, hints, source, scaling, accumulate
    )
    averaged = emit_gradients(joint, results, builder)
    gradients: dict[str, Expr] = dict(averaged)
    if weight is not None:
        total = emit_total_weight(weight, averaged, builder)
        gradients = emit_weighted_mean(averaged, total, builder)
        averaged[BATCH_WEIGHT] = total
    written = {
        name: _in_dtype_of(arguments[name], results[-1][node], builder)
        for name, node in joint.new_buffers.items()
    }
    written, also_averaged = emit_buffers(written, buffers, arguments.get(RANK), builder)
    new |= written
    averaged |= also_averaged
    new |= emit_update(gradients, arguments, layout, builder, optimizer)
    outputs = {"loss": emit_loss(joint, results, builder, scaling)}
    for index, value in enumerate(emit_outputs(joint, results, builder)):
        outputs[f"output_{index}"] = value
    outputs |= {name: new[name] for name in layout.arguments if name in new}
    return outputs, averaged


def _in_dtype_of(buffer: relax.Var, value: Expr, builder: relax.BlockBuilder) -> Expr:
    """What is written to a buffer: torch's graph has statistics of half precision in float32."""
    same = dtype_of(value) == dtype_of(buffer)
    return value if same else builder.emit(relax.op.astype(value, dtype_of(buffer)))


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
    mod: tvm.IRModule,
    layout: Layout,
    num_inputs: int,
    outputs: tuple[str, ...],
    gradients: list[str],
) -> tvm.IRModule:
    """Remove what nobody reads and attach the attributes."""
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    mod = tvm.transform.Sequential(passes)(mod)
    positions = {name: index for index, name in enumerate(outputs)}
    donated: list[int] = []
    for index, name in enumerate(layout.arguments, start=num_inputs):
        if name in positions:
            donated += (index, positions[name])
    main = mod["main"].with_attr("num_input", num_inputs)
    main = main.with_attr("disco_fuse.gradients", gradients)
    mod["main"] = main.with_attr("disco_fuse.donated", donated)
    relax.analysis.well_formed(mod)
    return mod
