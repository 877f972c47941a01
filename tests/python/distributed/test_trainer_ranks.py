"""Ranks that train together: what they agree on, and what each of them keeps."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import require_mpirun, run_to_end

NUM_RANKS = 2
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(trained_plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What every rank says of every case of trainer_ranks.py, all run in one job."""
    require_mpirun()
    folder = tmp_path_factory.mktemp("job")
    shutil.copytree(trained_plan / "plan", folder / "plan")
    done = run_to_end("trainer_ranks.py", str(folder), num_ranks=NUM_RANKS)
    assert done.returncode == 0, done
    return [json.loads((folder / f"results-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def test_values_of_all_sizes_are_exchanged(results: Results) -> None:
    assert [result["exchanged"] for result in results] == [{"ranks": NUM_RANKS}] * NUM_RANKS


def test_ranks_of_one_host_have_one_clock(results: Results) -> None:
    """Which the pings find out, each to within half of what it took."""
    first, *others = (result["clocks"] for result in results)
    assert first == {"offset_ns": 0, "error_ns": 0}
    for other in others:
        assert abs(other["offset_ns"]) <= other["error_ns"] < 100_000_000


def test_resume_is_equal_bit_for_bit_on_every_rank(results: Results) -> None:
    cases = [result["resumed"] for result in results]
    for case in cases:
        assert case["losses"] == case["expected"] == cases[0]["expected"]
        assert case["digests"][0] == case["digests"][1]
    # What is local to a rank came back to that rank.
    assert cases[0]["statistics"] != cases[1]["statistics"]


def test_the_checkpoint_before_one_cut_short_is_used_and_said(results: Results) -> None:
    for result in results:
        case = result["cut_short"]
        assert case["losses"] == case["expected"][4:]
        restored = case["start"]["restored"]
        assert restored["step"] == 4
        (damaged,) = restored["damaged"]
        assert f"{case['newest']} is cut short" in damaged


def test_all_ranks_skip_what_one_must(results: Results) -> None:
    for result in results:
        case = result["skips"]
        assert (case["step"], case["skipped"], case["stop_reason"]) == (5, [3], "steps")
        assert [math.isnan(loss) for loss in case["losses"]] == [False, False, True, False, False]
        _, _, after_two, spoiled, skipped, after_four, *_ = case["digests"]
        assert spoiled != after_two == skipped != after_four


def test_all_ranks_stop_when_one_must(results: Results) -> None:
    for result in results:
        case = result["stops"]
        assert (case["step"], case["stop_reason"]) == (3, "nan")
        assert case["detail"] == "the loss of step 3 is nan on rank 1"


def test_all_ranks_end_with_the_shortest_data(results: Results) -> None:
    for result in results:
        case = result["data_ends"]
        assert (case["step"], case["stop_reason"]) == (3, "data")
        assert case["detail"] == "rank 0 has no more batches"


FULL = "the checkpoint of step {} failed: [Errno 27] File too large"


def test_full_disk_stops_the_training(results: Results) -> None:
    for result in results:
        case = result["full_disk_stop"]
        assert (case["step"], case["stop_reason"], case["detail"]) == (
            4,
            "checkpoint",
            FULL.format(4),
        )
        assert (case["files"], case["resumed_at"]) == (["step-000000002.checkpoint"], 2)


def test_full_disk_does_not_stop_the_training_if_asked(results: Results) -> None:
    for result in results:
        case = result["full_disk_continue"]
        assert (case["step"], case["stop_reason"]) == (7, "steps")
        assert [event["failure"] for event in case["events"]] == [
            None,
            *(FULL.format(step) for step in (4, 6, 7)),
        ]
        assert (case["files"], case["resumed_at"]) == (["step-000000002.checkpoint"], 2)


def test_sigterm_to_one_rank_ends_all_with_a_checkpoint(results: Results) -> None:
    steps = {result["terminated"]["step"] for result in results}
    assert len(steps) == 1
    for result in results:
        case = result["terminated"]
        assert (case["stop_reason"], case["detail"]) == ("terminated", "rank 1 was asked to end")
        assert case["step"] == case["resumed_at"] < 10


def test_evaluations_are_means_of_the_ranks(results: Results) -> None:
    for result in results:
        assert result["evaluated"]["events"] == [{"event": "evaluation", "step": 2, "rank": 0.5}]


def test_hundred_seeds_of_delays(results: Results) -> None:
    """No deadlock, and delays change nothing."""
    for result in results:
        losses = result["delayed"]["losses"]
        assert len(losses) == 100
        assert all(one == result["resumed"]["expected"][:3] for one in losses)


def test_memory_does_not_grow(results: Results) -> None:
    """800 steps may take a few pages for their losses, not more."""
    for result in results:
        case = result["long_training"]
        assert case["step"] == 1000
        assert case["growth_bytes"] < 1_000_000
