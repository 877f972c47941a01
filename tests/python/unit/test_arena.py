"""Places of buffers in an arena: no overlap, against naive placement, the bound and all orders."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_fuse.arena import ALIGNMENT, Arena, Lifetime, overlaps, place

LIFETIMES = st.lists(
    st.builds(
        lambda num_bytes, begin, length: Lifetime(num_bytes, begin, begin + length),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=40,
)


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def share_bytes(a: int, b: int, lifetimes: list[Lifetime], offsets: tuple[int, ...]) -> bool:
    """Whether two buffers hold the same byte at the same time."""
    one, other = lifetimes[a], lifetimes[b]
    together = one.begin <= other.end and other.begin <= one.end
    low = max(offsets[a], offsets[b])
    high = min(offsets[a] + one.num_bytes, offsets[b] + other.num_bytes)
    return together and low < high


@settings(max_examples=50, deadline=None)
@given(LIFETIMES)
def test_no_overlap_and_between_the_bound_and_naive(lifetimes: list[Lifetime]) -> None:
    arena = place(lifetimes)
    pairs = itertools.combinations(range(len(lifetimes)), 2)
    assert not any(share_bytes(a, b, lifetimes, arena.offsets) for a, b in pairs)
    assert overlaps(lifetimes, arena) == []
    live = max(
        (
            sum(padded(one.num_bytes) for one in lifetimes if one.begin <= now <= one.end)
            for now in range(30)
        ),
        default=0,
    )
    assert arena.live_bytes == live
    assert live <= arena.num_bytes <= sum(padded(one.num_bytes) for one in lifetimes)
    assert place(lifetimes) == arena


@settings(max_examples=50, deadline=None)
@given(LIFETIMES, st.data())
def test_a_moved_buffer_is_found(lifetimes: list[Lifetime], data: st.DataObject) -> None:
    """``overlaps`` says the same as a comparison of all pairs, whatever the offsets are."""
    offsets = tuple(
        ALIGNMENT * data.draw(st.integers(0, 60), label="offset in lines") for _ in lifetimes
    )
    ends = [offset + one.num_bytes for offset, one in zip(offsets, lifetimes, strict=True)]
    arena = Arena(offsets, max(ends, default=0), 0)
    pairs = itertools.combinations(range(len(lifetimes)), 2)
    broken = any(share_bytes(a, b, lifetimes, offsets) for a, b in pairs)
    assert bool(overlaps(lifetimes, arena)) == broken


def test_a_hole_that_fits_is_filled() -> None:
    """The picture of the module, in units of 64 bytes."""
    times = [(0, 2), (1, 3), (0, 0), (3, 4), (2, 4)]
    arena = place([Lifetime(64, begin, end) for begin, end in times])
    assert arena.num_bytes == arena.live_bytes == 3 * 64


def test_what_ends_where_another_begins_is_alive_with_it() -> None:
    """A kernel reads the one while it writes the other."""
    assert place([Lifetime(64, 0, 1), Lifetime(64, 1, 2)]).num_bytes == 128
    assert place([Lifetime(64, 0, 1), Lifetime(64, 2, 2)]).num_bytes == 64


def test_a_buffer_outside_of_the_arena_or_unaligned_is_found() -> None:
    lifetimes = [Lifetime(100, 0, 1)]
    good = place(lifetimes)
    assert overlaps(lifetimes, good) == []
    for broken in (
        replace(good, offsets=(64,)),
        replace(good, offsets=(8,), num_bytes=256),
        replace(good, offsets=(-64,)),
    ):
        assert overlaps(lifetimes, broken) != []


def best_of_all_orders(lifetimes: list[Lifetime]) -> int:
    """The smallest arena there is: first fit in some order finds it, so all orders are tried."""
    best = sum(padded(one.num_bytes) for one in lifetimes)
    for order in itertools.permutations(range(len(lifetimes))):
        offsets: dict[int, int] = {}
        for index in order:
            one = lifetimes[index]
            taken = sorted(
                (offsets[o], offsets[o] + padded(lifetimes[o].num_bytes))
                for o in offsets
                if lifetimes[o].begin <= one.end and one.begin <= lifetimes[o].end
            )
            offset = 0
            for low, high in taken:
                if offset + padded(one.num_bytes) <= low:
                    break
                offset = max(offset, high)
            offsets[index] = offset
        best = min(best, max(o + padded(lifetimes[i].num_bytes) for i, o in offsets.items()))
    return best


def test_close_to_the_smallest_arena_of_few_buffers() -> None:
    rng = random.Random(0)
    ratios = []
    for _ in range(12):
        begins = [rng.randrange(6) for _ in range(6)]
        lifetimes = [
            Lifetime(64 * rng.randrange(1, 9), begin, begin + rng.randrange(4)) for begin in begins
        ]
        ratios.append(place(lifetimes).num_bytes / best_of_all_orders(lifetimes))
    assert min(ratios) == 1.0
    assert max(ratios) <= 1.34
    assert sum(ratios) / len(ratios) <= 1.05


def test_nothing_needs_nothing() -> None:
    assert place([]) == Arena((), 0, 0)
    assert place([Lifetime(0, 0, 3)]) == Arena((0,), 0, 0)


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (4, 3, 2)])
def test_impossible_lifetimes_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="begin <= end"):
        Lifetime(*arguments)
