"""Trainings of which one rank does not do its part: they end, promptly, and say why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Finished, run_to_end

pytestmark = pytest.mark.usefixtures("run_ranks")  # which skips where ranks cannot be started

# The ranks' own timeout is 3 s; far below the 60 s after which the test would give up.
PROMPT_S = 15.0


def finished(trained_plan: Path, case: str) -> Finished:
    done = run_to_end("failing_ranks.py", case, str(trained_plan))
    assert done.returncode != 0
    assert done.seconds_to_end() < PROMPT_S
    return done


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("leaves_after_joining", r"rank 1 left the job before the plan in \S+; rank 0 of 2 waits"),
        ("leaves_between_steps", r"rank 1 left the job before the end of step 3; rank 0 of 2"),
        ("slow_data", r"rank 0 of 2 waited 3 s in the end of step 3 for rank 1"),
        ("slow_step", r"bucket 0 on rank 0 of 2: nothing moved for 3 s.*rank 1"),
    ],
)
def test_missing_rank_is_named(case: str, message: str, trained_plan: Path) -> None:
    assert re.search(message, finished(trained_plan, case).stderr, re.DOTALL)


def test_rank_killed_before_it_joins(trained_plan: Path) -> None:
    done = finished(trained_plan, "killed_at_start")
    assert "process rank 1 " in done.stdout + done.stderr
