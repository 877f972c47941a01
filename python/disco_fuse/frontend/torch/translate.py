"""Walks a joint graph and emits Relax, one converter call per node, checking every result.

Every node must be on the verified list, and what its converter emits must have the shape and dtype
that torch computed for it; most faults of a converter surface here, with the node's name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from disco_fuse.frontend.random import RandomSource
from disco_fuse.frontend.torch.constants import collapse, fold_constants
from disco_fuse.frontend.torch.converters import CONVERTERS, Node, Refusal
from disco_fuse.frontend.torch.converters.registry import TVM_DTYPES, Expr, dtype_of, shape_of
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.torch.provenance import unsupported
from disco_fuse.frontend.torch.verified import VERIFIED_OPERATORS

_COMPUTE_AGAIN = frozenset(
    {
        torch.ops.aten._embedding_bag_backward.default,
        torch.ops.aten._embedding_bag_per_sample_weights_backward.default,
        torch.ops.aten.max_pool2d_with_indices_backward.default,
    }
)


def translate(
    joint: JointGraph,
    variables: Mapping[fx.Node, relax.Var],
    builder: relax.BlockBuilder,
    names: Mapping[fx.Node, str],
    random: RandomSource | None = None,
) -> dict[fx.Node, Expr]:
    """Emit the calls of a joint graph into the builder's dataflow block.

    Parameters
    ----------
    joint : JointGraph
        What to translate; results that nobody reads are not emitted.
    variables : mapping
        Placeholder to parameter of the Relax function.
    builder : relax.BlockBuilder
        Inside a dataflow block.
    names : mapping
        Names for the variables of some nodes; the others keep torch's.
    random : RandomSource, optional
        Needed if a node draws random numbers.

    Returns
    -------
    dict
        Node to Relax expression, for every node that an output reads.

    Raises
    ------
    UnsupportedOperatorError
        If an operator is not verified, or not for these arguments.
    """
    constants = _Constants(fold_constants(joint.graph, joint.constants), builder)
    values: dict[fx.Node, Any] = dict(variables)
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in constants.values:
            continue
        if node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
            if values[node] is None and not _only_read_as_none(node):
                reason = f"result {node.args[1]} is not computed, but the model reads it."
                raise unsupported(node.args[0], reason, joint.forward)
            continue
        emit = _named_emit(builder, names.get(node, node.name))
        values[node] = _convert(joint, Node(node, emit, random), values, constants)
    outputs = joint.graph.output_node().all_input_nodes
    return values | {n: constants.dense(n) for n in outputs if n in constants.values}


def _named_emit(builder: relax.BlockBuilder, name: str) -> Callable[[Expr], Expr]:
    return lambda expr: builder.emit(expr, name_hint=name)


def _convert(
    joint: JointGraph, context: Node, values: dict[fx.Node, Any], constants: _Constants
) -> Any:
    """Convert one call and check the result against torch's."""
    node = context.fx_node
    target = str(node.target)
    if target not in VERIFIED_OPERATORS:
        raise unsupported(node, "there is no verified translation.", joint.forward)
    for dtype in _dtypes(node) - TVM_DTYPES.keys():
        allowed = ", ".join(map(str, TVM_DTYPES))
        reason = f"its result has dtype {dtype}; supported are {allowed}."
        raise unsupported(node, reason, joint.forward)
    entry = CONVERTERS[target]

    def argument(x: fx.Node) -> Any:
        if x in values:
            return values[x]
        return constants.collapsed(x) if entry.broadcasts else constants.dense(x)

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), argument)
    try:
        result = entry.convert(context, *args, **kwargs)
    except Refusal as refusal:
        raise unsupported(node, f"{refusal}.", joint.forward) from None
    if entry.broadcasts and shape_of(result) != context.shape:  # what is constant was collapsed
        result = context.emit(relax.op.broadcast_to(result, context.shape))
    _check(node, result)
    return result


def _dtypes(node: fx.Node) -> set[torch.dtype]:
    value = node.meta["val"]
    results = [value] if isinstance(value, torch.Tensor) else value
    return {result.dtype for result in results if result is not None}


def _only_read_as_none(node: fx.Node) -> bool:
    """Whether all readers are backward passes that compute such results again."""
    return all(user.target in _COMPUTE_AGAIN for user in node.users)


def _check(node: fx.Node, result: Any) -> None:
    """Compare shapes and dtypes with torch's; None stands for a result that is not computed."""
    single = isinstance(node.meta["val"], torch.Tensor)
    expected = [node.meta["val"]] if single else list(node.meta["val"])
    actual = [result] if single else list(result)
    assert len(actual) == len(expected), f"{node.format_node()}: {len(actual)} results"
    for want, got in zip(expected, actual, strict=True):
        if got is None:
            continue
        wanted = ([int(extent) for extent in want.shape], TVM_DTYPES[want.dtype])
        if (shape_of(got), dtype_of(got)) != wanted:
            raise AssertionError(
                f"the converter of {node.target} (node '{node.name}') gives "
                f"{shape_of(got)} {dtype_of(got)}, torch computes {wanted[0]} {wanted[1]}"
            )


class _Constants:
    """Relax constants for folded values; equal values share one."""

    def __init__(self, values: dict[fx.Node, torch.Tensor], builder: relax.BlockBuilder) -> None:
        self.values = values
        self.builder = builder
        self._emitted: dict[Any, Expr] = {}

    def collapsed(self, node: fx.Node) -> Expr:
        """The value as an operand that broadcasts: extent 1 where it is uniform."""
        array = collapse(self.values[node])
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._emitted:
            self._emitted[key] = relax.const(np.asarray(array), str(array.dtype))
        return self._emitted[key]

    def dense(self, node: fx.Node) -> Expr:
        """The value with its full shape."""
        small, shape = self.collapsed(node), [int(extent) for extent in self.values[node].shape]
        if shape_of(small) == shape:
            return small
        key = (small, tuple(shape))
        if key not in self._emitted:
            if small.ty.ndim == 0:
                expr = relax.op.full(shape, small, dtype_of(small))
            else:
                expr = relax.op.broadcast_to(small, shape)
            self._emitted[key] = self.builder.emit(expr, name_hint=node.name)
        return self._emitted[key]
