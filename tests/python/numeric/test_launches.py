"""Launches of a strategy as they are simulated, and after its kernels were scheduled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disco_fuse.baselines import emitted_baseline
from disco_fuse.bench.launches import count_launches
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.strategy import Strategy
from disco_fuse.tuning.importing import ImportedStep, import_step

WORKLOAD = f"{Path(__file__).parents[1] / 'shared' / 'small_workload.py'}:workload"


@pytest.fixture(scope="module")
def imported() -> ImportedStep:
    return import_step(WORKLOAD)


@pytest.mark.parametrize("name", ["none", "default"])
def test_simulated_launches_are_those_of_the_scheduled_kernels(
    name: str, imported: ImportedStep
) -> None:
    graph = imported.extraction.graph
    strategy = emitted_baseline(name, graph, fuse_ops(imported.mod, imported.extraction))
    counts = count_launches(WORKLOAD, False, graph.digest, json.loads(strategy.to_json()))
    num_kernels = sum(unit.kind != "bucket" for unit in strategy.units(graph))
    assert counts["simulated"] >= num_kernels
    # An opaque op (scatter) may need a nest more, to copy what it then updates.
    assert abs(counts["scheduled"] / counts["simulated"] - 1) < 0.05


def test_another_graph_is_refused(imported: ImportedStep) -> None:
    unfused = json.loads(Strategy.unfused(imported.extraction.graph).to_json())
    with pytest.raises(ValueError, match="the strategy is one of 00000000"):
        count_launches(WORKLOAD, False, "0" * 32, unfused)
