"""The windows that pooling and its backward pass move over the last axes of a tensor.

A window may hang over the end (ceil_mode), so every window is described by torch's own result
size, and by explicit padding in front and behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import relax

from disco_fuse.frontend.torch.converters.registry import Expr, Node, shape_of

op = relax.op


@dataclass(frozen=True, kw_only=True)
class Windows:
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
    ) -> Windows:
        """Torch's arguments for the last `rank` axes of shapes before and after pooling."""

        def each(values: Sequence[int]) -> list[int]:
            return list(values) * rank if len(values) == 1 else list(values)

        return Windows(
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


def with_batch(node: Node, x: Expr, rank: int) -> Expr:
    """x [N, C, ...], with N = 1 in front where torch was given no batch."""
    shape = shape_of(x)
    return x if len(shape) == rank + 2 else node.emit(op.reshape(x, [1, *shape]))


def without_batch(node: Node, y: Expr, x: Expr) -> Expr:
    """The inverse of :func:`with_batch` for its result."""
    return y if len(shape_of(y)) == len(shape_of(x)) else node.emit(op.reshape(y, shape_of(y)[1:]))


def adaptive_bounds(extent: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each of `count` adaptive windows starts, floor(i * n / o), and ends before, [count]."""
    windows = np.arange(count)
    return windows * extent // count, -(-(windows + 1) * extent // count)


def pooled_axes(node: Node) -> int:
    """How many axes an operator pools; its name says it."""
    name = str(node.fx_node.target)
    return int(name[name.index("pool") + 4])
