"""``disco-fuse whatif``: points, the point where communication takes over, output and errors."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from graphs import CLUSTER
from matplotlib.figure import Figure
from test_choice import problem

from disco_fuse.cli.main import main
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.graph import OpGraph
from disco_fuse.tuning import Problem
from disco_fuse.whatif import Outcome, points_of, run_points, takeovers
from disco_fuse.whatif.plot import set_ticks
from disco_fuse.whatif.takeover import crossing

CONFIG = SearchConfig.preset("full", max_steps=20)
TINY = ("--max-steps", "20", "--starts", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def file(tmp_path: Path) -> str:
    problem().save(tmp_path / "problem.json.gz")
    return str(tmp_path / "problem.json.gz")


def outcomes(*sizes: int, bandwidths: tuple[float, ...] = ()) -> list[Outcome]:
    cluster = ClusterSpec.preset("cluster-a")
    points = points_of(cluster, world_sizes=sizes, bandwidths_gbps=bandwidths)
    return list(run_points(points, lambda *_: problem(), CONFIG))


def test_every_combination_in_the_cluster_it_says() -> None:
    cluster = ClusterSpec.preset("cluster-a")
    devices = [ClusterSpec.preset("dgx-h100").device, cluster.device]
    points = points_of(
        cluster, world_sizes=[2, 4096], bandwidths_gbps=[0.5, 12.0], batches=[3], devices=devices
    )
    assert len(points) == 8
    for point in points:
        spec = point.cluster
        assert spec.world_size == point.world_size
        assert spec.links is not None
        assert spec.links.network.bandwidth_gbps == point.bandwidth_gbps
        assert spec.allreduce == spec.links.allreduce(point.world_size)
        assert spec.device.name == point.device
        assert point.batch == 3
    assert {point.device for point in points} == {device.name for device in devices}
    (same,) = points_of(cluster)
    assert same.cluster == cluster


@pytest.mark.parametrize("size", [0, 1, -1, 4097])
def test_world_sizes_out_of_range(size: int) -> None:
    with pytest.raises(ValueError, match=f"world size {size}; allowed: 2 to 4096"):
        points_of(ClusterSpec.preset("cluster-a"), world_sizes=[2, size])


def test_what_a_measured_curve_does_not_tell() -> None:
    with pytest.raises(ValueError, match="no links to derive one for 4 from"):
        points_of(CLUSTER, world_sizes=[2, 4])
    with pytest.raises(ValueError, match="tells it for another bandwidth"):
        points_of(CLUSTER, bandwidths_gbps=[1.0])


def test_a_problem_is_loaded_once_and_winners_are_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int | None, bool]] = []
    given: list[int] = []

    def load(batch: int | None, convolutions: bool) -> Problem:
        asked.append((batch, convolutions))
        small = problem()
        ops = [replace(op, flops=op.flops * (batch or 1)) for op in small.graph.ops]
        return replace(small, graph=OpGraph.create(ops, small.graph.edges))

    from disco_fuse.whatif import points as module

    def tune(*arguments: Any, starts: Any, **options: Any) -> Any:
        given.append(len(starts))
        return original(*arguments, starts=starts, **options)

    original = module.tune
    monkeypatch.setattr(module, "tune", tune)
    points = points_of(ClusterSpec.preset("cluster-a"), world_sizes=[2, 8, 64], batches=[1, 2])
    found = list(run_points(points, load, CONFIG))
    assert asked == [(1, True), (2, True)]
    assert given == [0, 1, 1, 0, 1, 1]
    for outcome in found:
        assert outcome.result.lower_bound_us <= outcome.result.makespan_us
        assert outcome.result.makespan_us <= outcome.result.best_baseline.makespan_us


def test_a_model_that_does_not_depend_on_its_batch() -> None:
    points = points_of(ClusterSpec.preset("cluster-a"), batches=[2, 8])
    with pytest.raises(ValueError, match="batches 2 and 8 make the same graph: the model does"):
        list(run_points(points, lambda *_: problem(), CONFIG))


def test_crossing() -> None:
    # 0.01 n is 1 at 100, which lies between 10 and 1000 in the middle of logarithms.
    assert crossing([10, 1000], [0.1, 10]) == pytest.approx(100)
    assert crossing([1, 2, 4], [4, 2, 0.5]) == pytest.approx(2 * 2**0.5)
    assert crossing([1, 2], [0.1, 0.9]) is None
    assert crossing([1, 2], [1.0, 3.0]) is None
    assert crossing([1, 2], [0.0, 3.0]) == 2
    assert crossing([1, 2], [3.0, 0.0]) == 1


def test_takeover_of_every_series() -> None:
    found = takeovers(outcomes(2, 4096, bandwidths=(1e-3, 10.0)))
    by_axis = [(one.axis, one.others) for one in found]
    assert by_axis == [
        ("world_size", {"bandwidth_gbps": 1e-3}),
        ("world_size", {"bandwidth_gbps": 10.0}),
        ("bandwidth_gbps", {"world_size": 2}),
        ("bandwidth_gbps", {"world_size": 4096}),
    ]
    slow = found[0]
    assert slow.communication_rules
    assert slow.at is not None
    assert 2 < slow.at < 4096
    assert slow.in_words() == (
        f"communication takes longer than compute from {math.ceil(slow.at)} ranks "
        "(0.001 GB/s between hosts)"
    )
    never = found[2]  # two ranks share a host of cluster-a, so that no network is in the way
    assert never.at is None
    assert never.in_words() == "compute takes longer at every bandwidth between hosts (2 ranks)"


def test_output(file: str, tmp_path: Path) -> None:
    picture = tmp_path / "whatif.png"
    result = run(
        "whatif", "--problem", file, "--world-size", "2,8,4096", *TINY, "--plot", str(picture)
    )
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1:] for line in result.stdout.splitlines() if line.startswith("| ")]
    assert [row[0].strip() for row in rows] == ["ranks", "2", "8", "4096"]
    names = [name.strip() for name in rows[0]]
    assert "exposed ms" in names
    assert "batch" not in names  # it is the model's own in every row
    assert result.stdout.startswith("fork, simulated on cluster-a, tuned anew in every row")
    assert re.search(r"communication takes longer than compute from \d+ ranks\n", result.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert result.stderr == ""


def test_json_needs_no_file(file: str) -> None:
    result = run("whatif", "--problem", file, "--bandwidth", "0.5,2", *TINY, "--json")
    data = json.loads(result.stdout)
    assert [point["bandwidth_gbps"] for point in data["points"]] == [0.5, 2.0]
    for point in data["points"]:
        assert point["step_us"] >= max(point["compute_us"], point["lower_bound_us"]) - 1e-6
        assert point["ratio"] == pytest.approx(point["allreduce_us"] / point["compute_us"])
    slow, fast = data["points"]
    assert slow["allreduce_us"] > fast["allreduce_us"]
    assert data["takeover"][0]["axis"] == "bandwidth_gbps"


def test_the_same_seed_and_threads_give_the_same(file: str) -> None:
    command = ["whatif", "--problem", file, "--world-size", "2,64", "--max-steps", "50", "--json"]
    texts = [run(*command, "--threads", str(n)).stdout for n in (1, 2)]
    timeless = [re.sub(r'"(search_s|seconds)": [^,\n]*', "", text) for text in texts]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "2,0"], "world size 0; allowed: 2 to 4096"),
        (["--world-size", "2,-4"], "world size -4; allowed: 2 to 4096"),
        (["--world-size", "2,5000"], "world size 5000; allowed: 2 to 4096"),
        (["--world-size", "2,2"], "a value is given twice in [2, 2]"),
        (["--world-size", "2,x"], "'2,x': whole numbers separated by commas are allowed"),
        (["--world-size", "2.5,8"], "whole numbers separated by commas are allowed"),
        (["--world-size", ""], "whole numbers separated by commas are allowed"),
        (["--world-size", "2"], "give at least two values to compare"),
        ([], "give at least two values to compare"),
        (["--bandwidth", "1,0"], "Link.bandwidth_gbps must be finite, >= 1e-06, got 0.0"),
        (["--bandwidth", "1,-1"], "Link.bandwidth_gbps must be finite, >= 1e-06"),
        (["--bandwidth", "1,nan"], "Link.bandwidth_gbps must be finite, >= 1e-06, got nan"),
        (["--bandwidth", "1,inf"], "Link.bandwidth_gbps must be finite, >= 1e-06, got inf"),
        (["--batch", "1,2"], "--batch needs MODEL"),
        (["--device", "cluster-a,mars"], "no cluster 'mars'"),
        (["--world-size", "2,4", "--cluster", "mars"], "no cluster 'mars'"),
        (["--world-size", "2,4", "--patience", "0"], "patience must be an integer from 1"),
        (["bert", "--world-size", "2,4"], "give either MODEL or --problem FILE"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, file: str) -> None:
    result = run("whatif", "--problem", file, *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_batches_out_of_range() -> None:
    result = run("whatif", "bert_small", "--batch", "1,0")
    assert result.exit_code == 2
    assert "batch 0; allowed: 1 to 1048576" in result.stderr
    assert run("whatif", "--world-size", "2,4").exit_code == 2
    assert run("whatif", "bart", "--world-size", "2,4").exit_code == 2


def test_a_batch_of_a_real_model() -> None:
    pytest.importorskip("torch", reason="imports a model")
    result = run("whatif", "gpt2_small", "--batch", "1,6", *TINY, "--json")
    assert result.exit_code == 0, result.output
    small, large = json.loads(result.stdout)["points"]
    assert (small["batch"], large["batch"]) == (1, 6)
    assert large["compute_us"] > small["compute_us"]
    assert large["allreduce_us"] == pytest.approx(small["allreduce_us"], rel=0.5)


@pytest.mark.parametrize("limits", [(3.06, 4.3), (1.02, 9.7), (0.3, 4e4)])
def test_an_axis_has_numbers(limits: tuple[float, float]) -> None:
    axes = Figure().subplots()
    axes.loglog([1, 2], limits)
    axes.set_ylim(*limits)
    axes.minorticks_off()
    set_ticks(axes)
    shown = [tick for tick in axes.get_yticks() if limits[0] <= tick <= limits[1]]
    assert 2 <= len(shown) <= 20


def test_a_plot_of_devices_alone(file: str, tmp_path: Path) -> None:
    arguments = ["--device", "cluster-a,dgx-h100", *TINY, "--plot", str(tmp_path / "x.png")]
    result = run("whatif", "--problem", file, *arguments)
    assert result.exit_code == 1
    assert "a plot needs two world sizes, bandwidths or batches" in result.stderr
