"""``disco-fuse bench`` from the model to its report, on a tiny model over shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import RunRanks
from disco_fuse.baselines import baseline_names
from disco_fuse.compare.link_bench import DDP, LinkBench
from disco_fuse.launch import run

REFERENCE = f"{Path(__file__).parent.parent}/shared/small_workload.py:workload"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.mark.slow  # torch compiles the model
def test_report(run_ranks: RunRanks, folder: Path) -> None:  # noqa: ARG001 - skips without mpirun
    said: list[str] = []
    what = LinkBench(
        model="tiny",
        reference=REFERENCE,
        num_ranks=2,
        link="shared-memory",
        num_steps=3,
        folder=folder / "tiny",
        run_ranks=run,
    )
    report: dict[str, Any] = what.run(said.append)
    assert said[0] == "import"
    assert said[-1] == "measure"
    assert report["failed"] == {}
    times = report["step_time_ms"]
    assert list(times) == [*baseline_names(), "disco_fuse", *DDP]
    assert all(time > 0 for time in times.values())
    assert report["best_baseline"] in baseline_names()
    # The step that made torch compile has been undone.
    for name, loss in report["losses"].items():
        assert loss == pytest.approx(report["losses"]["pytorch_ddp_25mb"], rel=1e-5), name
    limits = report["limits_us"]
    assert limits["fo_us"] == max(limits["compute_us"], limits["communication_us"])
    assert limits["fo_cpu_us"] == max(limits["beside_us"], limits["communication_us"])
    assert report["fo_ms"] == limits["fo_us"] / 1e3
    assert min(report["exposed_ms"], report["overhead_ms"]) >= 0
    assert report["copied_bytes"] == 0
    assert report["simulated_exposed_ms"] <= report["simulated_ms"]["disco_fuse"]
    assert 0 < report["lower_bound_ms"] <= report["simulated_ms"]["disco_fuse"]
    assert min(report["simulated_ms"].values()) == report["simulated_ms"]["disco_fuse"]
