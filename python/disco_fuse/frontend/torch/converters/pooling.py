"""Average pooling over two or three axes (torch makes two of one), with its backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tvm import relax

from disco_fuse.frontend.torch.converters import windows as sliding
from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    converts,
    dtype_of,
    shape_of,
)

op = relax.op

_MEAN = {2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


@converts("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    _ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    """Sum of every window, divided by the number of its elements that count (or by the override)"""
    rank = sliding.pooled_axes(node)
    windows = sliding.Windows.of(rank, shape_of(x), node.shape, kernel, stride, padding)
    mean = node.emit(
        _MEAN[rank](
            sliding.with_batch(node, x, rank),
            pool_size=windows.kernel,
            strides=windows.stride,
            padding=[*windows.padding, *windows.behind()],
            count_include_pad=True,
        )
    )
    mean = sliding.without_batch(node, mean, x)
    return _times(node, mean, _correction(windows, count_include_pad, divisor_override))


def _correction(
    windows: sliding.Windows, count_include_pad: bool, override: int | None
) -> npt.NDArray[np.float64]:
    """Full windows' size over what torch divides by; a scalar where it is the same everywhere."""
    divisors = np.float64(override) if override else windows.divisors(count_include_pad)
    factors = np.asarray(math.prod(windows.kernel) / divisors)
    return factors.reshape(-1)[:1].reshape(()) if np.ptp(factors) == 0 else factors


def _times(node: Node, x: Expr, factors: npt.NDArray[np.float64]) -> Expr:
    if factors.ndim == 0 and factors == 1:
        return x
    return node.emit(op.multiply(x, relax.const(factors.astype(dtype_of(x)), dtype_of(x))))


@converts("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    _ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Expr:
    """The gradient of every window, divided as in the forward pass, for each of its elements"""
    rank = sliding.pooled_axes(node)
    windows = sliding.Windows.of(rank, shape_of(x), shape_of(grad), kernel, stride, padding)
    factors = _correction(windows, count_include_pad, divisor_override)
    return _spread(node, _times(node, grad, factors), x, windows)


def _spread(node: Node, grad: Expr, x: Expr, windows: sliding.Windows) -> Expr:
    """The transpose of the mean over full windows; beyond two axes one by one (it is separable)."""
    if len(windows.kernel) == 2:
        dx = node.emit(
            op.grad.avg_pool2d_backward(
                sliding.with_batch(node, grad, 2),
                sliding.with_batch(node, x, 2),
                pool_size=windows.kernel,
                strides=windows.stride,
                padding=[*windows.padding, *windows.behind()],
                count_include_pad=True,
            )
        )
        return sliding.without_batch(node, dx, x)
    first = len(shape_of(x)) - len(windows.kernel)
    for number, extent in enumerate(windows.extents):
        shape = shape_of(grad)
        before, after = shape[: first + number], shape[first + number + 1 :]
        flat = [math.prod(before), 1, shape[first + number], math.prod(after)]
        whole = [*flat[:2], extent, flat[3]]
        dx = op.grad.avg_pool2d_backward(
            node.emit(op.reshape(grad, flat)),
            node.emit(op.zeros(whole, dtype_of(x))),
            pool_size=[windows.kernel[number], 1],
            strides=[windows.stride[number], 1],
            padding=[windows.padding[number], 0, windows.behind()[number], 0],
            count_include_pad=True,
        )
        grad = node.emit(op.reshape(node.emit(dx), [*before, extent, *after]))
    return grad


@converts(
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def adaptive_avg_pool(node: Node, x: Expr, size: Sequence[int]) -> Expr:
    """Mean of window i of o along each axis: from floor(i * n / o) to ceil((i + 1) * n / o)"""
    first = len(shape_of(x)) - len(size)
    for axis, count in enumerate(node.shape[first:], start=first):
        x = _along(node, x, axis, _adaptive_weights(shape_of(x)[axis], count))
    return x


@converts(
    "aten._adaptive_avg_pool2d_backward.default",
    "aten._adaptive_avg_pool3d_backward.default",
)
def adaptive_avg_pool_backward(node: Node, grad: Expr, x: Expr) -> Expr:
    """The gradient of every window, spread evenly over the window"""
    first = len(shape_of(x)) - sliding.pooled_axes(node)
    for axis, extent in enumerate(shape_of(x)):
        if axis >= first:
            weights = _adaptive_weights(extent, shape_of(grad)[axis])
            grad = _along(node, grad, axis, weights.T)
    return grad


def _adaptive_weights(extent: int, count: int) -> npt.NDArray[np.float64]:
    """Row i holds the weights of window i of the given count; [count, extent]."""
    start, end = sliding.adaptive_bounds(extent, count)
    positions = np.arange(extent)
    inside = (positions >= start[:, None]) & (positions < end[:, None])
    return np.asarray(inside / inside.sum(1, keepdims=True))


def _along(node: Node, x: Expr, axis: int, matrix: npt.NDArray[np.float64]) -> Expr:
    """Every line of x along the axis, multiplied by the matrix from the left."""
    if matrix.shape == (1, 1):
        return x
    rank, dtype = len(shape_of(x)), dtype_of(x)
    order = [other for other in range(rank) if other != axis]
    turned = [*order, axis]
    lines = x if axis == rank - 1 else node.emit(op.permute_dims(x, turned))
    result = node.emit(op.matmul(lines, relax.const(matrix.T.astype(dtype), dtype)))
    if axis == rank - 1:
        return result
    return node.emit(op.permute_dims(result, [turned.index(other) for other in range(rank)]))
