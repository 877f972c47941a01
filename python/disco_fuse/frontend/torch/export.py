"""Lets PyTorch write forward and backward of a training loss as one graph.

    model, loss -> torch.export (forward) -> checks -> torch's joint export -> JointGraph

The joint graph is functional: it takes parameters, buffers and the batch, and returns the loss,
further outputs, the new values of written buffers, and one gradient per trainable parameter.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend.torch.draws import check_draws, check_no_draw_is_lost
from disco_fuse.frontend.torch.provenance import number_calls
from disco_fuse.frontend.torch.refusals import (
    refuse_dynamic,
    refuse_hooks,
    refusing_rebinding,
    refusing_what_export_cannot_see,
)
from disco_fuse.frontend.torch.simplify import simplify

_FAILURE_LOGS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True, kw_only=True)
class JointGraph:
    """Forward and backward of a loss as one functional ATen graph.

    Parameters
    ----------
    graph : torch.fx.Graph
        Placeholders, calls, one output node.
    inputs : tuple of torch.fx.Node
        Placeholders of the batch, in the order of the example inputs.
    parameters, buffers : dict
        Name in the model to placeholder; only those that the graph reads.
    constants : dict
        Placeholder to value of tensors that the model's code created.
    loss : torch.fx.Node
        The scalar loss.
    outputs : tuple of torch.fx.Node
        What the model returned besides the loss.
    gradients, new_buffers : dict
        Name in the model to the node that computes it.
    unused_parameters : tuple of str
        Parameters that require a gradient and get none.
    tensors : dict
        All parameters and buffers of the model (not copied) by name, in the model's order. A tensor
        with several names (tied parameters) has the first of them here and everywhere above.
    forward : torch.export.ExportedProgram
        The forward program, which knows modules and source lines.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    parameters: dict[str, fx.Node]
    buffers: dict[str, fx.Node]
    constants: dict[fx.Node, torch.Tensor]
    loss: fx.Node
    outputs: tuple[fx.Node, ...]
    gradients: dict[str, fx.Node]
    new_buffers: dict[str, fx.Node]
    unused_parameters: tuple[str, ...]
    tensors: dict[str, torch.Tensor]
    forward: torch.export.ExportedProgram


class _Loss(torch.nn.Module):  # type: ignore[misc]
    """What is differentiated first, then the detached other outputs; holds `model` and `loss`.

    With a factor, the loss times it is differentiated, and the loss is the first other output.
    """

    def __init__(
        self, model: torch.nn.Module, loss: Callable[..., Any] | None, factor: float | None
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.factor = factor

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        factor: Any = self.factor
        if factor is None:
            *inputs, factor = inputs  # type: ignore[assignment]
        loss, *others = self._results(*inputs)
        if self.factor == 1.0:
            return (loss, *(other.detach() for other in others))
        return (loss * factor, loss.detach(), *(other.detach() for other in others))

    def _results(self, *inputs: Any) -> tuple[Any, ...] | list[Any]:
        with refusing_rebinding(self):
            result = self.model(*(inputs if self.loss is None else inputs[:-1]))
            if self.loss is not None:
                result = self.loss(result, inputs[-1])
        return result if isinstance(result, tuple | list) else (result,)


def export(
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    loss: Callable[..., Any] | None,
    factor: float | None = 1.0,
) -> JointGraph:
    """Forward and backward of a model and its loss; see :func:`training_step` for the arguments.

    Gradients are those of the loss times `factor`; if it is None, it is one more input at the end,
    a float64 scalar.

    Raises
    ------
    UnsupportedOperatorError
        If an operator draws random numbers in a way that torch's joint graph loses, or that there
        is no converter for.
    ValueError
        If the loss is not a scalar that depends on a trained parameter, or the model writes to its
        inputs.
    """
    module = _Loss(model, loss, factor)
    if factor is None:
        inputs = (*inputs, torch.ones((), dtype=torch.float64))
    program = _export_forward(module, inputs)
    num_draws = check_draws(program)
    names, tensors = _names_and_tensors(module)
    unused, shared = _inspect_gradients(program)
    joint = _export_joint(program, unused, shared)
    check_no_draw_is_lost(joint, num_draws)
    graph = _sort_by_role(joint, names, tensors, unused, program)
    if factor == 1.0:
        return graph
    return replace(graph, loss=graph.outputs[0], outputs=graph.outputs[1:])


def _names_and_tensors(module: _Loss) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The user's name for every parameter and buffer of the wrapper, and the tensor behind it."""
    names: dict[str, str] = {}
    first: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    for named in (module.named_parameters, module.named_buffers):
        for target, tensor in named(remove_duplicate=False):
            name = first.setdefault(id(tensor), target.removeprefix("model."))
            names[target] = name
            if tensors.setdefault(name, tensor) is not tensor:
                raise ValueError(f"'{name}' is a name in the model and in the loss; rename one")
    return names, tensors


@contextmanager
def _export_settings() -> Iterator[None]:
    """Attention in its plain form, and without torch's warnings about its own deprecations."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        yield


@contextmanager
def without_reports_of_failure() -> Iterator[None]:
    """Keep what torch prints when a model fails off standard error; the exception says it as well.

    That is the graph so far (``torch/export/_trace.py``, ``_log_export_wrapper``), and the
    traceback that ``_FAILURE_LOGS`` write. All else that is printed comes at the end.
    """
    said, graph = io.StringIO(), None
    loggers = [logging.getLogger(name) for name in _FAILURE_LOGS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        graph = getattr(error, "partial_fx_graph", None)
        raise
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled
        sys.stderr.write(said.getvalue().replace("" if graph is None else f"{graph}\n", ""))


def _export_forward(module: _Loss, inputs: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """The forward program of the training loss."""
    refuse_hooks(module)
    with _export_settings(), refusing_what_export_cannot_see(), without_reports_of_failure():
        program = torch.export.export(module, tuple(x.detach() for x in inputs))
    refuse_dynamic(program)
    return program


def _export_joint(
    program: torch.export.ExportedProgram, unused: tuple[str, ...], shared: tuple[str, ...]
) -> torch.export.ExportedProgram:
    """Forward and backward of an exported loss as one simplified graph."""
    from torch.export.experimental import _export_forward_backward

    for spec, node in zip(
        program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder"), strict=True
    ):
        if spec.target in unused:  # torch's joint export refuses a gradient that does not exist
            node.meta["val"] = node.meta["val"].detach()
        elif spec.target in shared:
            _multiply_by_one(program.graph, node)
    program.graph_module.recompile()
    with _export_settings():
        try:
            joint = _export_forward_backward(program)
        except Exception as error:  # whatever torch's own code stumbles over
            raise UnsupportedOperatorError(
                "torch's joint export of forward and backward pass fails for this model "
                f"({type(error).__name__}: {error}); leave out parts of it to find the cause"
            ) from error
    number_calls(joint.graph)
    simplify(joint.graph)
    return joint


def _multiply_by_one(graph: fx.Graph, parameter: fx.Node) -> None:
    """Give a parameter a gradient node of its own; simplification removes the product again.

    Torch's joint export fails on two parameters with one gradient, as in ``x + a + b``.
    """
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        product = graph.call_function(torch.ops.aten.mul.Tensor, (parameter, 1.0))
    product.meta = {"val": parameter.meta["val"]}
    parameter.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)


def _inspect_gradients(
    program: torch.export.ExportedProgram,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A backward pass on fake tensors, to see which gradients are missing and which are the same.

    Returns
    -------
    tuple
        Parameters that require a gradient and get none; parameters that get the very tensor that
        an earlier one got.
    """
    trainable, loss, mode = _fake_loss(program)
    if loss.dim() != 0 or not loss.dtype.is_floating_point:
        raise ValueError(
            f"the loss must be a floating-point scalar, got shape {list(loss.shape)} of "
            f"{loss.dtype}; reduce it with mean() or sum()"
        )
    if not loss.requires_grad:
        raise ValueError("the loss depends on no parameter that requires a gradient")
    with mode:
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    unused, shared, seen = [], [], set()
    for name, gradient in zip(trainable, gradients, strict=True):
        if gradient is None:
            unused.append(name)
        elif id(gradient) in seen:
            shared.append(name)
        seen.add(id(gradient))
    return tuple(unused), tuple(shared)


def _fake_loss(
    program: torch.export.ExportedProgram,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, Any]:
    """Trainable parameters and the loss as fake tensors, and the mode they live in."""
    placeholders = program.graph.find_nodes(op="placeholder")
    mode = torch._guards.detect_fake_mode([node.meta["val"] for node in placeholders])
    trainable, arguments = {}, []
    with mode:
        for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
            value = node.meta["val"].detach().clone()
            if spec.kind is InputKind.PARAMETER and node.meta["val"].requires_grad:
                trainable[spec.target] = value.requires_grad_()
            arguments.append(value)
        loss = fx.Interpreter(program.graph_module).run(*arguments)[0]
    return trainable, loss, mode


def _sort_by_role(
    joint: torch.export.ExportedProgram,
    names: dict[str, str],
    tensors: dict[str, torch.Tensor],
    unused: tuple[str, ...],
    forward: torch.export.ExportedProgram,
) -> JointGraph:
    """Read torch's signature of the joint program."""
    placeholders: dict[InputKind, dict[str, fx.Node]] = {kind: {} for kind in InputKind}
    inputs = []
    for spec, node in zip(
        joint.graph_signature.input_specs, joint.graph.find_nodes(op="placeholder"), strict=True
    ):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        else:
            placeholders[spec.kind][spec.target] = node
            node.meta["tensor_name"] = names.get(spec.target, spec.target)
    results: dict[OutputKind, dict[str, fx.Node]] = {kind: {} for kind in OutputKind}
    outputs = []
    for spec, node in zip(
        joint.graph_signature.output_specs, joint.graph.output_node().args[0], strict=True
    ):
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(node)
        else:
            results[spec.kind][spec.target or ""] = node
    if results[OutputKind.USER_INPUT_MUTATION]:
        changed = sorted(results[OutputKind.USER_INPUT_MUTATION])
        raise ValueError(f"the model writes to its inputs {changed}, which a step cannot do")
    gradients = _named(results[OutputKind.GRADIENT_TO_PARAMETER], names)
    values = joint.constants
    return JointGraph(
        graph=joint.graph,
        inputs=tuple(inputs),
        parameters=_named(placeholders[InputKind.PARAMETER], names),
        buffers=_named(placeholders[InputKind.BUFFER], names),
        constants={n: values[t] for t, n in placeholders[InputKind.CONSTANT_TENSOR].items()},
        loss=results[OutputKind.LOSS_OUTPUT][""],
        outputs=tuple(outputs),
        gradients=gradients,
        new_buffers=_named(results[OutputKind.BUFFER_MUTATION], names),
        unused_parameters=tuple(sorted({names[name] for name in unused} - set(gradients))),
        tensors=tensors,
        forward=forward,
    )


def _named(nodes: dict[str, fx.Node], names: dict[str, str]) -> dict[str, fx.Node]:
    """Nodes that are read or computed, by the user's names and in the model's order."""
    used = {target: node for target, node in nodes.items() if node.users}
    found = {names[target]: node for target, node in used.items()}
    assert len(found) == len(used), "tied names read separately"
    return {name: found[name] for name in dict.fromkeys(names.values()) if name in found}
