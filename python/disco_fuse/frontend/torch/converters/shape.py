"""Operators that move or select elements by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    axis_of,
    converts,
    shape_of,
)

op = relax.op


@converts(
    "aten.view.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dims",
)
def reshape(node: Node, x: Expr, *_target: Any) -> Expr:
    """The same elements in row-major order under the shape that torch computed"""
    return node.emit(op.reshape(x, node.shape))


@converts("aten.permute.default")
def permute(node: Node, x: Expr, dims: Sequence[int]) -> Expr:
    """Axis i of the result is axis dims[i] of x"""
    rank = len(shape_of(x))
    return node.emit(op.permute_dims(x, [axis_of(d, rank) for d in dims]))


@converts("aten.expand.default")
def expand(node: Node, x: Expr, _size: Sequence[int], **_keywords: Any) -> Expr:
    """x repeated along axes of extent 1, to the shape that torch computed"""
    return node.emit(op.broadcast_to(x, node.shape))


@converts("aten.repeat.default")
def repeat(node: Node, x: Expr, repeats: Sequence[int]) -> Expr:
    """x laid side by side; more repeats than axes add axes in front"""
    return node.emit(op.tile(x, list(repeats)))


@converts("aten.slice.Tensor")
def slice_tensor(
    node: Node, x: Expr, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Expr:
    """x[..., start:end:step, ...] along one axis, with Python's rules for the bounds"""
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    begin, stop, _ = slice(start, end, step).indices(shape[axis])
    return node.emit(op.strided_slice(x, [axis], [begin], [stop], [step]))


@converts("aten.select.int")
def select(node: Node, x: Expr, dim: int, index: int) -> Expr:
    """x[..., index, ...] along one axis, which disappears"""
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    begin = axis_of(index, shape[axis])
    part = node.emit(op.strided_slice(x, [axis], [begin], [begin + 1]))
    return node.emit(op.reshape(part, node.shape))


@converts("aten.cat.default")
def cat(node: Node, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """Tensors one after the other along an axis"""
    return node.emit(op.concat(list(tensors), axis=axis_of(dim, len(node.shape))))


@converts("aten.split_with_sizes.default")
def split_with_sizes(node: Node, x: Expr, sizes: Sequence[int], dim: int = 0) -> tuple[Expr, ...]:
    """Consecutive parts of the given sizes along an axis"""
    axis = axis_of(dim, len(shape_of(x)))
    parts, begin = [], 0
    for size in sizes:
        parts.append(node.emit(op.strided_slice(x, [axis], [begin], [begin + size])))
        begin += size
    return tuple(parts)


@converts("aten.slice_scatter.default")
def slice_scatter(
    node: Node,
    x: Expr,
    source: Expr,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Expr:
    """x with x[..., start:end, ...] replaced by the source, as a concatenation"""
    shape = shape_of(x)
    axis = axis_of(dim, len(shape))
    begin, stop, _ = slice(start, end, step).indices(shape[axis])
    if step != 1:
        return write_to_places(node, x, source, dim, start, end, step)
    parts = [source]
    if begin > 0:
        parts.insert(0, node.emit(op.strided_slice(x, [axis], [0], [begin])))
    if stop < shape[axis]:
        parts.append(node.emit(op.strided_slice(x, [axis], [stop], [shape[axis]])))
    return source if len(parts) == 1 else node.emit(op.concat(parts, axis=axis))


@converts("aten.constant_pad_nd.default")
def constant_pad_nd(node: Node, x: Expr, pad: Sequence[int], value: float = 0) -> Expr:
    """x with `value` around it, or less of it where negative; (before, after), last axis first"""
    shape = shape_of(x)
    widths = [0] * (2 * len(shape))
    for i in range(len(pad) // 2):
        position = len(widths) - 2 * (i + 1)
        widths[position : position + 2] = pad[2 * i : 2 * i + 2]
    if any(width < 0 for width in widths):
        axes = list(range(len(shape)))
        first = [max(-before, 0) for before in widths[::2]]
        last = [n - max(-after, 0) for n, after in zip(shape, widths[1::2], strict=True)]
        x = node.emit(op.strided_slice(x, axes, first, last))
        widths = [max(width, 0) for width in widths]
    if not any(widths):
        return x
    return node.emit(op.nn.pad(x, widths, pad_mode="constant", pad_value=value))


@converts("aten.flip.default")
def flip(node: Node, x: Expr, dims: Sequence[int]) -> Expr:
    """x backwards along each of the axes"""
    for dim in dims:
        x = node.emit(op.flip(x, axis=axis_of(dim, len(shape_of(x)))))
    return x


@converts("aten.diagonal.default", "aten.unfold.default", "aten.as_strided.default")
def read_from_places(node: Node, x: Expr, *arguments: Any) -> Expr:
    """A view whose elements stand at fixed places of x, which torch itself says"""
    if node.fx_node.target is torch.ops.aten.as_strided.default:
        _require_row_major(node)
    places = _places(node, x, arguments)
    flat = node.emit(op.reshape(x, [math.prod(shape_of(x))]))
    positions = relax.const(places.reshape(-1).numpy(), "int64")
    return node.emit(op.reshape(node.emit(op.take(flat, positions, axis=0)), node.shape))


@converts(
    "aten.diagonal_scatter.default",
    "aten.as_strided_scatter.default",
)
def write_to_places(node: Node, x: Expr, source: Expr, *arguments: Any) -> Expr:
    """x with the source at the places of a view of x, which torch itself says"""
    if node.fx_node.target is torch.ops.aten.as_strided_scatter.default:
        _require_row_major(node)
    places = _places(node, x, arguments)
    size, count = math.prod(shape_of(x)), places.numel()
    flat = node.emit(op.reshape(x, [size]))
    positions = relax.const(places.reshape(-1, 1).numpy(), "int64")
    updates = node.emit(op.reshape(source, [count]))
    result = node.emit(op.scatter_nd(flat, positions, updates, reduction="update"))
    return node.emit(op.reshape(result, shape_of(x)))


def _places(node: Node, x: Expr, arguments: Sequence[Any]) -> torch.Tensor:
    """Which element of x in row-major order stands where in the view."""
    name = node.fx_node.target.name().removesuffix("_scatter").removeprefix("aten::")
    view = getattr(torch.ops.aten, "slice" if name == "slice" else name)
    elements = torch.arange(math.prod(shape_of(x))).reshape(shape_of(x))
    places: torch.Tensor = view(elements, *arguments)
    return places.contiguous()


def _require_row_major(node: Node) -> None:
    """Strides mean memory; positions follow them only where torch's memory is row-major."""
    if not node.torch_argument(0).is_contiguous():
        raise Refusal("as_strided is verified for row-major tensors only")


@converts(
    "aten.replication_pad1d_backward.default",
    "aten.replication_pad2d_backward.default",
    "aten.replication_pad3d_backward.default",
)
def replication_pad_backward(node: Node, grad: Expr, x: Expr, pad: Sequence[int]) -> Expr:
    """Along each padded axis, what the first and last element got is added up where it came from"""
    if any(width < 0 for width in pad):
        raise Refusal(f"padding with edge values is verified for widths of 0 or more, not {pad}")
    rank = len(shape_of(x))
    for number in range(len(pad) // 2):
        axis = rank - 1 - number
        grad = _fold_edges(node, grad, axis, pad[2 * number], shape_of(x)[axis])
    return grad


def _fold_edges(node: Node, grad: Expr, axis: int, before: int, extent: int) -> Expr:
    """The padded axis as one of the given extent, the padding added to the edges."""
    padded = shape_of(grad)[axis]
    if padded == extent:
        return grad
    if extent == 1:
        return node.emit(op.sum(grad, axis=[axis], keepdims=True))

    def part(begin: int, end: int) -> Expr:
        return node.emit(op.strided_slice(grad, [axis], [begin], [end]))

    first = node.emit(op.sum(part(0, before + 1), axis=[axis], keepdims=True))
    last = node.emit(op.sum(part(before + extent - 1, padded), axis=[axis], keepdims=True))
    parts = [first, part(before + 1, before + extent - 1), last] if extent > 2 else [first, last]
    return node.emit(op.concat(parts, axis=axis))
