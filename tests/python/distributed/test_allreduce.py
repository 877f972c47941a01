"""Averages, broadcasts and measurements between real ranks."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from conftest import RunRanks


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_averages_match_numpy_and_ranks_hold_the_same_bits(
    run_ranks: RunRanks, num_ranks: int
) -> None:
    done = run_ranks("ranks.py", "averages", num_ranks=num_ranks)
    assert done.returncode == 0, done
    bits = Counter(done.lines(r"^rank \d+: bits (.*)$"))
    assert len(bits) == 15
    assert set(bits.values()) == {num_ranks}, bits


def test_averages_within_hosts_and_between_them(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "averages", "60", "abab", num_ranks=4)
    assert done.returncode == 0, done
    bits = Counter(done.lines(r"^rank \d+: bits (.*)$"))
    assert len(bits) == 15
    assert set(bits.values()) == {4}, bits


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_many_buckets_in_flight_with_ranks_out_of_step(run_ranks: RunRanks, num_ranks: int) -> None:
    done = run_ranks("ranks.py", "many_buckets", num_ranks=num_ranks)
    assert done.returncode == 0, done
    assert len(done.lines("^rank .: (done)$")) == num_ranks


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_broadcast(run_ranks: RunRanks, num_ranks: int) -> None:
    done = run_ranks("ranks.py", "broadcast", num_ranks=num_ranks)
    assert done.returncode == 0, done
    refusals = done.lines("^rank .: refused: (.*)$")
    assert len(refusals) == num_ranks
    assert all("(3,)" in text and "(4,)" in text for text in refusals), refusals


def test_measurement_is_the_same_on_all_ranks(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "measured")
    assert done.returncode == 0, done
    ours, theirs = (ast.literal_eval(text) for text in done.lines("^rank .: measured (.*)$"))
    assert ours == theirs
    assert [size for size, _, _ in ours] == [4096, 1 << 20]
    assert all(median > 0 and spread >= 0 for _, median, spread in ours)


def test_cost_beside_compute_is_the_same_on_all_ranks(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "measured_beside_compute")
    assert done.returncode == 0, done
    ours, theirs = (ast.literal_eval(text) for text in done.lines("^rank .: measured (.*)$"))
    assert ours == theirs
    assert [size for size, _, _ in ours] == [4096, 4 << 20]
    assert all(flight > 0 and stolen >= 0 for _, flight, stolen in ours)
    # Copying and adding 4 MiB needs a processor for longer than a page does.
    assert ours[1][1] > ours[0][1]


def test_allreduce_overlaps_computation(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "overlapped")
    assert done.returncode == 0, done
    assert len(done.lines("^rank .: (done)$")) == 2


def test_sums_are_sums(run_ranks: RunRanks) -> None:
    assert run_ranks("sum_ranks.py", num_ranks=2).returncode == 0
