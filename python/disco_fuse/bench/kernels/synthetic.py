"""Groups of every kind of rule that move more than 64 MiB, which few models of this size hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from disco_fuse.kernels.cpu import MarkOps
from disco_fuse.testing import group_module

Build = Callable[..., list[Any]]
_ROWS, _COLUMNS = 20_480, 1_024  # 80 MiB in float32
_TOKENS = 16_384
_IMAGES = (32, 64, 104, 104)  # 84.5 MiB


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A group: ``build(emit, *inputs)`` emits its ops and returns its outputs."""

    name: str
    build: Build
    inputs: tuple[tuple[tuple[int, ...], str], ...]


def synthetic_kernels(target: tvm.target.Target, scale: int = 1) -> dict[str, tirx.PrimFunc]:
    """The groups as fused PrimFuncs before scheduling, by name.

    Parameters
    ----------
    scale : int
        Divides the first extent of every input, for tests.
    """
    return {group.name: _fused(group, target, scale) for group in _GROUPS}


def _fused(group: _Group, target: tvm.target.Target, scale: int) -> tirx.PrimFunc:
    types = [
        relax.TensorType((max(1, shape[0] // scale), *shape[1:]), dtype)
        for shape, dtype in group.inputs
    ]
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        MarkOps(),
        relax.transform.FuseTIR(),
    ]
    with target:
        mod = tvm.transform.Sequential(passes)(group_module(group.build, types))
    (kernel,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return kernel


def _elementwise(emit: Any, a: Any, b: Any, c: Any) -> list[Any]:
    product = emit(relax.op.multiply(a, b))
    return [emit(relax.op.nn.relu(emit(relax.op.add(product, c))))]


def _row_sum(emit: Any, x: Any) -> list[Any]:
    return [emit(relax.op.sum(x, axis=[1]))]


def _bias_gradient(emit: Any, x: Any) -> list[Any]:
    return [emit(relax.op.sum(x, axis=[0]))]


def _relu_bias_gradient(emit: Any, x: Any, y: Any) -> list[Any]:
    """The gradient of a relu, and the bias gradient behind it."""
    mask = emit(relax.op.greater(y, relax.const(0.0, "float32")))
    gradient = emit(relax.op.multiply(x, emit(relax.op.astype(mask, "float32"))))
    return [gradient, emit(relax.op.sum(gradient, axis=[0]))]


def _layer_norm(emit: Any, x: Any, scale: Any, shift: Any) -> list[Any]:
    mean = emit(relax.op.mean(x, axis=[1], keepdims=True))
    centred = emit(relax.op.subtract(x, mean))
    variance = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), [1], keepdims=True))
    small = relax.const(1e-5, "float32")
    inverse = emit(relax.op.rsqrt(emit(relax.op.add(variance, small))))
    normal = emit(relax.op.multiply(centred, inverse))
    return [emit(relax.op.add(emit(relax.op.multiply(normal, scale)), shift))]


def _softmax_gradient(emit: Any, gradient: Any, y: Any) -> list[Any]:
    product = emit(relax.op.multiply(gradient, y))
    total = emit(relax.op.sum(product, axis=[1], keepdims=True))
    return [emit(relax.op.subtract(product, emit(relax.op.multiply(y, total))))]


def _softmax(emit: Any, x: Any) -> list[Any]:
    return [emit(relax.op.nn.softmax(x, axis=-1))]


def _gelu(emit: Any, x: Any, bias: Any) -> list[Any]:
    return [emit(relax.op.nn.gelu(emit(relax.op.add(x, bias))))]


def _transpose(emit: Any, x: Any) -> list[Any]:
    return [emit(relax.op.permute_dims(x))]


def _split_heads(emit: Any, x: Any, bias: Any) -> list[Any]:
    """[batch, time, heads, width] to [batch, heads, time, width], with the bias of a projection."""
    return [emit(relax.op.permute_dims(emit(relax.op.add(x, bias)), [0, 2, 1, 3]))]


def _merge_gradients(emit: Any, q: Any, k: Any, v: Any) -> list[Any]:
    """Gradients of heads back to the rows of one projection, and its bias gradient."""
    parts = [emit(relax.op.permute_dims(part, [0, 2, 1, 3])) for part in (q, k, v)]
    rows = emit(relax.op.concat(parts, axis=2))
    return [rows, emit(relax.op.sum(rows, axis=[0, 1]))]


def _gather(emit: Any, table: Any, tokens: Any) -> list[Any]:
    return [emit(relax.op.take(table, tokens, axis=0))]


def _scatter(emit: Any, table: Any, tokens: Any, rows: Any) -> list[Any]:
    """The gradient of an embedding."""
    indices = emit(relax.op.expand_dims(tokens, 1))
    return [emit(relax.op.scatter_nd(table, indices, rows, "add"))]


def _momentum(emit: Any, weight: Any, velocity: Any, gradient: Any) -> list[Any]:
    """SGD with momentum; two outputs."""
    kept = emit(relax.op.multiply(velocity, relax.const(0.9, "float32")))
    new = emit(relax.op.add(kept, gradient))
    step = emit(relax.op.multiply(new, relax.const(0.01, "float32")))
    return [new, emit(relax.op.subtract(weight, step))]


def _adam(emit: Any, weight: Any, first: Any, second: Any, gradient: Any) -> list[Any]:
    """Adam without bias correction; three outputs."""

    def towards(old: Any, new: Any, share: float) -> Any:
        kept = emit(relax.op.multiply(old, relax.const(1 - share, "float32")))
        return emit(relax.op.add(kept, emit(relax.op.multiply(new, relax.const(share, "float32")))))

    first = towards(first, gradient, 0.1)
    second = towards(second, emit(relax.op.multiply(gradient, gradient)), 0.001)
    root = emit(relax.op.add(emit(relax.op.sqrt(second)), relax.const(1e-8, "float32")))
    step = emit(relax.op.multiply(emit(relax.op.divide(first, root)), relax.const(0.01, "float32")))
    return [first, second, emit(relax.op.subtract(weight, step))]


def _batch_norm_sums(emit: Any, x: Any) -> list[Any]:
    """Sums of values and of squares for every channel of images."""
    square = emit(relax.op.multiply(x, x))
    return [emit(relax.op.sum(value, axis=[0, 2, 3])) for value in (x, square)]


def _batch_norm(emit: Any, x: Any, scale: Any, shift: Any) -> list[Any]:
    """Scale, shift and relu of images by channel."""
    scaled = emit(relax.op.multiply(x, scale))
    return [emit(relax.op.nn.relu(emit(relax.op.add(scaled, shift))))]


_MATRIX = ((_ROWS, _COLUMNS), "float32")
_ROW = ((1, _COLUMNS), "float32")
_CHANNELS = ((1, _IMAGES[1], 1, 1), "float32")
_HEADS = ((64, 8, 256, 64), "float32")

_GROUPS = (
    _Group(name="elementwise", build=_elementwise, inputs=(_MATRIX, _MATRIX, _MATRIX)),
    _Group(name="row_sum", build=_row_sum, inputs=(_MATRIX,)),
    _Group(name="bias_gradient", build=_bias_gradient, inputs=(_MATRIX,)),
    _Group(name="relu_bias_gradient", build=_relu_bias_gradient, inputs=(_MATRIX, _MATRIX)),
    _Group(name="layer_norm", build=_layer_norm, inputs=(_MATRIX, _ROW, _ROW)),
    _Group(name="softmax", build=_softmax, inputs=(_MATRIX,)),
    _Group(name="softmax_gradient", build=_softmax_gradient, inputs=(_MATRIX, _MATRIX)),
    _Group(name="gelu", build=_gelu, inputs=(_MATRIX, _ROW)),
    _Group(name="transpose", build=_transpose, inputs=(_MATRIX,)),
    _Group(
        name="split_heads",
        build=_split_heads,
        inputs=(((128, 256, 8, 64), "float32"), ((1, 1, 8, 64), "float32")),
    ),
    _Group(name="merge_gradients", build=_merge_gradients, inputs=(_HEADS,) * 3),
    _Group(
        name="gather",
        build=_gather,
        inputs=(((_TOKENS, _COLUMNS), "float32"), ((_TOKENS,), "int64")),
    ),
    _Group(
        name="scatter",
        build=_scatter,
        inputs=(
            ((_TOKENS, _COLUMNS), "float32"),
            ((_TOKENS,), "int64"),
            ((_TOKENS, _COLUMNS), "float32"),
        ),
    ),
    _Group(name="momentum", build=_momentum, inputs=(_MATRIX,) * 3),
    _Group(name="adam", build=_adam, inputs=(_MATRIX,) * 4),
    _Group(name="batch_norm_sums", build=_batch_norm_sums, inputs=((_IMAGES, "float32"),)),
    _Group(
        name="batch_norm", build=_batch_norm, inputs=((_IMAGES, "float32"), _CHANNELS, _CHANNELS)
    ),
)
