"""Trainings of which one rank does not do its part: they end, promptly, and say why."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import LIMIT_S, Finished, run_to_end
from disco_fuse import launch
from disco_fuse.plan import load_plan, save_plan

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
    assert done.says_rank_died(1)


@pytest.mark.parametrize("case", ["damaged", "another TVM"])
def test_plan_refused_on_one_rank_is_refused_on_all(
    case: str, trained_plan: Path, tmp_path: Path
) -> None:
    """Rank 0, whose plan is whole, does not wait for a step that rank 1 cannot run."""
    for rank in range(2):
        shutil.copytree(trained_plan / "plan", tmp_path / f"plan-{rank}")
    shutil.copy(trained_plan / "plan" / "values.npz", tmp_path)
    if case == "damaged":
        (tmp_path / "plan-1" / "step.so").write_bytes(b"another step")
        reason = f"{tmp_path}/plan-1/step.so is not the file"
    else:
        plan = load_plan(tmp_path / "plan-1")
        save_plan(tmp_path / "plan-1", replace(plan, needs={**plan.needs, "tvm": "0.1"}))
        reason = "the step cannot run here: it was compiled by TVM 0.1"
    program = [str(Path(__file__).parent / "load_plan.py"), str(tmp_path)]
    done = launch.run(program, 2, timeout_s=LIMIT_S, capture=True, oversubscribe=True)
    assert done.returncode != 0
    assert f"is refused on rank 1: {reason}" in done.stderr
