"""Profiles and fidelity on real ranks over shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import RunRanks
from disco_fuse.baselines import baseline_names
from disco_fuse.compare.fidelity import Fidelity
from disco_fuse.launch import run
from disco_fuse.profile import ProfileDatabase
from disco_fuse.profile.contention import time_calls
from disco_fuse.profile.messages import fit_costs, link_key, load_costs, profile_messages
from disco_fuse.runtime import loopback
from disco_fuse.target import host_target

REFERENCE = f"{Path(__file__).parent.parent}/shared/small_workload.py:workload"


def test_messages_are_measured_beside_compute(
    run_ranks: RunRanks,  # noqa: ARG001 - skips without mpirun
) -> None:
    key, sizes = link_key(host_target(), 2, "shared-memory"), (4096, 2**20)
    with ProfileDatabase(None) as database:
        assert profile_messages(database, key, 2, sizes) == 2
        costs = load_costs(database, key, sizes)
    assert list(costs) == list(sizes)
    for flight, stolen in costs.values():
        assert 0 < flight.p10_us <= flight.median_us
        assert stolen.median_us >= 0
        assert flight.repeats >= 6
    assert fit_costs(costs).contention >= 1


def test_a_message_that_is_over_before_a_call_is_tells_nothing() -> None:
    array = np.ones(2**20, np.float32)
    # One rank sends nothing: its message is over before any call ends.
    with pytest.raises(RuntimeError, match="no call of the kernel ended before a message of 83886"):
        time_calls(lambda: array.sum(), loopback())


@pytest.mark.slow  # nine plans are built, and two ranks started three times
def test_strategies_are_simulated_and_measured(
    run_ranks: RunRanks,  # noqa: ARG001 - skips without mpirun
    tmp_path: Path,
) -> None:
    said: list[str] = []
    report: dict[str, Any] = Fidelity(
        model="tiny",
        reference=REFERENCE,
        num_ranks=2,
        link="shared-memory",
        num_strategies=9,
        num_steps=6,
        folder=tmp_path / "tiny",
        run_ranks=run,
    ).run(said.append)
    names = [row["name"] for row in report["strategies"]]
    assert names[0] == "disco_fuse"
    assert "none" in names
    assert len(set(names)) == 9
    assert set(names) - {"disco_fuse", *baseline_names()}
    assert report["cost_model"] == "roofline: asked for"
    assert all(row["step_ms"] > 0 and row["simulated_ms"] > 0 for row in report["strategies"])
    assert report["num_pairs"] + report["num_pairs_left_out"] == 9 * 8 // 2
    # A tiny step is mostly overhead, which the simulation does not know: some are off.
    off = {row["name"] for row in report["strategies"] if abs(row["error"]) > 0.1}
    assert set(report["differences"]) == off
    for parts in report["differences"].values():
        assert {"overhead", "waiting for AllReduces"} <= {part["what"] for part in parts}
    assert said[-1] == "measure 9 strategies"
