"""Forward and backward of every micro-batch of a step, one after the other.

    batch [k * b, ...]  ->  k slices [b, ...]  ->  k losses, k gradients of each parameter

Buffers pass from one micro-batch to the next, and each draws its own random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import fx
from tvm import relax

from disco_fuse.frontend.random import RandomSource
from disco_fuse.frontend.torch.converters.registry import Expr, dtype_of, shape_of
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.torch.translate import translate

op = relax.op
Values = Mapping[fx.Node, Expr]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What the loss of a micro-batch is multiplied by before the backward pass.

    Attributes
    ----------
    weight : relax.Expr or None
        float32[k], the caller's weight of each micro-batch.
    loss_scale : relax.Expr or None
        float64 scalar.
    """

    weight: Expr | None
    loss_scale: Expr | None

    @property
    def is_dynamic(self) -> bool:
        """Whether the joint graph has an input for the factor."""
        return self.weight is not None or self.loss_scale is not None

    def factor(self, builder: relax.BlockBuilder, index: int, count: int) -> Expr:
        """The factor of one micro-batch, a float64 scalar: for a mean of all unless weighted."""
        factors = [] if self.loss_scale is None else [self.loss_scale]
        if self.weight is not None:
            own = _slice(builder, self.weight, index, count)
            factors.append(builder.emit(op.astype(op.reshape(own, []), "float64")))
        elif count > 1:
            factors.append(relax.const(1.0 / count, "float64"))
        return reduce(lambda a, b: builder.emit(op.multiply(a, b)), factors)


def micro_batch(inputs: Sequence[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    """The first of `count` micro-batches.

    Raises
    ------
    ValueError
        If `count` is below 1, or does not divide the leading size of every input.
    """
    if count < 1:
        raise ValueError(f"accumulate must be at least 1, got {count}")
    if count == 1:
        return tuple(inputs)
    shapes = [list(x.shape) for x in inputs]
    if not all(shape and shape[0] % count == 0 for shape in shapes):
        raise ValueError(
            f"accumulate={count} must divide the leading size of every input; shapes are {shapes}"
        )
    return tuple(x[: x.shape[0] // count] for x in inputs)


def emit_micro_batches(
    joint: JointGraph,
    inputs: Sequence[relax.Var],
    variables: Mapping[fx.Node, relax.Var],
    builder: relax.BlockBuilder,
    hints: Mapping[fx.Node, str],
    source: RandomSource | None,
    scaling: Scaling,
    count: int,
) -> list[Values]:
    """The values of all nodes, for every micro-batch.

    Parameters
    ----------
    joint : JointGraph
        Of one micro-batch; its last input is the factor if the scaling is dynamic.
    inputs : sequence of relax.Var
        The batch.
    variables : mapping
        Placeholder to variable, for parameters and buffers.
    builder, hints, source
        As in :func:`translate`.
    scaling : Scaling
    count : int
        The number of micro-batches.
    """
    results: list[Values] = []
    current: dict[fx.Node, Expr] = dict(variables)
    for index in range(count):
        own = [_slice(builder, x, index, count) for x in inputs]
        if scaling.is_dynamic:
            own.append(scaling.factor(builder, index, count))
        known = current | dict(zip(joint.inputs, own, strict=True))
        values = translate(joint, known, builder, hints if count == 1 else {}, source)
        results.append(values)
        current |= {joint.buffers[n]: values[node] for n, node in joint.new_buffers.items()}
    return results


def emit_loss(
    joint: JointGraph, results: Sequence[Values], builder: relax.BlockBuilder, scaling: Scaling
) -> Expr:
    """The mean loss of the micro-batches, weighted if the caller gives weights."""
    count = len(results)
    losses = [values[joint.loss] for values in results]
    if count == 1:
        return losses[0]
    dtype = dtype_of(losses[0])
    if scaling.weight is None:
        total = reduce(lambda a, b: builder.emit(op.add(a, b)), losses)
        return builder.emit(op.multiply(total, relax.const(1.0 / count, dtype)))
    column = builder.emit(op.concat([op.reshape(loss, [1]) for loss in losses], 0))
    weights = builder.emit(op.astype(scaling.weight, dtype))
    total = builder.emit(op.sum(op.multiply(column, weights)))
    return builder.emit(op.divide(total, op.sum(weights)))


def emit_outputs(
    joint: JointGraph, results: Sequence[Values], builder: relax.BlockBuilder
) -> list[Expr]:
    """The model's other outputs, joined along axis 0; of scalars, one per micro-batch."""
    if len(results) == 1:
        return [results[0][node] for node in joint.outputs]
    return [
        builder.emit(op.concat([_with_axis(values[node]) for values in results], 0))
        for node in joint.outputs
    ]


def _with_axis(value: Expr) -> Expr:
    return value if shape_of(value) else op.reshape(value, [1])


def _slice(builder: relax.BlockBuilder, x: Expr, index: int, count: int) -> Expr:
    if count == 1:
        return x
    size = shape_of(x)[0] // count
    return builder.emit(op.strided_slice(x, [0], [index * size], [(index + 1) * size]))
