"""Devices, links and clusters: the ring's formula, other sizes, scaling, TOML files and presets."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from graphs import op

from disco_fuse.cluster import ClusterSpec, Link, Links, preset_names
from disco_fuse.config import AllReduceModel, DeviceSpec
from disco_fuse.cost_model import Group, RooflineCostModel
from disco_fuse.device import Efficiency
from disco_fuse.graph import OpClass, OpGraph

PRESETS = ("1gbit-cpu", "a100-100gbe", "cluster-a", "cluster-b", "dgx-h100")
LINKS = Links(
    devices_per_host=4,
    network=Link(bandwidth_gbps=10.0, latency_us=5.0),
    inside=Link(bandwidth_gbps=40.0, latency_us=1.0),
    base_us=3.0,
)
MEASURED = """
name = "pair"
world_size = 2
[device]
name = "cpu"
peak_gflops = 100.0
bandwidth_gbps = 10.0
launch_us = 2.0
[device.efficiency]
matmul = { flops = 0.5 }
[allreduce]
small_latency_us = 1.0
small_us_per_byte = 0.1
large_latency_us = 2.0
large_us_per_byte = 0.05
threshold_bytes = 1024
"""
LINKED = (
    MEASURED[: MEASURED.index("[allreduce]")]
    + """
[links]
devices_per_host = 2
[links.inside]
bandwidth_gbps = 12.0
latency_us = 1.0
[links.network]
bandwidth_gbps = 1.0
latency_us = 4.0
"""
)


@pytest.mark.parametrize(
    ("world_size", "latency_us", "us_per_byte"),
    [
        (1, 0.0, 0.0),
        (2, 3.0 + 2 * 1.0, 1.0 / 40e3),
        (4, 3.0 + 6 * 1.0, 1.5 / 40e3),
        # Two hosts: two steps over the network, the rest inside; the network is the slowest.
        (8, 3.0 + 2 * 5.0 + 12 * 1.0, 1.75 / 10e3),
        (5, 3.0 + 2 * 5.0 + 6 * 1.0, 1.6 / 10e3),
    ],
)
def test_ring(world_size: int, latency_us: float, us_per_byte: float) -> None:
    curve = LINKS.allreduce(world_size)
    assert curve == AllReduceModel.linear(latency_us=latency_us, us_per_byte=us_per_byte)


def test_hosts_of_one_device_have_no_inside() -> None:
    links = Links(devices_per_host=1, network=Link(bandwidth_gbps=1.0, latency_us=2.0))
    assert links.allreduce(3).large_latency_us == 8.0
    assert links.scaled(2.0).allreduce(3).large_latency_us == 16.0
    with pytest.raises(ValueError, match=r"Links\.inside must be given where a host has several"):
        Links(devices_per_host=2, network=Link(bandwidth_gbps=1.0, latency_us=2.0))


def test_other_world_sizes(tmp_path: Path) -> None:
    linked, measured = tmp_path / "linked.toml", tmp_path / "measured.toml"
    linked.write_text(LINKED)
    measured.write_text(MEASURED)
    pair = ClusterSpec.load(linked)
    assert pair.links is not None
    assert pair.allreduce == pair.links.allreduce(2)
    wider = pair.with_world_size(6)
    assert (wider.world_size, wider.device) == (6, pair.device)
    assert wider.allreduce == pair.links.allreduce(6)
    assert wider.with_world_size(2) == pair
    with pytest.raises(ValueError, match=r"world_size must be an integer from 1 to .*, got 0"):
        pair.with_world_size(0)
    fixed = ClusterSpec.load(measured)
    assert fixed.with_world_size(2) == fixed
    with pytest.raises(ValueError, match="'pair' has an AllReduce curve for 2 ranks and no links"):
        fixed.with_world_size(3)


def test_scaled_costs() -> None:
    cluster = ClusterSpec.preset("cluster-a")
    other = cluster.scaled(compute=1.3, allreduce=0.7)
    assert other.name == "cluster-a, compute x1.3, AllReduce x0.7"
    for size in (4, 2**20, 2**28):
        expected = pytest.approx(0.7 * cluster.allreduce.time_us(size), rel=1e-4)
        assert other.allreduce.time_us(size) == expected
    assert other.with_world_size(6).allreduce.time_us(2**24) == pytest.approx(
        0.7 * cluster.with_world_size(6).allreduce.time_us(2**24), rel=1e-6
    )
    graph = OpGraph.create([op("x", num_inputs=2)])
    group = [Group(ops=(0,), outputs=(0,))]
    before, after = (
        RooflineCostModel(spec.device).predict(graph, group)[0] for spec in (cluster, other)
    )
    assert after == pytest.approx(1.3 * before, rel=1e-4)
    with pytest.raises(ValueError, match="compute must be finite, > 0, got 0"):
        cluster.scaled(compute=0)


def test_efficiencies_are_read_and_are_values(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(MEASURED)
    spec = ClusterSpec.load(str(path))
    assert spec.device.efficiency == (Efficiency(op_class=OpClass.MATMUL, flops=0.5),)
    assert spec == ClusterSpec.load(path)
    assert len({spec, ClusterSpec.load(path)}) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("flops = 0.5", "flops = 0.0", "Efficiency.flops of matmul must be in .0, 1., got 0.0"),
        ("flops = 0.5", "flops = 1.5", r"Efficiency.flops of matmul must be in \(0, 1\], got 1.5"),
        ("flops = 0.5", "speed = 0.5", r"\[device.efficiency.matmul\]: unknown field 'speed'"),
        ("matmul = {", "gemm = {", "Efficiency.op_class must be one of .*'matmul'.* got 'gemm'"),
        ("matmul = { flops = 0.5 }", "matmul = 0.5", "must be a table of tables"),
        ("launch_us = 2.0", "launch_us = 2.0\nlibrary_convolutions = 1", "must be a bool, got 1"),
        ("devices_per_host = 2", "devices_per_host = 0", "Links.devices_per_host must be"),
        ("devices_per_host = 2", "", r"\[links\]: .*devices_per_host"),
        ("bandwidth_gbps = 1.0", "bandwidth_gbps = -1.0", "Link.bandwidth_gbps must be finite"),
        ("latency_us = 4.0", "latency_us = 'x'", "Link.latency_us must be from 0 to"),
        ("bandwidth_gbps = 1.0", "bandwidth_gbps = 1e-300", "must be finite, >= 1e-06, got 1e-300"),
        ("bandwidth_gbps = 1.0", "bandwidth_gbps = nan", "must be finite, >= 1e-06, got nan"),
        ("latency_us = 4.0", "latency_us = 1e300", "must be from 0 to 8.64e\\+10, got 1e"),
        (
            "devices_per_host = 2",
            "devices_per_host = 2\nbase_us = 1e11",
            "base_us must be from",
        ),
        (
            "peak_gflops = 100.0",
            f"peak_gflops = {'9' * 400}",
            "finite, > 0, got an integer of 13",
        ),
        ("world_size = 2", f"world_size = {'9' * 400}", "from 1 to 2147483647, got an integer of"),
        ('name = "cpu"', "name = 5", "DeviceSpec.name must be a text, got 5"),
        ('name = "pair"', "name = 5", "ClusterSpec.name must be a text, got 5"),
        ("latency_us = 4.0", "delay_us = 4.0", r"\[links.network\]: unknown field 'delay_us'"),
        ("[links.inside]", "[links.outside]", r"\[links\]: unknown field 'outside'"),
        (
            "world_size = 2",
            "",
            r"ClusterSpec.world_size must be an integer from 1 .* got None",
        ),
        ("[links]", "[allreduce]\n[links]", r"exactly one of \[allreduce\] and \[links\]"),
        ("[links", "[chains", r"exactly one of \[allreduce\] and \[links\]"),
    ],
)
def test_errors_name_file_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    assert old in LINKED
    path.write_text(LINKED.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        ClusterSpec.from_toml(path)
    assert "cluster.toml: " in str(caught.value)


def test_messages_of_days_are_refused() -> None:
    """Their nanoseconds would not fit 64 bits."""
    AllReduceModel.linear(latency_us=86400e6, us_per_byte=2e3)
    with pytest.raises(ValueError, match=r"small_latency_us must be from 0 to 8.64e\+10, got 870"):
        AllReduceModel.linear(latency_us=8.7e10, us_per_byte=0.0)
    with pytest.raises(ValueError, match="small_us_per_byte must be from 0 to 2000, got inf"):
        AllReduceModel.linear(latency_us=0.0, us_per_byte=float("inf"))
    slowest = replace(LINKS, network=Link(bandwidth_gbps=1e-6, latency_us=0.0))
    assert slowest.allreduce(4096).time_us(10**12) > 0


def test_a_class_is_listed_once() -> None:
    twice = (Efficiency(op_class=OpClass.MATMUL),) * 2
    with pytest.raises(ValueError, match=r"DeviceSpec\.efficiency must be one entry per class"):
        DeviceSpec(name="d", peak_gflops=1.0, bandwidth_gbps=1.0, launch_us=1.0, efficiency=twice)


def test_unknown_names_list_the_presets(tmp_path: Path) -> None:
    assert preset_names() == PRESETS
    names = ", ".join(PRESETS)
    with pytest.raises(ValueError, match=f"no cluster preset 'cluster-c'; there are {names}"):
        ClusterSpec.preset("cluster-c")
    with pytest.raises(ValueError, match=f"no cluster 'cluster-c': presets are {names}; no such"):
        ClusterSpec.load("cluster-c")
    with pytest.raises(ValueError, match=f"no cluster '{tmp_path}': presets are"):
        ClusterSpec.load(tmp_path)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load(name: str) -> None:
    spec = ClusterSpec.load(name)
    assert spec.name == name
    assert spec.links is not None
    assert spec.with_world_size(4).allreduce.time_us(2**20) > 0
    assert {item.op_class for item in spec.device.efficiency} == set(OpClass)
    if spec.device.library_convolutions:  # a GPU: every loop nest is a kernel
        assert spec.device.nest_us == spec.device.launch_us


@pytest.mark.parametrize("name", PRESETS)
def test_every_figure_of_a_preset_has_its_source(name: str) -> None:
    text = (resources.files("disco_fuse") / "clusters" / f"{name}.toml").read_text("utf-8")
    figures = [
        line
        for line in text.splitlines()
        if re.match(r"\w+ *=", line) and not line.startswith("name ")
    ]
    assert len(figures) >= 12
    assert [line for line in figures if not re.search(r"# \S+", line)] == []
