"""Integer index expressions of the form ``const + sum(coefficient * axis)``.

Memory offsets of almost every kernel of a training step are affine in the loop axes, also after
reshapes, slices and permutations have been inlined: a ``floordiv``/``floormod`` by a constant
cancels whenever the axes line up with the shape that is being re-read.  Plain Python integers
decide that in microseconds, which keeps scheduling a kernel in the low milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Axis:
    """One loop axis: it takes the values ``0 .. extent - 1``.

    Axes are compared by identity; two loops of the same extent are different axes.
    """

    name: str
    extent: int


Bounds = Mapping[Axis, tuple[int, int]]
"""Narrower inclusive ranges of some axes, for a piece of a loop."""


@dataclass(frozen=True)
class Affine:
    """``const + sum(coefficient * axis)``; coefficients are never zero.

    ``terms`` keeps the order in which axes were first added, compared as a set through
    :meth:`Affine.key`.
    """

    const: int
    terms: tuple[tuple[Axis, int], ...] = ()

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes the value depends on."""
        return frozenset(axis for axis, _ in self.terms)

    @property
    def key(self) -> tuple[int, frozenset[tuple[Axis, int]]]:
        """Equal for equal values whatever the order of the terms."""
        return self.const, frozenset(self.terms)

    def coefficient(self, axis: Axis) -> int:
        """The factor of `axis`, 0 when the value does not depend on it."""
        for own, factor in self.terms:
            if own is axis:
                return factor
        return 0

    def __add__(self, other: Affine) -> Affine:
        if not other.terms:
            return Affine(self.const + other.const, self.terms)
        factors = dict(self.terms)
        for axis, factor in other.terms:
            factors[axis] = factors.get(axis, 0) + factor
        return Affine(
            self.const + other.const,
            tuple((axis, factor) for axis, factor in factors.items() if factor != 0),
        )

    def scale(self, factor: int) -> Affine:
        """The value times the integer `factor`."""
        if factor == 0:
            return Affine(0)
        return Affine(self.const * factor, tuple((a, c * factor) for a, c in self.terms))

    def range(self, bounds: Bounds) -> tuple[int, int]:
        """Smallest and largest value over all axes, `bounds` narrowing some of them."""
        low = high = self.const
        for axis, factor in self.terms:
            first, last = bounds.get(axis, (0, axis.extent - 1))
            low += factor * (first if factor > 0 else last)
            high += factor * (last if factor > 0 else first)
        return low, high

    def _split(self, divisor: int) -> tuple[Affine, Affine]:
        """``(quotient, rest)`` with ``self == divisor * quotient + rest``, term by term."""
        exact = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        rest = tuple((a, c) for a, c in self.terms if c % divisor != 0)
        return (
            Affine(self.const // divisor, exact),
            Affine(self.const % divisor, rest),
        )

    def floordiv(self, divisor: int, bounds: Bounds) -> Affine | None:
        """``floor(self / divisor)`` where it is affine, else None."""
        quotient, rest = self._split(divisor)
        low, high = rest.range(bounds)
        if low // divisor != high // divisor:
            return None
        return Affine(quotient.const + low // divisor, quotient.terms)

    def floormod(self, divisor: int, bounds: Bounds) -> Affine | None:
        """``self - divisor * floor(self / divisor)`` where it is affine, else None."""
        _, rest = self._split(divisor)
        low, high = rest.range(bounds)
        if low // divisor != high // divisor:
            return None
        return Affine(rest.const - divisor * (low // divisor), rest.terms)


def extent_of(group: Sequence[Axis]) -> int:
    """Iterations of a loop over these axes."""
    count = 1
    for axis in group:
        count *= axis.extent
    return count


def merged_coefficient(value: Affine, group: Sequence[Axis]) -> int | None:
    """Factor of the fused axis when the axes of `group` become one loop.

    Parameters
    ----------
    value
        The index expression.
    group
        Axes from the outermost to the innermost; fused they count
        ``(..(a0 * e1 + a1) * e2 + a2 ..)``.

    Returns
    -------
    int or None
        ``c`` such that the terms of `value` on these axes add up to ``c * fused``; None when
        there is no such factor.
    """
    factors = [value.coefficient(axis) for axis in group if axis.extent > 1]
    extents = [axis.extent for axis in group if axis.extent > 1]
    if not factors:
        return 0
    inner = factors[-1]
    expected = inner
    for position in range(len(factors) - 1, 0, -1):
        expected *= extents[position]
        if factors[position - 1] != expected:
            return None
    return inner


def merged_groups(axes: Sequence[Axis], values: Sequence[Affine]) -> tuple[tuple[Axis, ...], ...]:
    """Neighbouring axes fused where every value stays one linear walk, outermost first."""
    groups: list[tuple[Axis, ...]] = []
    for axis in axes:
        joined = (*groups[-1], axis) if groups else (axis,)
        if groups and all(merged_coefficient(value, joined) is not None for value in values):
            groups[-1] = joined
        else:
            groups.append((axis,))
    return tuple(groups)
