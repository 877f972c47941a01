"""What torch's export would lose without a word, or report in words that help nobody.

Lost silently: hooks on gradients, backward passes of custom autograd functions (export sees the
operators inside, and differentiates those), buffers that forward rebinds instead of writing to.
Reported badly: shapes and branches that depend on data, writes to tensors that are no buffers.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend.torch.provenance import origin_of


def refuse_hooks(module: torch.nn.Module) -> None:
    """Refuse backward hooks of modules and parameters.

    Raises
    ------
    UnsupportedOperatorError
        There is one; export would drop it.
    """
    for name, child in module.named_modules():
        if child._backward_hooks or child._backward_pre_hooks:
            raise _lost(f"the backward hook of module '{name.removeprefix('model.')}'", "remove it")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise _lost(f"the hook of parameter '{name.removeprefix('model.')}'", "remove it")


@contextmanager
def refusing_what_export_cannot_see() -> Iterator[None]:
    """While export runs the model: refuse custom autograd functions, tensor hooks, data-dependence.

    Raises
    ------
    UnsupportedOperatorError
        The model uses one of them; the message has the user's line.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    from torch.fx.experimental.symbolic_shapes import (
        GuardOnDataDependentSymNode,
        PendingUnbackedSymbolNotFound,
    )

    function, tensor = torch.autograd.Function, torch.Tensor
    apply, register_hook = function.__dict__["apply"], tensor.register_hook

    def refuse_function(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return apply.__func__(cls, *args, **kwargs)
        raise _lost(
            f"the backward pass of the custom autograd function {cls.__qualname__} "
            f"({_user_line(traceback.extract_stack())})",
            "write it with torch's operators",
        )

    def refuse_hook(_self: torch.Tensor, _hook: Any) -> Any:
        line = _user_line(traceback.extract_stack())
        raise _lost(f"the hook on a tensor ({line})", "remove it")

    function.apply, tensor.register_hook = classmethod(refuse_function), refuse_hook
    try:
        yield
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        GuardOnDataDependentSymNode,
        PendingUnbackedSymbolNotFound,
    ) as error:
        raise _depends_on_data(_user_line(_frames(error.__traceback__))) from error
    except RuntimeError as error:
        if "_apply(): Couldn't swap" not in str(error):
            raise
        line = _user_line(_frames(error.__traceback__))
        raise UnsupportedOperatorError(
            f"the forward pass changes the dtype or device of a parameter ({line}); a step's "
            "parameters keep theirs: change it before the step is made, and remove the line"
        ) from error
    finally:
        function.apply, tensor.register_hook = apply, register_hook


@contextmanager
def refusing_rebinding(module: torch.nn.Module) -> Iterator[None]:
    """Around the forward pass of `module`: refuse that it binds a state tensor anew.

    Raises
    ------
    UnsupportedOperatorError
        A buffer, or a tensor held as a plain attribute, is another one afterwards.
    """
    before = _state_tensors(module)
    yield
    after = _state_tensors(module)
    for name, value in before.items():
        if after.get(name) is not value:
            raise UnsupportedOperatorError(
                f"the forward pass assigns to '{name.removeprefix('model.')}', and the next step "
                "would not see it: make it a buffer (register_buffer) and write to it in place "
                "(copy_, add_, ...)"
            )


def _state_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{name}".removeprefix("."): value
        for prefix, child in module.named_modules()
        for name, value in (*child._buffers.items(), *vars(child).items())
        if isinstance(value, torch.Tensor)
    }


def refuse_dynamic(program: torch.export.ExportedProgram) -> None:
    """Refuse shapes that depend on data, and writes to tensors that nothing keeps.

    Raises
    ------
    UnsupportedOperatorError
        With the module and source line of the operator.
    """
    kinds = {
        node: spec.kind
        for spec, node in zip(
            program.graph_signature.input_specs,
            program.graph.find_nodes(op="placeholder"),
            strict=True,
        )
    }
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if _is_symbolic(node.meta.get("val")):
            raise _depends_on_data(f"{node.target} from {origin_of(node)}")
        for written in _written(node):
            if kinds.get(written) is InputKind.CONSTANT_TENSOR:
                raise UnsupportedOperatorError(
                    f"operator {node.target} (from {origin_of(node)}) writes to a tensor that is "
                    "not a buffer, so the next step would not see it: register it with "
                    "register_buffer"
                )


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_symbolic(item) for item in value)
    if isinstance(value, torch.Tensor):
        return any(not isinstance(extent, int) for extent in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors whose memory an operator writes to, through views of them."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    if node.target is torch.ops.aten.detach_.default:  # declared to write, but leaves values alone
        return
    for schema, argument in zip(node.target._schema.arguments, node.args, strict=False):
        if schema.alias_info is not None and schema.alias_info.is_write:
            while isinstance(argument, fx.Node) and _is_view(argument):
                argument = argument.args[0]
            if isinstance(argument, fx.Node):
                yield argument


def _is_view(node: fx.Node) -> bool:
    """Whether the result shares memory with the first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and any(
        result.alias_info is not None for result in node.target._schema.returns
    )


def _frames(tail: TracebackType | None) -> traceback.StackSummary:
    return traceback.extract_tb(tail)


def _user_line(frames: traceback.StackSummary) -> str:
    """The innermost frame outside torch and this package, as ``file:line: code``."""
    outside = [
        frame
        for frame in frames
        if "/torch/" not in frame.filename and "/disco_fuse/" not in frame.filename
    ]
    return f"{outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}" if outside else "?"


def _lost(what: str, advice: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{what} would be lost, and the gradients wrong: torch's export does not record it; "
        f"{advice}"
    )


def _depends_on_data(where: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"a shape, a branch or a Python number depends on the values of tensors ({where}); a "
        "training step has fixed shapes and no branches. Use torch.where or a mask of fixed shape."
    )
