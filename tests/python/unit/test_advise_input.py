"""Traces that advice cannot use, and sets of them that do not belong together: refused by name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import fork
from kineto_traces import GpuJob

from disco_fuse.advise import load_job
from disco_fuse.compare.trace import measured_trace
from disco_fuse.config import ClusterSpec
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.runtime import EventKind
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy

JOB = GpuJob(
    buckets=[[0, 1], [2]],
    elements=[300_000, 1000, 50_000],
    backward_us=[500, 100, 300],
    num_steps=4,
)
Rows = list[dict[str, Any]]


def write(folder: Path, data: Any, name: str = "trace.json") -> str:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return str(path)


def whole() -> bytes:
    return json.dumps(JOB.trace(0)).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (whole()[:-300], "the trace is truncated: it ends after"),
        (whole()[:-1], "the trace is truncated: it ends after"),
        (whole()[: len(whole()) // 2], "the trace is truncated: it ends after"),
        (
            gzip.compress(whole(), mtime=0)[:-40],
            "the trace is truncated: its gzip stream has no end",
        ),
        (gzip.compress(b"x" * 5000, mtime=0)[:20] + b"junk" * 20, "gzip cannot read it"),
        (b"PK\x03\x04rest", "compressed by zip; allowed are gzip and no compression"),
        (b"\x28\xb5\x2f\xfdrest", "compressed by zstd"),
        (b"\xff\xfe\x00\x01", "not a trace: no text"),
        (b"", "not a trace: no JSON"),
        (b"ts,dur\n1,2\n", "not a trace: no JSON"),
        (b"[" * 100_000, "not a trace: nested too deeply"),
        (b"{}", "not a trace: it has no list of traceEvents"),
        (b"[]", "not a trace: it has no list of traceEvents"),
        (b'"text"', "not a trace: it has no list of traceEvents"),
        (b'{"traceEvents": {"ph": "X"}}', "not a trace: it has no list of traceEvents"),
        (b'[{"ph": "X", "ts": ' + b"9" * 5000 + b"}]", "not a trace: Exceeds the limit"),
        (
            b'[{"ph": "X", "cat": "cpu_op", "ts": "soon"}]',
            "not a trace of the PyTorch profiler: could not convert string to float",
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_whole_trace(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=message) as caught:
        load_job([path])
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simulated", "it is the simulated timeline of 'disco-fuse tune -O'.*'disco-fuse explain'"),
        ("measured", "it is the measured timeline of 'disco-fuse run --trace'.*Perfetto opens it"),
    ],
)
def test_own_timelines_are_told_apart(tmp_path: Path, name: str, message: str) -> None:
    if name == "simulated":
        cluster, graph = ClusterSpec.load("1gbit-cpu"), fork()
        strategy = Strategy.unfused(graph)
        timeline = simulate(graph, strategy, RooflineCostModel(cluster.device), cluster)
        data = json.loads(timeline.to_chrome_trace(graph, strategy))
    else:
        rows = [[int(EventKind.KERNEL), 0, 0, 5], [int(EventKind.ALLREDUCE), 0, 5, 9]]
        rank = {"rows": rows, "kernel_names": ["matmul"], "begin_ns": 7}
        data = measured_trace([rank, rank])
    with pytest.raises(ValueError, match=message):
        load_job([write(tmp_path, data)])


def test_no_file() -> None:
    with pytest.raises(ValueError, match=r"no file nowhere\.json"):
        load_job(["nowhere.json"])


def test_no_traces() -> None:
    with pytest.raises(ValueError, match="no traces; at least one is needed"):
        load_job([])


def without(*names: str) -> Callable[[Rows], Rows]:
    return lambda rows: [r for r in rows if not any(name in r["name"] for name in names)]


def sharded(rows: Rows) -> Rows:
    kept = without("allreduce", "all_reduce", "record_param_comms", "AllReduce")(rows)
    return [*kept, {**rows[0], "name": "c10d::_reduce_scatter_base_", "cat": "cpu_op"}]


def outside_of_backward(rows: Rows) -> Rows:
    return [{**r, "tid": 999} if "AccumulateGrad" in r["name"] else r for r in rows]


def step_that_sends_nothing(rows: Rows) -> Rows:
    kept = without("ProfilerStep")(rows)
    return [*kept, {**rows[0], "name": "ProfilerStep#9", "ts": rows[0]["ts"] - 500.0, "dur": 100.0}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (step_that_sends_nothing, "no whole step: gradients are sent only outside of what"),
        (
            without("nccl", "c10d", "record_param"),
            "no AllReduce: the trace has GPU kernels of a job",
        ),
        (without("ncclDev"), "no NCCL kernel of an AllReduce, hence not how long they take"),
        (without("ncclDev", "gemm"), "has no gloo:all_reduce, hence not how long they take"),
        (without("AccumulateGrad"), "no torch::autograd::AccumulateGrad: when gradients are ready"),
        (without("gemm"), "NCCL kernels, but none that compute"),
        (sharded, "no AllReduce, but 'c10d::_reduce_scatter_base_': advice is for Distributed"),
        (outside_of_backward, "no AllReduce is called by a backward pass"),
        (lambda rows: rows[:1], "no AllReduce: the trace has operators of a job"),
        (lambda _: [{"ph": "M"}], "no AllReduce: the trace has nothing of a job"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_trace_without(tmp_path: Path, change: Callable[[Rows], Rows], message: str) -> None:
    path = write(tmp_path, {"traceEvents": change(JOB.trace(0)["traceEvents"])})
    with pytest.raises(ValueError, match=message) as caught:
        load_job([path])
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"ts": float("nan")}, "ts nan of event 'ncclDev.*' is no time"),
        ({"dur": float("inf")}, "dur inf of event 'ncclDev.*' is no time"),
        ({"dur": 10**400}, "too large"),
        ({"args": "abc"}, "args of event 'ncclDev.*' are none of the profiler: abc"),
        ({"args": [1]}, r"args of event 'ncclDev.*' are none of the profiler: \[1\]"),
        ({"args": {"correlation": [1]}}, "args of event 'ncclDev.*' are none of the profiler"),
    ],
    ids=str,
)
def test_an_event_that_is_none(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    rows = JOB.trace(0)["traceEvents"]
    next(row for row in rows if row["name"].startswith("ncclDev")).update(entry)
    path = write(tmp_path, rows)
    with pytest.raises(ValueError, match=message) as caught:
        load_job([path])
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"rank": 7}, "distributedInfo has rank 7 of world_size 2"),
        ({"rank": -1}, "distributedInfo has rank -1 of world_size 2"),
        ({"world_size": -4}, "distributedInfo has world_size -4; allowed: from 1"),
        ({"rank": float("inf")}, "cannot convert float infinity to integer"),
    ],
    ids=str,
)
def test_a_rank_that_cannot_be(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    trace = JOB.trace(0)
    trace["distributedInfo"] |= entry
    path = write(tmp_path, trace)
    with pytest.raises(ValueError, match=message) as caught:
        load_job([path])
    assert path in str(caught.value)


def test_messages_that_do_not_say_how_long_they_took(tmp_path: Path) -> None:
    rows = JOB.trace(0)["traceEvents"]
    for row in rows:
        if row["name"].startswith("ncclDev"):
            del row["dur"]
    with pytest.raises(ValueError, match=r"none of its AllReduces says how long it took \(\"dur\""):
        load_job([write(tmp_path, rows)])


def test_sizes_that_no_memory_holds_are_not_known(tmp_path: Path) -> None:
    rows = JOB.trace(0)["traceEvents"]
    for row in rows:
        if "In msg nelems" in row["args"]:
            row["args"]["In msg nelems"] = 10**400
        if "AccumulateGrad" in row["name"] and "Input Dims" in row["args"]:
            row["args"]["Input Dims"] = [[-5]]
        if row["name"] == "nccl:all_reduce":
            row["args"] = {}
    with pytest.raises(ValueError, match="neither the AllReduces nor the gradients say how large"):
        load_job([write(tmp_path, rows)])


def test_without_launches_of_compute(tmp_path: Path) -> None:
    rows = JOB.trace(0)["traceEvents"]
    computing = {r["args"]["correlation"] for r in rows if r["name"].startswith("gemm")}
    kept = [
        row
        for row in rows
        if row["cat"] != "cuda_runtime" or row["args"]["correlation"] not in computing
    ]
    with pytest.raises(ValueError, match=r"the launches of \d+ of \d+ GPU kernels are not in the"):
        load_job([write(tmp_path, kept)])


def test_without_operators_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="but no AllReduce called by the host: profile with Prof"):
        load_job([write(tmp_path, JOB.trace(0, host=False))])


def test_an_old_trace_without_any_sizes(tmp_path: Path) -> None:
    path = write(tmp_path, JOB.trace(0, style="old", shapes=False))
    with pytest.raises(ValueError, match="neither the AllReduces nor the gradients say how large"):
        load_job([path])


def test_an_old_trace_with_shapes_of_gradients_only(tmp_path: Path) -> None:
    rows = JOB.trace(0, style="old")
    for row in rows:
        if row["name"] == "nccl:all_reduce":
            row["args"] = {}
    loaded = load_job([write(tmp_path, rows)])
    assert loaded.bucket_bytes.tolist() == [4 * 301_000, 4 * 50_000]


def pair(folder: Path, first: Any, second: Any) -> list[str]:
    return [write(folder, first, "a.json"), write(folder, second, "b.json")]


def test_ranks_of_different_jobs(tmp_path: Path) -> None:
    larger = replace(JOB, elements=[300_000, 1000, 60_000])
    with pytest.raises(ValueError, match=r"b.json are not of the same job: their messages, in byt"):
        load_job(pair(tmp_path, JOB.trace(0), larger.trace(1)))
    fewer = replace(JOB, elements=[300_000, 1000], backward_us=[500, 100], buckets=[[0], [1]])
    with pytest.raises(ValueError, match="their numbers of gradients are 3 and 2"):
        load_job(pair(tmp_path, JOB.trace(0), fewer.trace(1)))
    more = replace(JOB, world_size=3, late_us=(0, 0, 0))
    with pytest.raises(ValueError, match="their world sizes are 2 and 3"):
        load_job(pair(tmp_path, JOB.trace(0), more.trace(1)))


def test_ranks_of_different_runs(tmp_path: Path) -> None:
    slower = replace(JOB, backward_us=[500, 100, 6000])
    with pytest.raises(ValueError, match="are not of the same run: their AllReduces end"):
        load_job(pair(tmp_path, JOB.trace(0), slower.trace(1)))


def test_one_rank_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a.json and .*b.json: both are rank 0; one file per ra"):
        load_job(pair(tmp_path, JOB.trace(0), JOB.trace(0)))


def test_no_common_step(tmp_path: Path) -> None:
    later = JOB.trace(1)
    for row in later["traceEvents"]:
        row["name"] = row["name"].replace("ProfilerStep#", "ProfilerStep#10")
    with pytest.raises(ValueError, match=r"no step in common: .*a.json has \[4, 5, 6\]; .*b.json"):
        load_job(pair(tmp_path, JOB.trace(0), later))
