"""Clocks of ranks, compared by pings of a channel that is not there."""

from __future__ import annotations

import pytest

from disco_fuse.runtime import ClockOffset, loopback
from disco_fuse.runtime.clock import measure_offset


class Channel:
    """Of rank 1 of 2. Rank 0's clock is `ahead`; messages there and back take their time."""

    rank, world_size = 1, 2

    def __init__(self, ahead_ns: int, delays_ns: list[tuple[int, int]]) -> None:
        self.ahead_ns, self.delays_ns = ahead_ns, delays_ns
        self.num_pings = 0

    def exchange(self, payload: bytes, what: str) -> list[bytes]:
        assert what
        return [payload, payload]

    def ping(self, rank: int, what: str) -> tuple[int, int, int]:
        assert (rank, what) == (0, "the comparison of clocks")
        there_ns, back_ns = self.delays_ns[self.num_pings % len(self.delays_ns)]
        sent_ns = 1_000_000 * self.num_pings
        self.num_pings += 1
        return sent_ns, sent_ns + there_ns + self.ahead_ns, sent_ns + there_ns + back_ns


@pytest.mark.parametrize("ahead_ns", [0, 12_345, -(10**15)])
def test_the_shortest_ping_counts(ahead_ns: int) -> None:
    channel = Channel(ahead_ns, [(900, 100), (40, 60), (5000, 10)])
    offset = measure_offset(channel)  # type: ignore[arg-type]
    assert offset == ClockOffset(offset_ns=ahead_ns - 10, error_ns=50)
    assert channel.num_pings == 50


def test_one_rank_has_the_time_of_rank_0() -> None:
    assert loopback().clock_offset() == ClockOffset(offset_ns=0, error_ns=0)
