"""Convolutions and their gradients from the definition, in numpy, and problems to try them on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from disco_fuse.kernels.library import ConvolutionPlan

Array = npt.NDArray[Any]
RESULTS = ("small", "large", "weight")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A window and the shapes of the three tensors."""

    groups: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    large: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def small(self) -> tuple[int, ...]:
        """[batch, channels, windows of every axis]"""
        windows = (
            (length + 2 * padding - (taps - 1) * dilation - 1) // stride + 1
            for length, taps, stride, padding, dilation in zip(
                self.large[2:],
                self.weight[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        return (self.large[0], self.weight[0], *windows)

    def plan(self, result: Any) -> ConvolutionPlan:
        """To compute one of the tensors."""
        return ConvolutionPlan(
            result=result,
            groups=self.groups,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )

    def tensors(self, dtype: str) -> dict[str, Array]:
        """Large, small and weight of normal numbers."""
        rng = np.random.default_rng(0)
        shapes = {"large": self.large, "small": self.small, "weight": self.weight}
        return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}

    def expected(self, result: str, tensors: dict[str, Array]) -> Array:
        """The result from the two other tensors, summed in float64, tap by tap."""
        wide = {name: value.astype(np.float64) for name, value in tensors.items()}
        batch, channels, *extents = self.large
        room = [n + 2 * p + d for n, p, d in zip(extents, self.padding, self.dilation, strict=True)]
        padded = np.zeros((batch, channels, *room))
        inside = (..., *(slice(p, p + n) for n, p in zip(extents, self.padding, strict=True)))
        if result != "large":
            padded[inside] = wide["large"]
        grouped = padded.reshape(batch, self.groups, channels // self.groups, *room)
        small = np.zeros(self.small) if result == "small" else wide["small"]
        small = small.reshape(batch, self.groups, -1, *self.small[2:])
        weight = np.zeros(self.weight) if result == "weight" else wide["weight"]
        weight = weight.reshape(self.groups, -1, *self.weight[1:])
        axes = "xyz"[: len(extents)]
        for tap in itertools.product(*(range(taps) for taps in self.weight[2:])):
            places = tuple(
                slice(p * d, p * d + (windows - 1) * s + 1, s)
                for p, d, s, windows in zip(
                    tap, self.dilation, self.stride, self.small[2:], strict=True
                )
            )
            seen, of_tap = grouped[(..., *places)], weight[(..., *tap)]
            if result == "small":
                small += np.einsum(f"ngb{axes},gab->nga{axes}", seen, of_tap)
            elif result == "large":
                seen += np.einsum(f"nga{axes},gab->ngb{axes}", small, of_tap)
            else:
                of_tap += np.einsum(f"nga{axes},ngb{axes}->gab", small, seen)
        if result == "large":
            return grouped.reshape(padded.shape)[inside]
        return small.reshape(self.small) if result == "small" else weight.reshape(self.weight)


@st.composite
def problems(draw: st.DrawFn, max_channels: int = 5) -> Problem:
    """Windows over one to three axes that fit at least once, groups, channels and batches of 1."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.integers(1, 3))
    out_channels, in_channels = (draw(st.integers(1, max_channels)) for _ in range(2))
    taps, dilation, padding = each(1, 3), each(1, 3), each(0, 2)
    least = [
        max(1, (t - 1) * d + 1 - 2 * p) for t, d, p in zip(taps, dilation, padding, strict=True)
    ]
    extents = (low + draw(st.integers(0, 9 if rank < 3 else 4)) for low in least)
    return Problem(
        groups=groups,
        stride=each(1, 3),
        padding=padding,
        dilation=dilation,
        large=(draw(st.integers(1, 3)), groups * in_channels, *extents),
        weight=(groups * out_channels, in_channels, *taps),
    )
