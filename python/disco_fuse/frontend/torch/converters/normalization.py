"""Layer and batch normalisation, with the statistics that their backward passes read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    converts,
    dtype_of,
    shape_of,
)

op = relax.op


def _standardise(node: Node, x: Expr, axes: list[int], eps: float) -> tuple[Expr, Expr, Expr, Expr]:
    """(x - mean) / sqrt(var + eps), mean, var (biased), 1 / sqrt(var + eps); axes are kept."""
    emit = node.emit
    mean = emit(op.mean(x, axes, keepdims=True))
    centred = emit(op.subtract(x, mean))
    var = emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True))
    rstd = emit(op.rsqrt(emit(op.add(var, relax.const(eps, dtype_of(x))))))
    return emit(op.multiply(centred, rstd)), mean, var, rstd


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
        y = node.emit(op.multiply(y, weight))
    if bias is not None:
        y = node.emit(op.add(y, bias))
    return y, mean, rstd


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
) -> tuple[Expr, ...]:
    """Normalisation over all axes but 1; also mean, rstd, and the new running statistics

    running = (1 - momentum) * running + momentum * batch statistic; the running variance takes
    the unbiased one (n / (n - 1)), the normalisation the biased one.
    """
    if not training:
        raise Refusal("batch normalisation with fixed statistics is not verified: use train mode")
    emit, shape = node.emit, shape_of(x)
    channels, axes = shape[1], [i for i in range(len(shape)) if i != 1]
    count = math.prod(shape[i] for i in axes)
    if count < 2:
        raise Refusal(f"batch normalisation needs more than one value per channel, got {shape}")
    y, mean, var, rstd = _standardise(node, x, axes, eps)
    line = [channels if i == 1 else 1 for i in range(len(shape))]
    if weight is not None:
        y = emit(op.multiply(y, emit(op.reshape(weight, line))))
    if bias is not None:
        y = emit(op.add(y, emit(op.reshape(bias, line))))
    mean, var, rstd = (emit(op.reshape(s, [channels])) for s in (mean, var, rstd))
    new_mean = _moving_average(node, running_mean, mean, momentum, 1.0)
    new_var = _moving_average(node, running_var, var, momentum, count / (count - 1))
    return y, mean, rstd, new_mean, new_var


def _moving_average(node: Node, old: Expr, new: Expr, momentum: float, factor: float) -> Expr:
    dtype = dtype_of(old)
    kept = node.emit(op.multiply(old, relax.const(1 - momentum, dtype)))
    return node.emit(
        op.add(kept, node.emit(op.multiply(new, relax.const(momentum * factor, dtype))))
    )
