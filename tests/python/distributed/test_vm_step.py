"""Start and wait inside a compiled step."""

from __future__ import annotations

from conftest import RunRanks


def test_compiled_step(run_ranks: RunRanks) -> None:
    """Correct averages while the planner looks for memory to reuse, and two refusals.

    Waiting without the gradients is how their memory would be reused in flight.
    """
    done = run_ranks("vm_step.py")
    assert done.returncode == 0, done
    missing = done.lines("^rank .: no session: (.*)$")
    assert len(missing) == 2
    assert all("with session.step():" in text for text in missing)
    refusals = done.lines("^rank .: refused: (.*)$")
    assert refusals == ["bucket 3: waited for with other tensors than started"] * 2
