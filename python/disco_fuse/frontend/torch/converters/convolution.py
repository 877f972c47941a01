"""Convolution and pooling in two dimensions (NCHW), with their backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from disco_fuse.frontend.torch.converters.registry import (
    Expr,
    Node,
    Refusal,
    converts,
    shape_of,
)

op = relax.op


def _require_plain(x: Expr, transposed: bool, groups: int) -> None:
    if len(shape_of(x)) != 4 or transposed or groups != 1:
        raise Refusal(
            "convolution is verified for 2d, not transposed, groups=1; got input shape "
            f"{shape_of(x)}, transposed={transposed}, groups={groups}"
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
    _output_padding: Sequence[int],
    groups: int,
) -> Expr:
    """y[n, o, i, j] = bias[o] + sum of w[o, c, p, q] * x[n, c, i*s + p*d - pad, j*s + q*d - pad]"""
    _require_plain(x, transposed, groups)
    y = node.emit(
        op.nn.conv2d(
            x, weight, strides=list(stride), padding=list(padding), dilation=list(dilation)
        )
    )
    if bias is None:
        return y
    return node.emit(op.add(y, node.emit(op.reshape(bias, [1, shape_of(weight)[0], 1, 1]))))


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
    _require_plain(x, transposed, groups)
    window = (list(stride), list(padding), list(dilation))
    return (
        _input_gradient(node, grad, x, weight, window) if output_mask[0] else None,
        _weight_gradient(node, grad, x, weight, window) if output_mask[1] else None,
        node.emit(op.sum(grad, axis=[0, 2, 3])) if output_mask[2] else None,
    )


_Window = tuple[list[int], list[int], list[int]]


def _input_gradient(node: Node, grad: Expr, x: Expr, weight: Expr, window: _Window) -> Expr:
    """The transposed convolution of the gradient, padded to rows that no window reached."""
    stride, padding, dilation = window
    reached = [
        (shape_of(grad)[2 + i] - 1) * stride[i]
        - 2 * padding[i]
        + (shape_of(weight)[2 + i] - 1) * dilation[i]
        + 1
        for i in range(2)
    ]
    missing = [shape_of(x)[2 + i] - reached[i] for i in range(2)]
    return node.emit(
        op.nn.conv2d_transpose(
            grad,
            weight,
            strides=stride,
            padding=padding,
            output_padding=missing,
            dilation=dilation,
        )
    )


def _weight_gradient(node: Node, grad: Expr, x: Expr, weight: Expr, window: _Window) -> Expr:
    """x (channels as batch) convolved with the gradient, stride and dilation changing places."""
    emit = node.emit
    stride, padding, dilation = window
    product = emit(
        op.nn.conv2d(
            emit(op.permute_dims(x, [1, 0, 2, 3])),
            emit(op.permute_dims(grad, [1, 0, 2, 3])),
            strides=dilation,
            padding=padding,
            dilation=stride,
        )
    )
    height, width = shape_of(weight)[2:]
    if shape_of(product)[2:] != [height, width]:
        product = emit(op.strided_slice(product, [2, 3], [0, 0], [height, width]))
    return emit(op.permute_dims(product, [1, 0, 2, 3]))


def _pair(values: Sequence[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


@converts("aten.max_pool2d_with_indices.default")
def max_pool2d(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Expr, None]:
    """Maximum of every window. The indices are not computed: the backward finds them again"""
    _require_plain_pool(x, dilation, ceil_mode)
    return (
        node.emit(
            op.nn.max_pool2d(
                x,
                pool_size=_pair(kernel),
                strides=_pair(stride or kernel),
                padding=_pair(padding),
            )
        ),
        None,
    )


@converts("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    _indices: None,
) -> Expr:
    """The gradient of every window goes to its maximum (the first of equals)"""
    _require_plain_pool(x, dilation, ceil_mode)
    return node.emit(
        op.grad.max_pool2d_backward(
            grad,
            x,
            pool_size=_pair(kernel),
            strides=_pair(stride or kernel),
            padding=_pair(padding) * 2,
        )
    )


def _require_plain_pool(x: Expr, dilation: Sequence[int], ceil_mode: bool) -> None:
    if len(shape_of(x)) != 4 or any(d != 1 for d in dilation) or ceil_mode:
        raise Refusal(
            "pooling is verified for 4d input, dilation 1 and ceil_mode=False; got shape "
            f"{shape_of(x)}, dilation {list(dilation)}, ceil_mode={ceil_mode}"
        )


@converts("aten.avg_pool2d.default")
def avg_pool2d(
    node: Node,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    """Mean of every window"""
    _require_plain_pool(x, (), ceil_mode)
    _require_no_divisor(divisor_override)
    return node.emit(
        op.nn.avg_pool2d(
            x,
            pool_size=_pair(kernel),
            strides=_pair(stride or kernel),
            padding=_pair(padding),
            count_include_pad=count_include_pad,
        )
    )


@converts("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(
    node: Node,
    grad: Expr,
    x: Expr,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Expr:
    """The gradient of every window, spread evenly over the window"""
    _require_plain_pool(x, (), ceil_mode)
    _require_no_divisor(divisor_override)
    return node.emit(
        op.grad.avg_pool2d_backward(
            grad,
            x,
            pool_size=_pair(kernel),
            strides=_pair(stride or kernel),
            padding=_pair(padding) * 2,
            count_include_pad=count_include_pad,
        )
    )


def _require_no_divisor(divisor_override: int | None) -> None:
    if divisor_override is not None:
        raise Refusal(f"average pooling with divisor_override={divisor_override} is not verified")
