"""Pooling over two or three axes (torch makes two of one), with its backward pass.

A window may hang over the end (ceil_mode), so every window is described by torch's own result
size, and by explicit padding in front and behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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

_MAX = {2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
_MEAN = {2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """All windows along every pooled axis; one number per axis.

    Parameters
    ----------
    extents, counts : list of int
        Length of the axis, and number of windows on it.
    kernel, stride, padding, dilation : list of int
        As in torch; the padding is that on each side.
    """

    extents: list[int]
    counts: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @staticmethod
    def of(
        rank: int,
        whole: Sequence[int],
        pooled: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] | None,
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> _Windows:
        """Torch's arguments for the last `rank` axes of shapes before and after pooling."""

        def each(values: Sequence[int]) -> list[int]:
            return list(values) * rank if len(values) == 1 else list(values)

        return _Windows(
            extents=list(whole)[-rank:],
            counts=list(pooled)[-rank:],
            kernel=each(kernel),
            stride=each(stride or kernel),
            padding=each(padding),
            dilation=each(dilation),
        )

    def behind(self) -> list[int]:
        """Padding after the end, so that the last window just fits; what is left over stays out."""
        ends = [
            (count - 1) * stride + (taps - 1) * dilation + 1
            for count, stride, taps, dilation in zip(
                self.counts, self.stride, self.kernel, self.dilation, strict=True
            )
        ]
        return [
            max(end - extent - front, 0)
            for end, extent, front in zip(ends, self.extents, self.padding, strict=True)
        ]

    def divisors(self, count_include_pad: bool) -> npt.NDArray[np.float64]:
        """What torch divides the sum of every window by: its elements inside the tensor, or inside
        the tensor with its padding (never those beyond, which ceil_mode adds).
        """
        result = np.ones(())
        for extent, count, taps, stride, padding in zip(
            self.extents, self.counts, self.kernel, self.stride, self.padding, strict=True
        ):
            start = np.arange(count) * stride - padding
            end = np.minimum(start + taps, extent + padding)
            if not count_include_pad:
                start, end = np.maximum(start, 0), np.minimum(end, extent)
            result = np.multiply.outer(result, (end - start).astype(np.float64))
        return result


@converts("aten.max_pool2d_with_indices.default")
def max_pool2d(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
) -> tuple[Expr, None]:
    """Maximum of every window. The indices are not computed: the backward finds them again"""
    shape = list(node.value[0].shape)
    windows = _Windows.of(2, shape_of(x), shape, kernel, stride, padding, dilation)
    return _max_pool(node, x, windows), None


@converts("aten.max_pool3d_with_indices.default")
def max_pool3d(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
) -> tuple[Expr, None]:
    """Maximum of every window over three axes. The indices are not computed"""
    shape = list(node.value[0].shape)
    windows = _Windows.of(3, shape_of(x), shape, kernel, stride, padding, dilation)
    return _max_pool(node, x, windows), None


def _max_pool(node: Node, x: Expr, windows: _Windows) -> Expr:
    rank = len(windows.kernel)
    pool = _MAX[rank]
    batched = _with_batch(node, x, rank)
    y = node.emit(
        pool(
            batched,
            pool_size=windows.kernel,
            strides=windows.stride,
            padding=[*windows.padding, *windows.behind()],
            dilation=windows.dilation,
        )
    )
    return _without_batch(node, y, x)


def _with_batch(node: Node, x: Expr, rank: int) -> Expr:
    """x [N, C, ...], with N = 1 in front where torch was given no batch."""
    shape = shape_of(x)
    return x if len(shape) == rank + 2 else node.emit(op.reshape(x, [1, *shape]))


def _without_batch(node: Node, y: Expr, x: Expr) -> Expr:
    """The inverse of :func:`_with_batch` for its result."""
    return y if len(shape_of(y)) == len(shape_of(x)) else node.emit(op.reshape(y, shape_of(y)[1:]))


@converts("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    _ceil_mode: bool,
    _indices: None,
) -> Expr:
    """The gradient of every window goes to its maximum (the first of equals)"""
    windows = _Windows.of(2, shape_of(x), shape_of(grad), kernel, stride, padding, dilation)
    if any(step != 1 for step in windows.dilation):
        raise Refusal(f"the gradient of dilated max pooling ({windows.dilation}) is not verified")
    dx = node.emit(
        op.grad.max_pool2d_backward(
            _with_batch(node, grad, 2),
            _with_batch(node, x, 2),
            pool_size=windows.kernel,
            strides=windows.stride,
            padding=[*windows.padding, *windows.behind()],
        )
    )
    return _without_batch(node, dx, x)


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
    rank = _pooled_axes(node)
    windows = _Windows.of(rank, shape_of(x), node.shape, kernel, stride, padding)
    mean = node.emit(
        _MEAN[rank](
            _with_batch(node, x, rank),
            pool_size=windows.kernel,
            strides=windows.stride,
            padding=[*windows.padding, *windows.behind()],
            count_include_pad=True,
        )
    )
    mean = _without_batch(node, mean, x)
    return _times(node, mean, _correction(windows, count_include_pad, divisor_override))


def _pooled_axes(node: Node) -> int:
    """How many axes an operator pools; its name says it."""
    name = str(node.fx_node.target)
    return int(name[name.index("pool") + 4])


def _correction(
    windows: _Windows, count_include_pad: bool, override: int | None
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
    rank = _pooled_axes(node)
    windows = _Windows.of(rank, shape_of(x), shape_of(grad), kernel, stride, padding)
    factors = _correction(windows, count_include_pad, divisor_override)
    return _spread(node, _times(node, grad, factors), x, windows)


def _spread(node: Node, grad: Expr, x: Expr, windows: _Windows) -> Expr:
    """The transpose of the mean over full windows; beyond two axes one by one (it is separable)."""
    if len(windows.kernel) == 2:
        dx = node.emit(
            op.grad.avg_pool2d_backward(
                _with_batch(node, grad, 2),
                _with_batch(node, x, 2),
                pool_size=windows.kernel,
                strides=windows.stride,
                padding=[*windows.padding, *windows.behind()],
                count_include_pad=True,
            )
        )
        return _without_batch(node, dx, x)
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


@converts("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_backward(node: Node, grad: Expr, x: Expr) -> Expr:
    """The gradient of every window, spread evenly over the window"""
    for axis, extent in enumerate(shape_of(x)):
        if axis >= len(shape_of(x)) - 2:
            weights = _adaptive_weights(extent, shape_of(grad)[axis])
            grad = _along(node, grad, axis, weights.T)
    return grad


def _adaptive_weights(extent: int, count: int) -> npt.NDArray[np.float64]:
    """Row i holds the weights of window i of the given count; [count, extent]."""
    windows = np.arange(count)
    start, end = windows * extent // count, -(-(windows + 1) * extent // count)
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
