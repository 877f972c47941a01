"""The tutorial of the front page, run unmodified, and what its report promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpGraph
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.plan import load_plan
from disco_fuse.search import search
from disco_fuse.strategy import Strategy, replay
from disco_fuse.target import host_target
from disco_fuse.transform import DEFAULT_CLUSTER
from disco_fuse.workload import load_workload

QUICKSTART = Path(__file__).parents[3] / "tutorials" / "quickstart.py"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(QUICKSTART), "--steps", "30", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "over shared memory, where communication is nearly free" in done.stdout
    return folder


def test_report(output: Path) -> None:
    report = json.loads((output / "report.json").read_text())
    assert (report["model"], report["world_size"]) == ("byte_gpt", 2)
    rows = {row["name"]: row for row in report["strategies"]}
    assert list(rows) == ["none", "default", "ddp", "disco_fuse", "pytorch_ddp"]
    ours = rows["disco_fuse"]
    assert ours["kernels"] < rows["default"]["kernels"] < rows["none"]["kernels"]
    assert ours["allreduces"] < rows["none"]["allreduces"]
    assert 0.0 < ours["overlap"] <= 1.0
    for name in ("none", "default", "ddp"):
        assert ours["makespan_us"] <= rows[name]["makespan_us"]
    for row in rows.values():
        assert row["loss"] == pytest.approx(rows["pytorch_ddp"]["loss"], rel=1e-3)
        assert row["step_time_us"]["p10"] <= row["step_time_us"]["median"]


def test_plan_and_timelines(output: Path) -> None:
    plan = load_plan(output / "plans" / "disco_fuse")
    assert (output / "plan.json").read_text() == (
        output / "plans" / "disco_fuse" / "plan.json"
    ).read_text()
    assert plan.num_inputs == 2
    for kind in ("simulated", "measured"):
        trace = json.loads((output / f"{kind}_disco_fuse.trace.json").read_text())
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert len({event["tid"] for event in spans}) >= 2
        assert all(event["dur"] >= 0 for event in spans)
        assert sum(event["name"] != "" for event in spans) >= plan.num_kernels


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    load = load_workload(f"{QUICKSTART}:byte_gpt")
    example = [torch.from_numpy(np.asarray(part)) for part in load.example_batch()]
    step = training_step(load.model, example, loss=load.loss, optimizer=load.optimizer)
    mod = lower(InsertAllReduce()(step.mod), host_target(), library=True)
    return extract(mod).graph


def test_one_seed_means_one_plan(graph: OpGraph) -> None:
    model = RooflineCostModel(DEFAULT_CLUSTER.device)
    config = SearchConfig.preset("full", seed=3, max_steps=5000)
    one, two = (search(graph, model, DEFAULT_CLUSTER, config) for _ in range(2))
    assert one == two
    assert one.makespan_us < one.initial_makespan_us
    assert one.lower_bound_us <= one.makespan_us
    assert replay(graph, one.edits, limits=config.limits).hash == one.best.hash
    other = search(graph, model, DEFAULT_CLUSTER, SearchConfig(seed=4, max_steps=5000))
    assert other.best.hash != one.best.hash
    assert Strategy.from_json(graph, one.best.to_json()) == one.best
