"""Evaluates, with torch, what depends on no input: masks, positions, the loss's own gradient.

What is uniform along an axis keeps extent 1 there, so a causal mask that torch expands over batch
and heads stays one [T, T] constant, and a tensor full of one value stays a scalar.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import fx

aten = torch.ops.aten

# Folding must not turn a cheap expression into a huge constant.
_MAX_FOLDED_ELEMENTS = 1 << 20

# The value does not depend on the elements of the first argument, only on its shape.
_FILLS_LIKE = {
    aten.full_like.default: 1,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_full.default: 2,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
}
# Memory that was never written to may hold anything, zeros too.
_FILLS = {
    aten.full.default: 1,
    aten.zeros.default: 0,
    aten.ones.default: 1,
    aten.empty.memory_format: 0,
    aten.new_empty_strided.default: 0,
}


def fold_constants(
    graph: fx.Graph, known: dict[fx.Node, torch.Tensor]
) -> dict[fx.Node, torch.Tensor]:
    """Values of all nodes that can be computed now.

    Parameters
    ----------
    graph : torch.fx.Graph
        A functional ATen graph.
    known : dict
        Placeholders whose value is fixed.

    Returns
    -------
    dict
        Node to value, with `known` included. Values may be expanded views of smaller tensors.
    """
    values: dict[fx.Node, Any] = dict(known)
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        fill = _fill_value(node)
        if fill is not None:
            values[node] = torch.full((), fill, dtype=node.meta["val"].dtype).expand(
                node.meta["val"].shape
            )
        elif _is_foldable(node, values):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
                args = tuple(x.contiguous() if isinstance(x, torch.Tensor) else x for x in args)
            # Simplification removes the copies that make a tensor fit for view.
            function = aten.reshape.default if node.target is aten.view.default else node.target
            with torch.no_grad():
                values[node] = function(*args, **kwargs)
    return values


def _fill_value(node: fx.Node) -> Any:
    """The number that the node fills its result with, or None."""
    if node.target in (aten.full_like.default, aten.new_full.default, aten.full.default):
        position = (_FILLS_LIKE | _FILLS)[node.target]
        return node.args[position]
    return (_FILLS_LIKE | _FILLS).get(node.target)


def _is_foldable(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return (
        all(argument in values for argument in node.all_input_nodes)
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and node.meta["val"].numel() <= _MAX_FOLDED_ELEMENTS
    )


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A copy; bfloat16, which numpy lacks, as the type of that name in ml_dtypes (TVM needs it)."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy(), copy=True, order="C")


def collapse(value: torch.Tensor) -> npt.NDArray[Any]:
    """The value with extent 1 along every axis on which it is uniform; a scalar if on all.

    Uniform means bit for bit, so that zeros keep their sign and NaN counts as equal to itself.
    """
    for axis in range(value.dim()):
        if value.stride(axis) == 0 and value.shape[axis] > 1:
            value = value.narrow(axis, 0, 1)
    array = to_numpy(value)
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            first = array.take([0], axis=axis)
            bits, first_bits = (a.view(f"u{a.itemsize}") for a in (array, first))
            if (bits == first_bits).all():
                array = np.ascontiguousarray(first)
    return array.reshape(()) if array.size == 1 else array
