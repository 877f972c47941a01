"""Scheduling, simulation and clusters through the Python interface."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE, fork
from hypothesis import given
from test_strategy import edited

from disco_fuse.config import AllReduceModel, ClusterSpec
from disco_fuse.cost_model import CostModel, Group, RooflineCostModel
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Event, StepMemory, Timeline, schedule, simulate
from disco_fuse.strategy import Edit, Strategy


class TenPerOp(CostModel):
    name = "ten-per-op"
    digest = "0"

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> np.ndarray:
        del graph
        return np.array([10.0 * len(group.ops) for group in groups])


def cluster(latency_us: float, contention: float) -> ClusterSpec:
    allreduce = AllReduceModel.linear(latency_us=latency_us, us_per_byte=0.0)
    return replace(CLUSTER, allreduce=allreduce, contention=contention)


def event(unit: int, stream: str, start_us: int, finish_us: int) -> Event:
    return Event(unit=unit, stream=stream, start_ns=1000 * start_us, finish_ns=1000 * finish_us)


def test_timeline_with_contention() -> None:
    graph = fork()
    scheduled = schedule(graph, Strategy.unfused(graph), TenPerOp(), cluster(12, 2.0))
    assert scheduled.order == (0, 2, 3, 1, 4)
    # 12 us of communication let 6 us of op 1 pass, 4 us run alone.
    assert simulate(graph, scheduled, TenPerOp(), cluster(12, 2.0)) == Timeline(
        events=(
            event(0, "compute", 0, 10),
            event(2, "compute", 10, 20),
            event(3, "communication", 20, 32),
            event(1, "compute", 20, 36),
            event(4, "compute", 36, 46),
        ),
        makespan_us=46.0,
        compute_us=40.0,
        allreduce_us=12.0,
        overlap=1.0,
        critical_path=(0, 2, 1, 4),
        # Ops 0, 1 and 2 while op 1 runs; the average of op 2 is in its own buffer.
        memory=StepMemory(external_bytes=400, bucket_bytes=0, peak_bytes=400 + 3 * 400),
    )


def test_timeline_in_the_original_order() -> None:
    graph = fork()
    timeline = simulate(graph, Strategy.unfused(graph), TenPerOp(), cluster(12, 2.0))
    assert [e.unit for e in timeline.events] == [0, 1, 2, 3, 4]
    assert timeline.makespan_us == 52.0
    assert timeline.overlap == 0.0
    assert timeline.critical_path == (0, 1, 2, 3, 4)


def check_timeline(graph: OpGraph, strategy: Strategy, timeline: Timeline) -> None:
    finish = {e.unit: e.finish_ns for e in timeline.events}
    lanes: dict[str, int] = {}
    for e in timeline.events:
        assert e.start_ns >= lanes.get(e.stream, 0)
        lanes[e.stream] = e.finish_ns
    start = {e.unit: e.start_ns for e in timeline.events}
    for unit in strategy.units(graph):
        for edge in graph.edges:
            inside = edge.producer in unit.ops and not edge.order_only
            if edge.consumer in unit.ops and not inside and not edge.order_only:
                assert start[unit.id] >= finish[int(strategy.group_of[edge.producer])]
    assert timeline.makespan_us == max(finish.values()) / 1000
    assert 0 <= timeline.overlap <= 1
    path = timeline.critical_path
    assert start[path[0]] == 0 or len(path) == 1
    assert all(finish[a] == start[b] for a, b in pairwise(path))
    assert finish[path[-1]] == max(finish.values())


@given(case=edited())
def test_timelines_are_consistent(case: tuple[OpGraph, list[Edit], Strategy]) -> None:
    graph, _, strategy = case
    model = RooflineCostModel(DEVICE)
    check_timeline(graph, strategy, simulate(graph, strategy, model, CLUSTER))
    scheduled = schedule(graph, strategy, model, CLUSTER)
    check_timeline(graph, scheduled, simulate(graph, scheduled, model, CLUSTER))
    assert scheduled.hash == strategy.hash
    assert schedule(graph, scheduled, model, CLUSTER) == scheduled


def test_chrome_trace() -> None:
    graph = fork()
    strategy = Strategy.create(graph, [0, 0, 2, 3, 4])
    timeline = simulate(graph, strategy, TenPerOp(), cluster(12, 1.0))
    rows = json.loads(timeline.to_chrome_trace(graph, strategy))["traceEvents"]
    assert rows[0]["name"] == "x+y"
    assert rows[0]["dur"] == 20.0
    assert [row["tid"] for row in rows[:4]] == [0, 0, 1, 0]
    assert rows[-1]["args"] == {"name": "communication"}


TOML = """
name = "pair"
world_size = 2
contention = 1.5
[device]
name = "cpu"
peak_gflops = 100.0
bandwidth_gbps = 10.0
launch_us = 2.0
[allreduce]
small_latency_us = 1.0
small_us_per_byte = 0.1
large_latency_us = 2.0
large_us_per_byte = 0.05
threshold_bytes = 1024
"""


def test_cluster_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    spec = ClusterSpec.from_toml(path)
    assert spec.contention == 1.5
    assert spec.device.nest_us == 0.0
    assert spec.allreduce.threshold_bytes == 1024


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("world_size = 2", "", "top level: .*world_size"),
        (
            "world_size = 2",
            "world_size = 0",
            "ClusterSpec.world_size must be an integer from 1 ",
        ),
        ("contention = 1.5", "contention = 0.5", "ClusterSpec.contention"),
        ("contention = 1.5", "speed = 1.5", "top level: unknown field 'speed'; allowed are"),
        ("launch_us = 2.0", "launch_us = 'x'", "DeviceSpec.launch_us"),
        ("launch_us = 2.0", "", r"\[device\]: .*launch_us"),
        ("[device]", "[gpu]", r"\[device\] is missing; it must be a table"),
        ("threshold_bytes = 1024", "threshold_bytes = -1", "AllReduceModel.threshold_bytes"),
        ("threshold_bytes = 1024", "threshold_bytes = 'x'", "AllReduceModel.threshold_bytes"),
        ("[device]", "[device", "not TOML"),
    ],
)
def test_toml_errors_name_file_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=f"cluster.toml: .*{message}|{message}") as caught:
        ClusterSpec.from_toml(path)
    assert "cluster.toml" in str(caught.value)
