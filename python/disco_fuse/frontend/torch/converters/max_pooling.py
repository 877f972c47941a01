"""Max pooling over two or three axes (torch makes two of one), with positions and backward pass.

    x [..., extents] -- take --> [..., windows, taps] -- argmax --> tap -- table --> position

Where nobody but the backward pass of plain two-dimensional pooling wants the positions, they are
not computed: TVM has a kernel for that backward pass which finds them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    accumulator_of,
    cast,
    converts,
    dtype_of,
    shape_of,
)
from disco_fuse.frontend.torch.converters.windows import (
    Windows,
    adaptive_bounds,
    pooled_axes,
    with_batch,
    without_batch,
)

op = relax.op
aten = torch.ops.aten

_MAX = {2: op.nn.max_pool2d, 3: op.nn.max_pool3d}


@converts("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
) -> tuple[Expr, Expr | None]:
    """Maximum of every window, and its position in row-major order (the first of equals)"""
    pooled = [int(extent) for extent in node.value[0].shape]
    rank = pooled_axes(node)
    windows = Windows.of(rank, shape_of(x), pooled, kernel, stride, padding, dilation)
    y = _MAX[rank](
        with_batch(node, x, rank),
        pool_size=windows.kernel,
        strides=windows.stride,
        padding=[*windows.padding, *windows.behind()],
        dilation=windows.dilation,
    )
    y = without_batch(node, node.emit(y), x)
    if not _are_positions_read(node.fx_node):
        return y, None
    return y, _positions(node, x, _window_table(windows), pooled)


def _are_positions_read(pool: fx.Node) -> bool:
    """Whether anybody needs them who does not find them again (see :func:`max_pool_backward`)."""
    readers = [user for user in pool.users if user.args[1] == 1]
    return any(not finds_positions(user) for reader in readers for user in reader.users)


def finds_positions(user: fx.Node) -> bool:
    """Whether a reader of positions is the backward pass of plain two-dimensional pooling."""
    if user.target is not aten.max_pool2d_with_indices_backward.default:
        return False
    dilation: Sequence[int] = user.args[5]
    return all(step == 1 for step in dilation)


@converts(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
)
def max_pool_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    _ceil_mode: bool,
    positions: Expr | None,
) -> Expr:
    """The gradient of every window goes to its maximum"""
    if positions is not None:
        return _spread(node, grad, positions, x, pooled_axes(node))
    windows = Windows.of(2, shape_of(x), shape_of(grad), kernel, stride, padding, dilation)
    # TVM cannot compile this kernel in bfloat16; sums of half precision are float32 everywhere.
    wide = accumulator_of(dtype_of(x))
    dx = node.emit(
        op.grad.max_pool2d_backward(
            with_batch(node, cast(node, grad, wide), 2),
            with_batch(node, cast(node, x, wide), 2),
            pool_size=windows.kernel,
            strides=windows.stride,
            padding=[*windows.padding, *windows.behind()],
        )
    )
    return cast(node, without_batch(node, dx, x), dtype_of(x))


@converts("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(node: Node, x: Expr, size: Sequence[int]) -> tuple[Expr, Expr]:
    """Maximum and its position, of window i of o from floor(i * n / o) to ceil((i + 1) * n / o)"""
    pooled = [int(extent) for extent in node.value[0].shape]
    extents = shape_of(x)[-len(size) :]
    axes = []
    for extent, count in zip(extents, pooled[-len(size) :], strict=True):
        start, end = adaptive_bounds(extent, count)
        taps = np.arange((end - start).max())
        axes.append(np.minimum(start[:, None] + taps, end[:, None] - 1))  # the last one again
    positions = _positions(node, x, _combine(axes, extents), pooled)
    rows = math.prod(shape_of(x)[: -len(size)])
    taken = op.gather_elements(_as_rows(node, x, rows), _as_rows(node, positions, rows), axis=1)
    return node.emit(op.reshape(node.emit(taken), pooled)), positions


@converts(
    "aten.adaptive_max_pool2d_backward.default",
    "aten.adaptive_max_pool3d_backward.default",
)
def adaptive_max_pool_backward(node: Node, grad: Expr, x: Expr, positions: Expr) -> Expr:
    """The gradient of every window goes to its maximum"""
    return _spread(node, grad, positions, x, pooled_axes(node))


def _window_table(windows: Windows) -> npt.NDArray[np.int64]:
    """The positions of every window, [windows, taps], in ascending order.

    A tap in the padding is replaced by the nearest tap of its window that is inside, which changes
    no maximum.
    """
    axes = []
    for extent, count, taps, stride, padding, dilation in zip(
        windows.extents,
        windows.counts,
        windows.kernel,
        windows.stride,
        windows.padding,
        windows.dilation,
        strict=True,
    ):
        start = (np.arange(count) * stride - padding)[:, None]
        first = -(np.minimum(start, 0) // dilation)  # the first tap that is not negative
        last = (extent - 1 - start) // dilation
        inside = np.clip(np.arange(taps)[None], first, last)
        axes.append(start + inside * dilation)
    return _combine(axes, windows.extents)


def _combine(
    axes: Sequence[npt.NDArray[np.int64]], extents: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Row-major positions [windows, taps] from those along every axis, [windows, taps] each."""
    table = np.zeros((1, 1), dtype=np.int64)
    for axis, extent in zip(axes, extents, strict=True):
        apart = table[:, None, :, None] * extent + axis[None, :, None, :]
        table = apart.reshape(table.shape[0] * axis.shape[0], table.shape[1] * axis.shape[1])
    return table


def _positions(node: Node, x: Expr, table: npt.NDArray[np.int64], pooled: Sequence[int]) -> Expr:
    """Position of the maximum of every window of a table; `pooled` is the shape after pooling."""
    emit, (count, taps) = node.emit, table.shape
    rows = math.prod(pooled) // count
    flat = _as_rows(node, x, rows)
    values = emit(op.take(flat, relax.const(table.reshape(-1), "int64"), axis=1))
    values = emit(op.reshape(values, [rows, count, taps]))
    tap = emit(op.argmax(values, axis=2, keepdims=False))
    entry = emit(op.add(tap, relax.const(np.arange(count) * taps, "int64")))
    entry = emit(op.reshape(entry, [rows * count]))
    found = emit(op.take(relax.const(table.reshape(-1), "int64"), entry, axis=0))
    return emit(op.reshape(found, list(pooled)))


def _as_rows(node: Node, tensor: Expr, rows: int) -> Expr:
    """[rows, n]: the pooled axes merged into one."""
    return node.emit(op.reshape(tensor, [rows, math.prod(shape_of(tensor)) // rows]))


def _spread(node: Node, grad: Expr, positions: Expr, x: Expr, num_axes: int) -> Expr:
    """Zeros like x, with the gradient added at the positions over the last axes."""
    emit, rows = node.emit, math.prod(shape_of(x)[:-num_axes])
    flat = [rows, math.prod(shape_of(x)[-num_axes:])]
    wide = accumulator_of(dtype_of(x))
    zeros, grad = emit(op.zeros(flat, wide)), cast(node, grad, wide)
    at, values = _as_rows(node, positions, rows), _as_rows(node, grad, rows)
    dx = emit(op.scatter_elements(zeros, at, values, axis=1, reduction="add"))
    return cast(node, emit(op.reshape(dx, shape_of(x))), dtype_of(x))
