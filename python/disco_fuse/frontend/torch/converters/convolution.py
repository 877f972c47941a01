"""Convolution in one, two and three dimensions (channels second), with its backward pass.

Transposed convolution is the input gradient of convolution, so that each is the other's backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    accumulator_of,
    cast,
    converts,
    dtype_of,
    shape_of,
)

op = relax.op

_FORWARD = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
_TRANSPOSED = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}


@dataclass(frozen=True, kw_only=True)
class _Window:
    """How a kernel moves; one number per spatial axis."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @staticmethod
    def of(
        x: Expr,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> _Window:
        """Torch's arguments, where one number may stand for all axes."""
        rank = len(shape_of(x)) - 2
        if rank not in _FORWARD:
            raise Refusal(f"convolution is verified over 1, 2 or 3 axes, got shape {shape_of(x)}")

        def each(values: Sequence[int]) -> list[int]:
            return list(values) * rank if len(values) == 1 else list(values)

        return _Window(
            stride=each(stride), padding=each(padding), dilation=each(dilation), groups=groups
        )


@converts("aten.convolution.default")
def convolution(
    node: Node,
    x: Expr,
    weight: Expr,
    bias: Expr | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Expr:
    """y[n, o, i] = bias[o] + sum over c, p of w[o, c, p] * x[n, c, i * s + p * d - pad], i and p
    having an entry per axis; c runs over the channels of o's group. Transposed: its transpose.
    """
    window = _Window.of(x, stride, padding, dilation, groups)
    if transposed:
        y = _transposed(node, x, weight, window, list(output_padding) * (len(window.stride)))
    else:
        y = _forward(node, x, weight, window)
    if bias is None:
        return y
    line = [1, node.shape[1]] + [1] * len(window.stride)
    return node.emit(op.add(y, node.emit(op.reshape(bias, line))))


@converts("aten.convolution_backward.default")
def convolution_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    weight: Expr,
    _bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Expr | None, Expr | None, Expr | None]:
    """Gradients for input, weight and bias, each only where the mask asks for it"""
    window = _Window.of(x, stride, padding, dilation, groups)
    for_x = for_weight = for_bias = None
    if output_mask[0] and transposed:
        for_x = _forward(node, grad, weight, window)
    elif output_mask[0]:
        for_x = _input_gradient(node, grad, x, weight, window)
    if output_mask[1]:
        small, large = (x, grad) if transposed else (grad, x)
        for_weight = _weight_gradient(node, small, large, weight, window)
    if output_mask[2]:
        axes = [axis for axis in range(len(shape_of(grad))) if axis != 1]
        total = node.emit(op.sum(cast(node, grad, accumulator_of(dtype_of(grad))), axis=axes))
        for_bias = cast(node, total, dtype_of(grad))
    return for_x, for_weight, for_bias


def _forward(node: Node, x: Expr, weight: Expr, window: _Window) -> Expr:
    convolve = _FORWARD[len(window.stride)]
    y = node.emit(
        convolve(
            x,
            weight,
            strides=window.stride,
            padding=window.padding,
            dilation=window.dilation,
            groups=window.groups,
            out_dtype=accumulator_of(dtype_of(x)),
        )
    )
    return cast(node, y, dtype_of(x))


def _transposed(
    node: Node, x: Expr, weight: Expr, window: _Window, output_padding: Sequence[int]
) -> Expr:
    extra = list(output_padding)[: len(window.stride)]
    if any(more >= stride for more, stride in zip(extra, window.stride, strict=True)):
        raise Refusal(
            "transposed convolution is verified for an output padding smaller than the stride, "
            f"not for {extra} with stride {window.stride}"
        )
    y = node.emit(
        _TRANSPOSED[len(window.stride)](
            x,
            weight,
            strides=window.stride,
            padding=window.padding,
            output_padding=extra,
            dilation=window.dilation,
            groups=window.groups,
            out_dtype=accumulator_of(dtype_of(x)),
        )
    )
    return cast(node, y, dtype_of(x))


def _input_gradient(node: Node, grad: Expr, x: Expr, weight: Expr, window: _Window) -> Expr:
    """The transposed convolution of the gradient, padded to rows that no window reached."""
    missing = [
        length - ((windows - 1) * stride - 2 * padding + (taps - 1) * dilation + 1)
        for length, windows, stride, padding, taps, dilation in zip(
            shape_of(x)[2:],
            shape_of(grad)[2:],
            window.stride,
            window.padding,
            shape_of(weight)[2:],
            window.dilation,
            strict=True,
        )
    ]
    return _transposed(node, grad, weight, window, missing)


def _weight_gradient(node: Node, small: Expr, large: Expr, weight: Expr, window: _Window) -> Expr:
    """What the convolution from `large` to `small` asks of its weight, as one convolution.

    Stride and dilation change places, and the batch is what is summed over, as channels are in a
    convolution: large [N, G * C, ...] -> [C, G * N, ...], small [N, G * O, ...] -> [G * O, N, ...],
    result [C, G * O, taps]. Rows that no window reached show as taps too many.
    """
    emit, groups = node.emit, window.groups
    batch, channels, *extents = shape_of(large)
    spatial = list(range(2, 2 + len(extents)))
    if groups == 1:
        data = emit(op.permute_dims(large, [1, 0, *spatial]))
    else:
        width = channels // groups
        apart = emit(op.reshape(large, [batch, groups, width, *extents]))
        turned = emit(op.permute_dims(apart, [2, 1, 0, *(axis + 1 for axis in spatial)]))
        data = emit(op.reshape(turned, [width, groups * batch, *extents]))
    product = emit(
        _FORWARD[len(spatial)](
            data,
            emit(op.permute_dims(small, [1, 0, *spatial])),
            strides=window.dilation,
            padding=window.padding,
            dilation=window.stride,
            groups=groups,
            out_dtype=accumulator_of(dtype_of(large)),
        )
    )
    product = cast(node, product, dtype_of(large))
    taps = shape_of(weight)[2:]
    if shape_of(product)[2:] != taps:
        product = emit(op.strided_slice(product, spatial, [0] * len(taps), taps))
    return emit(op.permute_dims(product, [1, 0, *spatial]))
