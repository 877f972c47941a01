"""`disco-fuse advise`: output, exit codes, and advice for a model alone."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from graphs import fork
from kineto_traces import GpuJob

from disco_fuse.advise.from_model import advise_model, replay_of
from disco_fuse.cli.main import main
from disco_fuse.config import UNCAPPED, ClusterSpec
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.fuse_ops import Emission, in_emitted_order
from disco_fuse.graph import Edge, Op, OpGraph, OpKind
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tensor_fusion import ddp_buckets, ddp_caps_bytes
from disco_fuse.tuning import Problem

JOB = GpuJob(
    buckets=[[0, 1], [2]],
    elements=[300_000, 1000, 50_000],
    backward_us=[500, 100, 300],
    num_steps=5,
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["advise", *arguments])


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rank, name in enumerate(("rank0.json", "rank1.json.gz")):
        Path(name).write_text(json.dumps(JOB.trace(rank)))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the import of models by a tiny graph."""

    def import_problem(name: str, *_: Any, **__: Any) -> Problem:
        return problem(fork(), name)

    monkeypatch.setattr("disco_fuse.tuning.importing.import_problem", import_problem)


def problem(graph: OpGraph, name: str = "model") -> Problem:
    emission = Emission(groups=(), order=tuple(range(graph.num_ops)))
    return Problem(name=name, graph=graph, emission=emission)


@pytest.mark.usefixtures("traces")
def test_what_is_printed() -> None:
    result = run("rank0.json", "rank1.json.gz")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in (
        r"^\| steps +\| 4 ",
        r"^\| AllReduce line +\| 100 us \+ 1\.0\d\d GB/s \|$",
        r"^\| bound for all buckets +\| \d",
        r"^\| rank1.json.gz \| +1 \|",
        r"^best: bucket_cap_mb=[\d.]+, predicted [\d.]+ ms$",
    ):
        assert re.search(text, result.stdout, re.MULTILINE), text
    assert len(re.findall(r"^\| +[\d.]+ \| +\d+ \| +[\d.]+ \|", result.stdout, re.MULTILINE)) == 20


@pytest.mark.usefixtures("imported")
def test_what_is_printed_for_a_model() -> None:
    result = run("bert_small", "--cluster", "cluster-a")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("bert_small, simulated on cluster-a, 12 ranks of GTX 1080 Ti\n")
    assert re.search(
        r"^\| AllReduce line +\| 52 us \+ 0\.933 GB/s +\|$", result.stdout, re.MULTILINE
    )
    assert "note: from the model alone" in result.stdout
    data = json.loads(run("bert_small", "--cluster", "cluster-a", "--json", "-").stdout)
    assert data["simulated"] is True
    assert len(data["caps"]) == 20


@pytest.mark.usefixtures("traces")
def test_json() -> None:
    result = run("rank0.json", "rank1.json.gz", "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert len(data["caps"]) == 20
    assert data["latency_us"] == pytest.approx(100, abs=3)
    chosen = [cap for cap in data["caps"] if cap["cap_mb"] == data["bucket_cap_mb"]]
    assert [cap["step_us"] for cap in chosen] == [data["predicted_us"]]
    fastest = min(cap["step_us"] for cap in data["caps"])
    assert data["bound_us"] <= fastest <= data["predicted_us"] <= 1.01 * fastest
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]


def test_a_single_message_size(tmp_path: Path) -> None:
    """A row for each latency that leaves time for the bytes; the message takes 104 us."""
    job = GpuJob(buckets=[[0], [1], [2]], elements=[1000] * 3, backward_us=[500, 100, 300])
    path, advice = tmp_path / "trace.json", tmp_path / "advice.json"
    path.write_text(json.dumps(job.trace(0)))
    result = run(str(path), "--json", str(advice))
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^\| +(\d+) us \+ [\d.]+ GB/s +\| ", result.stdout, re.MULTILINE)
    assert rows == ["10", "30", "100"]
    assert result.output.count("all messages have 4000 bytes") == 1
    assert re.search(r"^(best|whatever the latency): ", result.stdout, re.MULTILINE)
    data = json.loads(advice.read_text())
    assert [row["latency_us"] for row in data["by_latency"]] == [10, 30, 100]
    assert data["safest_cap_mb"] > 0
    stated = run(str(path), "--latency-us", "20")
    assert stated.exit_code == 0, stated.output
    assert "all messages have" not in stated.output


def test_the_present_buckets_are_named(tmp_path: Path) -> None:
    """The first gradient fills a bucket of up to 1 MiB, the others are small."""
    paths = [str(tmp_path / f"{rank}.json") for rank in (0, 1)]
    for rank, path in enumerate(paths):
        Path(path).write_text(json.dumps(replace(JOB, buckets=[[0], [1, 2]]).trace(rank)))
    result = run(*paths)
    assert re.search(
        r"^best: keep the job's own buckets \(bucket_cap_mb=0.01 to 1\), predicted 6.10 ms: no cap "
        r"is faster\nlevel within 1% of the fastest: bucket_cap_mb=0.01 to 1$",
        result.stdout,
        re.MULTILINE,
    )
    data = json.loads(run(*paths, "--json", "-").stdout)
    assert data["keep_present"] is True
    assert data["bucket_cap_mb"] in data["present_caps_mb"]


@pytest.mark.usefixtures("traces")
def test_equal_words_are_equal_numbers() -> None:
    data = json.loads(run("rank0.json", "rank1.json.gz", "--json", "-").stdout)
    compute_us = [rank["compute_us"] for rank in data["ranks"]]
    assert data["compute_us"] == pytest.approx(sum(compute_us) / 2)


@pytest.mark.usefixtures("traces")
def test_names_that_no_encoding_knows_are_printed_otherwise() -> None:
    strange = os.fsdecode(b"rank\xff.json")
    Path("rank0.json").rename(strange)
    result = run(strange, "rank1.json.gz")
    assert result.exit_code == 0, result.output
    assert r"| rank\udcff.json " in result.stdout


@pytest.mark.usefixtures("traces", "imported")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'TRACE...|MODEL'"),
        (["none.json"], "no file 'none.json'"),
        (["bert_small"], "no file 'bert_small'; a MODEL needs --cluster"),
        (["rank0.json", "--latency-us", "-1"], "-1.0 is not in the range 0<=x<=8"),
        (["rank0.json", "--latency-us", "nan"], "'nan' is no number"),
        (["rank0.json", "--latency-us", "inf"], "inf is not in the range"),
        (["rank0.json", "--latency-us", "1e300"], "1e+300 is not in the range"),
        (["bart", "--cluster", "cluster-a"], "no model 'bart' in the zoo"),
        (["bert_small", "--cluster", "mars"], "no cluster 'mars': presets are"),
        (["bert_small", "gpt2_small", "--cluster", "cluster-a"], "--cluster takes one MODEL"),
        (["bert_small", "--cluster", "cluster-a", "--latency-us", "1"], "and no --latency-us"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


@pytest.mark.usefixtures("traces")
def test_failures() -> None:
    Path("broken.json").write_text("{")
    result = run("broken.json")
    assert result.exit_code == 1
    assert "broken.json: the trace is truncated" in result.stderr
    result = run("rank0.json", "--json", "nowhere/advice.json")
    assert result.exit_code == 2
    assert "cannot write nowhere/advice.json" in result.stderr


def chain(num_layers: int) -> OpGraph:
    """A backward pass that hands out a gradient of 4 MB per op, and an update of each."""
    ops, edges = [], []
    for layer in range(num_layers):
        if layer:
            edges.append(Edge(producer=2 * layer - 2, consumer=2 * layer, bytes=4_000_000))
        ops.append(Op(name=f"backward{layer}", flops=4e9, bytes_written=4_000_000))
        edges.append(Edge(producer=2 * layer, consumer=2 * layer + 1, bytes=4_000_000))
        ops.append(
            Op(
                name=f"allreduce{layer}",
                kind=OpKind.ALLREDUCE,
                bytes_written=4_000_000,
                collective="allreduce",
                merge_class="avg",
            )
        )
    for layer in range(num_layers):
        edges.append(Edge(producer=2 * layer + 1, consumer=len(ops), bytes=4_000_000))
        ops.append(Op(name=f"update{layer}", bytes_read=8_000_000, is_output=True))
    return OpGraph.create(ops, edges)


@pytest.mark.parametrize("cluster_name", ["cluster-a", "1gbit-cpu"])
def test_a_model_alone_is_what_the_simulator_says(cluster_name: str) -> None:
    graph, cluster = chain(10), ClusterSpec.load(cluster_name)
    advice = advise_model(problem(graph), cluster)
    model = RooflineCostModel(cluster.device)
    for cap in advice.caps:
        group_of = list(range(graph.num_ops))
        for bucket in ddp_buckets(graph, ddp_caps_bytes(cap.cap_mb)):
            for op in bucket:
                group_of[op] = min(bucket)
        strategy = Strategy.create(graph, group_of, limits=UNCAPPED)
        strategy = in_emitted_order(graph, strategy, tuple(range(graph.num_ops)))
        simulated = simulate(graph, strategy, model, cluster).makespan_us
        assert cap.step_us == pytest.approx(simulated, rel=0.02)
    assert advice.replay.bound_us() <= min(cap.list_us for cap in advice.caps)


def test_a_model_without_gradients() -> None:
    graph = OpGraph.create([Op(name="add", is_output=True)])
    with pytest.raises(ValueError, match="model has no gradients"):
        replay_of(problem(graph), ClusterSpec.load("cluster-a"))
