"""Convolutions and their gradients as one kind of matrix product whose left side is never formed.

    out[row, column] = sum over k of  source[from(row) + shift(k)] * other[k, column]

            row             k                column    source (padded)   other    out
    small   image, place    channel, tap     channel   large             weight   small
    large   image, place    channel, tap     channel   small             weight   large
    weight  channel, tap    image, place     channel   large             small    weight

All addresses are sums of (index * stride), so one list of axes describes each. With a stride above
1 the input gradient falls into phases: the places ``s * q + r`` of one residue ``r`` per axis meet
the taps ``p`` for which ``s`` divides ``r + pad - p * d``, and no others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from disco_fuse.kernels.library import ConvolutionPlan

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One loop; strides count elements, and one of a tensor that it does not move in is 0."""

    extent: int
    source: int = 0
    other: int = 0
    out: int = 0


@dataclass(frozen=True, kw_only=True)
class Product:
    """One product of the form above, for one phase.

    Attributes
    ----------
    groups : Axis
        The product is done once for each.
    rows, sums : tuple of Axis
        Outermost first; ``sums`` are the axes of k.
    columns : Axis
    source, other, out : int
        Where each tensor begins.
    """

    groups: Axis
    rows: tuple[Axis, ...]
    sums: tuple[Axis, ...]
    columns: Axis
    source: int
    other: int
    out: int

    @property
    def num_rows(self) -> int:
        """Rows of the result."""
        return math.prod(axis.extent for axis in self.rows)

    @property
    def num_sums(self) -> int:
        """Terms of each sum; 0 where no tap meets the phase."""
        return math.prod(axis.extent for axis in self.sums)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How the source lies in the padded copy that the products read, an entry per spatial axis.

    Attributes
    ----------
    before : tuple of int
        Zeros before the first element.
    extents : tuple of int
        Of the copy; it may end before the source does.
    """

    before: Shape
    extents: Shape

    def is_needed(self, extents: Sequence[int]) -> bool:
        """Whether the products read anything outside a source of these extents."""
        ends = any(mine > its for mine, its in zip(self.extents, extents, strict=True))
        return any(self.before) or ends


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A convolution or gradient as products over one source.

    Attributes
    ----------
    padding : Padding or None
        None: the source is read where it is.
    products : tuple of Product
        Together they write every element of the result once.
    """

    padding: Padding | None
    products: tuple[Product, ...]


@dataclass(frozen=True, kw_only=True)
class Panels:
    """How k is walked: ``outer`` axes choose a panel, whose terms are those of ``inner``."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @property
    def num_panels(self) -> int:
        """Panels that together hold every term once."""
        return math.prod(axis.extent for axis in self.outer)

    @property
    def panel_length(self) -> int:
        """Terms of one panel."""
        return math.prod(axis.extent for axis in self.inner)

    @staticmethod
    def of(axes: Sequence[Axis], most: int) -> Panels:
        """Panels of at most ``most`` terms, or of one step of the innermost axis."""
        cut = len(axes)
        length = 1
        while cut > 0 and length * axes[cut - 1].extent <= most:
            cut -= 1
            length *= axes[cut].extent
        if cut == 0:
            return Panels(outer=(), inner=tuple(axes))
        split = axes[cut - 1]
        chunk = max(
            c
            for c in range(1, split.extent + 1)
            if split.extent % c == 0 and (c * length <= most or c == 1)
        )
        blocks = Axis(
            extent=split.extent // chunk, source=split.source * chunk, other=split.other * chunk
        )
        part = Axis(extent=chunk, source=split.source, other=split.other)
        return Panels(outer=(*axes[: cut - 1], blocks), inner=(part, *axes[cut:]))


@dataclass(frozen=True, kw_only=True)
class _Taps:
    """The taps of one spatial axis that one phase meets: ``first + step * t``.

    Place ``q`` of the phase and tap ``t`` meet at element ``start + q * stride + t * shift`` of the
    source, and are element ``residue + q * out_stride`` of the result.
    """

    count: int
    first: int
    step: int
    start: int
    stride: int
    shift: int
    places: int
    residue: int
    out_stride: int


def correlation(plan: ConvolutionPlan, large: Shape, small: Shape, weight: Shape) -> Correlation:
    """What to compute, from the shapes of the three tensors (see ``ConvolutionPlan``)."""
    axes = [
        _input_taps(*window) if plan.result == "large" else _forward_taps(*window)
        for window in zip(
            large[2:], small[2:], weight[2:], plan.stride, plan.padding, plan.dilation, strict=True
        )
    ]
    source = small if plan.result == "large" else large
    padding = _padding(axes)
    is_needed = padding.is_needed(source[2:])
    extents = padding.extents if is_needed else source[2:]
    before = padding.before if is_needed else (0,) * len(axes)
    phases = itertools.product(*axes)
    products = [
        _product(plan, phase, (source[1], *extents), before, large, small, weight)
        for phase in phases
        if all(taps.places for taps in phase)
    ]
    return Correlation(padding=padding if is_needed else None, products=tuple(products))


def _forward_taps(
    _large: int, small: int, taps: int, stride: int, padding: int, dilation: int
) -> list[_Taps]:
    return [
        _Taps(
            count=taps,
            first=0,
            step=1,
            start=-padding,
            stride=stride,
            shift=dilation,
            places=small,
            residue=0,
            out_stride=1,
        )
    ]


def _input_taps(
    large: int, _small: int, taps: int, stride: int, padding: int, dilation: int
) -> list[_Taps]:
    """One phase per residue of the places of ``large``."""
    step = stride // math.gcd(stride, dilation)
    phases = []
    for residue in range(min(stride, large)):
        met = [p for p in range(taps) if (residue + padding - p * dilation) % stride == 0]
        first = met[0] if met else 0
        phases.append(
            _Taps(
                count=len(met),
                first=first,
                step=step,
                start=(residue + padding - first * dilation) // stride if met else 0,
                stride=1,
                shift=-(step * dilation) // stride,
                places=-(-(large - residue) // stride),
                residue=residue,
                out_stride=stride,
            )
        )
    return phases


def _padding(axes: Sequence[Sequence[_Taps]]) -> Padding:
    before, extents = [], []
    for phases in axes:
        low, high = 0, 0
        for taps in phases:
            if taps.count == 0 or taps.places == 0:
                continue
            ends = (
                taps.start + q * taps.stride + t * taps.shift
                for q in (0, taps.places - 1)
                for t in (0, taps.count - 1)
            )
            low, high = min(low, *(values := list(ends))), max(high, *values)
        before.append(-low)
        extents.append(high - low + 1)
    return Padding(before=tuple(before), extents=tuple(extents))


def _strides(extents: Sequence[int]) -> Shape:
    """Of a row-major tensor."""
    return tuple(math.prod(extents[i + 1 :]) for i in range(len(extents)))


def _joined(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The same walk with the fewest axes: those of one step dropped, dense neighbours merged."""
    result: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        steps = [axis.extent * stride for stride in (axis.source, axis.other, axis.out)]
        if result and [result[-1].source, result[-1].other, result[-1].out] == steps:
            axis = replace(axis, extent=result.pop().extent * axis.extent)
        result.append(axis)
    return tuple(result)


def _product(
    plan: ConvolutionPlan,
    phase: Sequence[_Taps],
    source: Shape,
    before: Shape,
    large: Shape,
    small: Shape,
    weight: Shape,
) -> Product:
    """``source`` are the channels and extents of the tensor as it is read."""
    num_a, num_b, *taps = weight
    num_a //= plan.groups
    batch, place = small[0], _strides(source[1:])
    image, channel = math.prod(source), math.prod(source[1:])
    start = sum(
        (taps.start + zeros) * stride
        for taps, zeros, stride in zip(phase, before, place, strict=True)
    )
    tap, per_a = _strides(taps), num_b * math.prod(taps)
    other_of_tap = [(t.first * w, t.step * w) for t, w in zip(phase, tap, strict=True)]
    if plan.result == "weight":
        size = math.prod(small[2:])
        rows = [Axis(extent=num_b, source=channel, out=math.prod(taps))]
        rows += [
            Axis(extent=t.count, source=t.shift * x, out=w)
            for t, x, w in zip(phase, place, tap, strict=True)
        ]
        sums = [Axis(extent=batch, source=image, other=small[1] * size)]
        sums += [
            Axis(extent=t.places, source=t.stride * x, other=y)
            for t, x, y in zip(phase, place, _strides(small[2:]), strict=True)
        ]
        columns = Axis(extent=num_a, other=size, out=per_a)
        groups = (num_b * channel, num_a * size, num_a * per_a)
        starts = (start, 0, 0)
    else:
        target = small if plan.result == "small" else large
        size = math.prod(target[2:])
        rows = [Axis(extent=batch, source=image, out=target[1] * size)]
        rows += [
            Axis(extent=t.places, source=t.stride * x, out=t.out_stride * y)
            for t, x, y in zip(phase, place, _strides(target[2:]), strict=True)
        ]
        per_b = math.prod(taps)
        inner, outer = (num_b, num_a) if plan.result == "small" else (num_a, num_b)
        strides = (per_b, per_a) if plan.result == "small" else (per_a, per_b)
        sums = [Axis(extent=inner, source=channel, other=strides[0])]
        sums += [
            Axis(extent=t.count, source=t.shift * x, other=step)
            for t, x, (_, step) in zip(phase, place, other_of_tap, strict=True)
        ]
        columns = Axis(extent=outer, other=strides[1], out=size)
        residue = sum(t.residue * y for t, y in zip(phase, _strides(target[2:]), strict=True))
        groups = (inner * channel, num_a * per_a, outer * size)
        starts = (start, sum(first for first, _ in other_of_tap), residue)
    return Product(
        groups=Axis(extent=plan.groups, source=groups[0], other=groups[1], out=groups[2]),
        rows=_joined(rows),
        sums=_joined(sums),
        columns=columns,
        source=starts[0],
        other=starts[1],
        out=starts[2],
    )
