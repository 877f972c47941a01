"""Gradients that are computed where they travel."""

from __future__ import annotations

from conftest import RunRanks


def test_only_what_is_no_allocation_of_its_own_is_copied(run_ranks: RunRanks) -> None:
    done = run_ranks("zero_copy.py")
    assert done.returncode == 0, done
    # Bucket 1 copies the parameter: 100 float32.
    assert done.lines("^rank .: copied (.*)$") == ["{0: 0, 1: 400}"] * 2
