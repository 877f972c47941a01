"""Ranks that disagree, die, raise or never come."""

from __future__ import annotations

import pytest

from conftest import RunRanks

# Far below the 60 s after which the communicator itself would give up.
PROMPT_S = 10.0


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_different_plans_are_refused_on_every_rank(run_ranks: RunRanks, num_ranks: int) -> None:
    done = run_ranks("ranks.py", "different_plans", num_ranks=num_ranks)
    assert done.returncode == 0, done
    values = ", ".join(f"rank {rank}: hash{rank % 2}" for rank in range(num_ranks))
    refusals = done.lines("^rank .: refused: (.*)$")
    assert refusals == [f"the ranks disagree on the plan: {values}"] * num_ranks


@pytest.mark.parametrize("case", ["killed_in_compute", "killed_in_allreduce"])
def test_killed_rank_ends_the_run(run_ranks: RunRanks, case: str) -> None:
    done = run_ranks("ranks.py", case)
    assert done.returncode != 0
    assert done.seconds_to_end() < PROMPT_S
    assert done.says_rank_died(1)
    assert "must not get here" not in done.stdout


def test_exception_on_one_rank_ends_the_run_with_its_traceback(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "raises")
    assert done.returncode != 0
    assert done.seconds_to_end() < PROMPT_S
    assert "rank 1 of 2 failed:" in done.stderr
    assert "in raises" in done.stderr
    assert "ZeroDivisionError: the batch was empty" in done.stderr
    assert "rank 0 of 2 failed:" not in done.stderr


def test_timeout_names_bucket_and_peers_and_breaks_the_communicator(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "peer_never_comes", "0.5")
    assert done.returncode == 0, done
    (first,) = done.lines("^rank 0: bucket 7 failed: (.*)$")
    assert first.startswith("bucket 7 on rank 0 of 2: nothing moved for 0.5 s"), first
    assert "missing from rank 1" in first
    assert "not taken by rank 1" in first
    (second,) = done.lines("^rank 0: bucket 8 failed: (.*)$")
    assert first in second


def test_ctrl_c_ends_a_wait(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "interrupted")
    assert done.returncode == 0, done
    (seconds,) = done.lines("^rank 0: interrupted after (.*) s$")
    assert float(seconds) < PROMPT_S / 2


def test_bucket_in_flight_does_not_hold_up_exit(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "leaves_early")
    assert done.returncode == 0, done
    assert done.seconds_to_end() < PROMPT_S


def test_mpi_without_thread_support_is_refused(run_ranks: RunRanks) -> None:
    done = run_ranks("ranks.py", "thread_level")
    assert done.returncode == 0, done
    refusals = done.lines("^refused: (.*)$")
    assert len(refusals) == 2
    assert all("MPI_THREAD_MULTIPLE" in text for text in refusals)
