"""Strided views: which elements of a tensor a chain of permute, reshape and broadcast reads.

A view has one :data:`Axis` per dimension. An axis is not one (size, stride) pair but a list of
them, outermost first, so that every reshape which merges dimensions stays a view:

    x: (2, 12, 4, 8) contiguous       axes  [2:384] [12:32] [4:8] [8:1]        (size:stride)
    permute_dims (0, 2, 1, 3)               [2:384] [4:8] [12:32] [8:1]
    reshape (8, 12, 8)                      [2:384, 4:8]  [12:32] [8:1]        still no copy

All functions are pure and count in elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Factor(NamedTuple):
    """A part of an axis: ``size`` steps of ``stride`` elements."""

    size: int
    stride: int


Axis = tuple[Factor, ...]
"""The factors of one dimension, outermost first; none for a dimension of size 1."""


@dataclass(frozen=True, kw_only=True)
class StridedView:
    """A view of a tensor's elements, in the tensor's contiguous memory.

    Attributes
    ----------
    axes : tuple of Axis
        One per dimension of the view.
    offset : int
        Index of the view's first element.
    """

    axes: tuple[Axis, ...]
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(math.prod(factor.size for factor in axis) for axis in self.axes)


def joined(factors: Iterable[Factor]) -> Axis:
    """The same walk with the fewest factors: steps of 1 dropped, dense neighbours merged."""
    result: list[Factor] = []
    for factor in factors:
        if factor.size == 1:
            continue
        if result and result[-1].stride == factor.size * factor.stride:
            factor = Factor(result.pop().size * factor.size, factor.stride)
        result.append(factor)
    return tuple(result)


def contiguous(shape: Sequence[int]) -> StridedView:
    """The view of a whole row-major tensor of that shape."""
    axes: list[Axis] = []
    stride = 1
    for size in reversed(shape):
        axes.append(joined([Factor(size, stride)]))
        stride *= max(size, 1)
    return StridedView(axes=tuple(reversed(axes)))


def permute(view: StridedView, order: Sequence[int]) -> StridedView:
    """Dimension ``i`` of the result is dimension ``order[i]`` of the view."""
    return StridedView(axes=tuple(view.axes[i] for i in order), offset=view.offset)


def broadcast_to(view: StridedView, shape: Sequence[int]) -> StridedView:
    """Repeat dimensions of size 1, and new leading dimensions, with stride 0.

    Raises
    ------
    ValueError
        If the shapes are not compatible.
    """
    old = view.shape
    num_new = len(shape) - len(old)
    if num_new < 0 or any(
        have not in (1, want) for have, want in zip(old, shape[num_new:], strict=True)
    ):
        raise ValueError(f"cannot broadcast {old} to {tuple(shape)}")
    axes = ((),) * num_new + view.axes
    return StridedView(
        axes=tuple(
            axis if axis else joined([Factor(size, 0)])
            for axis, size in zip(axes, shape, strict=True)
        ),
        offset=view.offset,
    )


def narrow(view: StridedView, dim: int, begin: int, size: int, step: int) -> StridedView | None:
    """Elements ``begin, begin + step, ...`` (``size`` of them) of one dimension.

    Returns None if that dimension has several factors; the caller keeps the indices in range.
    """
    axis = view.axes[dim]
    if len(axis) > 1:
        return None
    stride = axis[0].stride if axis else 0
    axes = list(view.axes)
    axes[dim] = joined([Factor(size, stride * step)])
    return StridedView(axes=tuple(axes), offset=view.offset + begin * stride)


def reshape(view: StridedView, shape: Sequence[int]) -> StridedView | None:
    """The view in another shape, or None if that needs a copy.

    A factor can be cut in two where its size is a multiple of what the new dimension still needs,
    so ``[24:1]`` gives ``[2:12] [12:1]``; ``[2:9, 3:1]`` in shape ``(3, 2)`` gives None.

    Raises
    ------
    ValueError
        If the number of elements differs.
    """
    if math.prod(view.shape) != math.prod(shape):
        raise ValueError(f"cannot reshape {view.shape} to {tuple(shape)}")
    if 0 in shape:
        return None
    rest = list(joined(factor for axis in view.axes for factor in axis))
    axes: list[Axis] = []
    for size in reversed(shape):
        taken: list[Factor] = []
        while size > 1:
            factor = rest.pop()
            inner = min(factor.size, size)
            if factor.size % inner or size % inner:
                return None
            if factor.size > inner:
                rest.append(Factor(factor.size // inner, factor.stride * inner))
            taken.append(Factor(inner, factor.stride))
            size //= inner
        axes.append(joined(reversed(taken)))
    return StridedView(axes=tuple(reversed(axes)), offset=view.offset)


class CommonFactor(NamedTuple):
    """A part of an axis that several views walk together: one stride for each of them."""

    size: int
    strides: tuple[int, ...]


def common_factors(axes: Sequence[Axis]) -> list[CommonFactor] | None:
    """Cut axes of one size into the fewest factors that all of them share, outermost first.

    Returns None where their cuts do not nest, as with 2 x 3 against 3 x 2.
    """
    if any(factor.size == 0 for axis in axes for factor in axis):
        return [CommonFactor(0, (1,) * len(axes))]
    rest = [list(axis) for axis in axes]
    found: list[CommonFactor] = []
    while any(rest):
        assert all(rest), f"axes of different sizes: {axes}"
        inner = min(factors[-1].size for factors in rest)
        strides: list[int] = []
        for factors in rest:
            factor = factors.pop()
            if factor.size % inner:
                return None
            if factor.size > inner:
                factors.append(Factor(factor.size // inner, factor.stride * inner))
            strides.append(factor.stride)
        found.append(CommonFactor(inner, tuple(strides)))
    return joined_common(reversed(found))


def joined_common(factors: Iterable[CommonFactor]) -> list[CommonFactor]:
    """Merge neighbours that are dense in every view."""
    result: list[CommonFactor] = []
    for factor in factors:
        if result and result[-1].strides == tuple(factor.size * s for s in factor.strides):
            factor = CommonFactor(result.pop().size * factor.size, factor.strides)
        result.append(factor)
    return result
