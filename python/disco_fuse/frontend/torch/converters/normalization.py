"""Layer and batch normalisation, with the statistics that their backward passes read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    TVM_DTYPES,
    Expr,
    Node,
    Refusal,
    accumulator_of,
    axis_of,
    cast,
    converts,
    dtype_of,
    shape_of,
)

op = relax.op


def _standardise(node: Node, x: Expr, axes: list[int], eps: float) -> tuple[Expr, Expr, Expr, Expr]:
    """(x - mean) / sqrt(var + eps), mean, var (biased), 1 / sqrt(var + eps); axes are kept.

    All in the dtype that torch accumulates in, in which it also applies weight and bias.
    """
    emit = node.emit
    x = cast(node, x, accumulator_of(dtype_of(x)))
    mean = emit(op.mean(x, axes, keepdims=True))
    centred = emit(op.subtract(x, mean))
    var = emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True))
    rstd = emit(op.rsqrt(emit(op.add(var, relax.const(eps, dtype_of(x))))))
    return emit(op.multiply(centred, rstd)), mean, var, rstd


def _statistic(node: Node, value: Expr, result: int) -> Expr:
    """A statistic in the dtype in which torch returns it."""
    return cast(node, value, TVM_DTYPES[node.value[result].dtype])


@converts("aten.native_layer_norm.default")
def native_layer_norm(
    node: Node,
    x: Expr,
    normalized_shape: Sequence[int],
    weight: Expr | None,
    bias: Expr | None,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    """(x - mean) * rstd * weight + bias over the last axes; also mean and rstd"""
    rank = len(shape_of(x))
    axes = list(range(rank - len(normalized_shape), rank))
    y, mean, _, rstd = _standardise(node, x, axes, eps)
    if weight is not None:
        y = node.emit(op.multiply(y, cast(node, weight, dtype_of(y))))
    if bias is not None:
        y = node.emit(op.add(y, cast(node, bias, dtype_of(y))))
    return cast(node, y, dtype_of(x)), _statistic(node, mean, 1), _statistic(node, rstd, 2)


@converts("aten._native_batch_norm_legit_functional.default")
def native_batch_norm(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr,
    running_var: Expr,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    """Normalisation over all axes but 1; also mean, rstd, and the new running statistics

    running = (1 - momentum) * running + momentum * batch statistic; the running variance takes
    the unbiased one (n / (n - 1)), the normalisation the biased one.
    """
    if not training:
        y = _with_fixed_statistics(node, x, weight, bias, running_mean, running_var, eps)
        kept = (_statistic(node, value, 3) for value in (running_mean, running_var))
        return y, None, None, *kept
    y, mean, var, rstd = _with_batch_statistics(node, x, weight, bias, eps)
    count = math.prod(shape_of(x)) // shape_of(x)[1]
    if count < 2:
        raise Refusal(f"batch statistics need more than one value per channel: {shape_of(x)}")
    new_mean = _moving_average(node, running_mean, mean, momentum, 1.0)
    new_var = _moving_average(node, running_var, var, momentum, count / (count - 1))
    new_mean, new_var = _statistic(node, new_mean, 3), _statistic(node, new_var, 4)
    return y, _statistic(node, mean, 1), _statistic(node, rstd, 2), new_mean, new_var


def _moving_average(node: Node, old: Expr, new: Expr, momentum: float, factor: float) -> Expr:
    dtype = dtype_of(new)
    kept = node.emit(op.multiply(cast(node, old, dtype), relax.const(1 - momentum, dtype)))
    added = node.emit(op.multiply(new, relax.const(momentum * factor, dtype)))
    return node.emit(op.add(kept, added))


@converts("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_running_statistics(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    _training: bool,
    _momentum: float,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    """Normalisation over all axes but 1 with the batch's own statistics; also mean and rstd"""
    y, mean, _, rstd = _with_batch_statistics(node, x, weight, bias, eps)
    return y, _statistic(node, mean, 1), _statistic(node, rstd, 2)


@converts("aten._native_batch_norm_legit_no_training.default")
def batch_norm_in_eval_mode(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr,
    running_var: Expr,
    _momentum: float,
    eps: float,
) -> tuple[Expr, None, None]:
    """(x - running mean) / sqrt(running var + eps) * weight + bias; the two others are empty"""
    return _with_fixed_statistics(node, x, weight, bias, running_mean, running_var, eps), None, None


def _with_batch_statistics(
    node: Node, x: Expr, weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, Expr, Expr, Expr]:
    """The normalised x, and mean, variance (biased) and rstd per channel, [C] each."""
    axes = [axis for axis in range(len(shape_of(x))) if axis != 1]
    y, *statistics = _standardise(node, x, axes, eps)
    channels = [shape_of(x)[1]]
    mean, var, rstd = (node.emit(op.reshape(value, channels)) for value in statistics)
    y = cast(node, _scaled_per_channel(node, y, weight, bias), dtype_of(x))
    return y, mean, var, rstd


def _with_fixed_statistics(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr,
    var: Expr,
    eps: float,
) -> Expr:
    emit = node.emit
    dtype = accumulator_of(dtype_of(x))
    mean, var = (cast(node, value, dtype) for value in (mean, var))
    rstd = emit(op.rsqrt(emit(op.add(var, relax.const(eps, dtype)))))
    centred = emit(op.subtract(cast(node, x, dtype), _per_channel(node, mean, x)))
    y = emit(op.multiply(centred, _per_channel(node, rstd, x)))
    return cast(node, _scaled_per_channel(node, y, weight, bias), dtype_of(x))


def _scaled_per_channel(node: Node, y: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    if weight is not None:
        y = node.emit(op.multiply(y, cast(node, _per_channel(node, weight, y), dtype_of(y))))
    if bias is not None:
        y = node.emit(op.add(y, cast(node, _per_channel(node, bias, y), dtype_of(y))))
    return y


def _per_channel(node: Node, values: Expr, x: Expr) -> Expr:
    """[C] as [1, C, 1, ...], to broadcast against x."""
    line = [extent if axis == 1 else 1 for axis, extent in enumerate(shape_of(x))]
    return node.emit(op.reshape(values, line))


@converts("aten.native_group_norm.default")
def native_group_norm(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    batch: int,
    _channels: int,
    _positions: int,
    groups: int,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    """Normalisation over groups of neighbouring channels; also mean and rstd, [batch, groups]"""
    size = math.prod(shape_of(x)) // (batch * groups)
    apart = node.emit(op.reshape(x, [batch, groups, size]))
    y, mean, _, rstd = _standardise(node, apart, [2], eps)
    y = _scaled_per_channel(node, node.emit(op.reshape(y, shape_of(x))), weight, bias)
    y = cast(node, y, dtype_of(x))
    mean, rstd = (node.emit(op.reshape(value, [batch, groups])) for value in (mean, rstd))
    return y, _statistic(node, mean, 1), _statistic(node, rstd, 2)


@converts("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    node: Node, grad: Expr, v: Expr, g: Expr, norms: Expr, dim: int
) -> tuple[Expr, Expr]:
    """Gradients of w = g * v / norm for v and g, the norm being over all axes of v but one

    Source: Salimans and Kingma 2016, equation 3: with s = sum(grad * v) over the same axes, g's is
    s / norm, and v's is g / norm * (grad - v * s / norm ** 2).
    """
    emit, rank = node.emit, len(shape_of(v))
    axes = [axis for axis in range(rank) if axis != axis_of(dim, rank)]
    total = emit(op.sum(emit(op.multiply(grad, v)), axis=axes, keepdims=True))
    for_g = emit(op.divide(total, norms))
    along = emit(op.multiply(v, emit(op.divide(for_g, norms))))
    scale = emit(op.divide(g, norms))
    return emit(op.multiply(scale, emit(op.subtract(grad, along)))), for_g
