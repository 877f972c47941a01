"""Places of buffers in one block of memory, so that no two that are alive together overlap.

    time ->     0   1   2   3   4          offset
    a  [0, 2]   aaaaaaaaa                  0  a a a d d       the largest first, each into the
    b  [1, 3]       bbbbbbbbb              1    b b b         smallest gap that takes it
    c  [0, 0]   c                          2  c   e e e
    d  [3, 4]               ddddd          arena: 3, alive at time 2: a, b, e
    e  [2, 4]           eeeeeeeee

Finding the smallest arena is NP-hard. These are the greedy rules of Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference" (arXiv 2001.03288): by size, and by breadth with
the most loaded moment first. The better arena counts. No arena is smaller than what is alive at the
worst moment, which :attr:`Arena.live_bytes` states.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Of every buffer: a cache line, kAllocAlignment of ``tvm/runtime/device_api.h``."""


@dataclass(frozen=True)
class Lifetime:
    """A buffer of a program in fixed order.

    Attributes
    ----------
    num_bytes : int
    begin, end : int
        First and last moment at which it holds something, both included.
    """

    num_bytes: int
    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or self.end < self.begin:
            raise ValueError(f"{self}: allowed are num_bytes >= 0 and begin <= end")


@dataclass(frozen=True)
class Arena:
    """Where buffers lie.

    Attributes
    ----------
    offsets : tuple of int
        Of every buffer, in bytes; a multiple of 64.
    num_bytes : int
        Of the whole block.
    live_bytes : int
        Sum of the buffers that are alive at the worst moment, each rounded up to 64 bytes: a bound
        that no placement can beat.
    """

    offsets: tuple[int, ...]
    num_bytes: int
    live_bytes: int


def place(lifetimes: Sequence[Lifetime]) -> Arena:
    """Offsets by the better of two greedy rules; the same input gives the same offsets."""
    sizes = np.array([_aligned(one.num_bytes) for one in lifetimes], np.int64)
    begins = np.array([one.begin for one in lifetimes], np.int64)
    ends = np.array([one.end for one in lifetimes], np.int64)
    live = _live_at_begins(sizes, begins, ends)
    live_bytes = int(live.max(initial=0))
    by_size = np.lexsort((begins, -sizes))
    best, best_bytes = _place_in_order(by_size, sizes, begins, ends)
    if best_bytes > live_bytes:
        by_breadth = _breadth_order(by_size, live, begins, ends)
        other, other_bytes = _place_in_order(by_breadth, sizes, begins, ends)
        if other_bytes < best_bytes:
            best, best_bytes = other, other_bytes
    return Arena(tuple(int(offset) for offset in best), best_bytes, live_bytes)


def overlaps(lifetimes: Sequence[Lifetime], arena: Arena) -> list[str]:
    """What is wrong with an arena, in words: buffers that share bytes while both are alive.

    Independent of how :func:`place` works: walks through time with the set of live buffers. Only
    neighbours by offset need to be compared.
    """
    problems = []
    born: dict[int, list[int]] = {}
    for index, one in enumerate(lifetimes):
        offset = arena.offsets[index]
        if offset % ALIGNMENT or not 0 <= offset <= arena.num_bytes - one.num_bytes:
            problems.append(f"buffer {index} at {offset} is not aligned or not in the arena")
        if one.num_bytes:
            born.setdefault(one.begin, []).append(index)
    alive: list[int] = []
    for now in sorted(born):
        alive = [index for index in alive if lifetimes[index].end >= now] + born[now]
        alive.sort(key=lambda index: arena.offsets[index])
        for lower, upper in itertools.pairwise(alive):
            if arena.offsets[lower] + lifetimes[lower].num_bytes > arena.offsets[upper]:
                problems.append(f"buffers {lower} and {upper} overlap at time {now}")
    return problems


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _live_at_begins(
    sizes: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Bytes alive when each buffer begins; the most of them is the most at any time."""
    born = np.argsort(begins, kind="stable")
    died = np.argsort(ends, kind="stable")
    born_bytes = np.concatenate([[0], np.cumsum(sizes[born])])
    died_bytes = np.concatenate([[0], np.cumsum(sizes[died])])
    num_born = np.searchsorted(begins[born], begins, side="right")
    num_died = np.searchsorted(ends[died], begins, side="left")
    live: NDArray[np.int64] = born_bytes[num_born] - died_bytes[num_died]
    return live


def _breadth_order(
    by_size: NDArray[np.int64],
    live: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Buffers of the most loaded moment first, the largest first; then those of the next one."""
    rank = np.full(len(by_size), -1, np.int64)
    number = 0
    for moment in begins[np.argsort(-live, kind="stable")]:
        here = by_size[(begins[by_size] <= moment) & (moment <= ends[by_size])]
        here = here[rank[here] < 0]
        rank[here] = np.arange(number, number + len(here))
        number += len(here)
        if number == len(rank):
            break
    return np.argsort(rank)


def _place_in_order(
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.int64], int]:
    """(offsets, bytes of all): each buffer into the smallest gap that takes it, or on top."""
    offsets = np.zeros(len(order), np.int64)
    total = 0
    for count, index in enumerate(order):
        placed = order[:count]
        placed = placed[(begins[placed] <= ends[index]) & (begins[index] <= ends[placed])]
        placed = placed[np.argsort(offsets[placed], kind="stable")]
        starts = offsets[placed]
        # Where the space below each of them ends and the space above it begins.
        tops = np.maximum.accumulate(starts + sizes[placed])
        bottoms = np.concatenate([[0], tops])
        gaps = starts - bottoms[:-1]
        fits = np.flatnonzero(gaps >= sizes[index])
        where = fits[np.argmin(gaps[fits])] if len(fits) else len(placed)
        offsets[index] = bottoms[where]
        total = max(total, int(offsets[index] + sizes[index]))
    return offsets, total
