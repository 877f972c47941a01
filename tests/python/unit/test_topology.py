"""Which ranks add a bucket within their host first."""

from __future__ import annotations

import pytest

from disco_fuse.runtime.topology import host_groups


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aabb", [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]),
        ("abab", [([0, 2], [0, 1]), ([1, 3], [0, 1]), ([0, 2], [2, 3]), ([1, 3], [2, 3])]),
        ("aabbcc", [([0, 1], [0, 2, 4]), ([0, 1], [1, 3, 5]), ([2, 3], [0, 2, 4])]),
    ],
)
def test_groups(hosts: str, expected: list[tuple[list[int], list[int]]]) -> None:
    assert [host_groups(hosts, rank) for rank in range(len(expected))] == expected


@pytest.mark.parametrize("hosts", ["a", "aaaa", "abcd", "aab", "aabbb"])
def test_one_ring_where_two_levels_gain_nothing_or_do_not_fit(hosts: str) -> None:
    assert {host_groups(hosts, rank) == ([], []) for rank in range(len(hosts))} == {True}
