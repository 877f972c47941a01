"""Chosen strategies on disk: what is written can be read, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import CLUSTER, fork, late_gradient

from disco_fuse.cli.compare import _at_prices_of
from disco_fuse.cluster import ClusterSpec, preset_names
from disco_fuse.cost_model import Group, RooflineCostModel
from disco_fuse.explain.source import open_choice, plan_facts
from disco_fuse.fuse_ops import Emission
from disco_fuse.plan import Plan, save_plan
from disco_fuse.strategy import Edit, Strategy, replay
from disco_fuse.tuning import Problem
from disco_fuse.tuning.choice import Choice, cluster_of, load_choice


def problem() -> Problem:
    emission = Emission(groups=((0, 1),), order=(0, 1, 2, 3, 4))
    return Problem(name="fork", graph=fork(), emission=emission)


def choice(cluster: ClusterSpec = CLUSTER, times: tuple[float, ...] | None = None) -> Choice:
    graph = fork()
    strategy = replay(graph, [Edit(kind="fuse", producer=0, consumer=2)])
    return Choice(
        problem=problem(),
        strategy=strategy,
        cluster=cluster,
        simulated_us=12.5,
        op_times_us=times,
    )


def changed(folder: Path, **entries: Any) -> Path:
    choice().save(folder, {})
    path = folder / "strategy.json"
    data = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "missing"}))
    return path


@pytest.mark.parametrize("name", preset_names())
def test_what_is_written_can_be_read(name: str, tmp_path: Path) -> None:
    written = choice(ClusterSpec.preset(name), times=(1.0, 2.0, 3.0, 0.0, 5.0))
    written.save(tmp_path, {"seed": 3})
    assert load_choice(tmp_path / "strategy.json") == written
    assert json.loads((tmp_path / "strategy.json").read_text())["seed"] == 3


def test_measured_kernels_keep_their_price(tmp_path: Path) -> None:
    times = (1.0, 2.0, 3.0, 0.0, 5.0)
    own, other = Group(ops=(0, 2), outputs=(0, 2)), Group(ops=(1,), outputs=(1,))
    written = replace(choice(times=times), kernels_us=((own, 77.5),), generated=("dot",))
    written.save(tmp_path, {})
    loaded = load_choice(tmp_path / "strategy.json")
    assert loaded == written
    graph = loaded.problem.graph
    roofline = RooflineCostModel(CLUSTER.device, np.array(times))
    assert loaded.cost_model.predict(graph, [own])[0] == 77.5
    assert roofline.predict(graph, [own])[0] != 77.5
    assert loaded.cost_model.predict(graph, [other]) == roofline.predict(graph, [other])


def test_two_strategies_are_compared_at_the_prices_of_the_first() -> None:
    group = Group(ops=(0, 2), outputs=(0, 2))
    simulated = choice()
    measured = replace(choice(times=(1.0, 2.0, 3.0, 0.0, 5.0)), kernels_us=((group, 77.5),))
    assert _at_prices_of(simulated, measured) == simulated
    assert _at_prices_of(measured, simulated) == measured
    slower = replace(measured, kernels_us=((Group(ops=(0, 1), outputs=(1,)), 5.0),))
    assert _at_prices_of(measured, slower).kernels_us == measured.kernels_us + slower.kernels_us


def test_a_folder_a_file_and_a_problem_elsewhere(tmp_path: Path) -> None:
    choice().save(tmp_path / "here", {})
    assert open_choice(tmp_path / "here") == choice()
    (tmp_path / "here" / "problem.json.gz").rename(tmp_path / "graph.json.gz")
    with pytest.raises(ValueError, match=r"says nothing of the graph.*extract MODEL -o"):
        open_choice(tmp_path / "here")
    file = tmp_path / "here" / "strategy.json"
    assert open_choice(file, problem_file=tmp_path / "graph.json.gz") == choice()


def test_another_cluster_changes_the_prices(tmp_path: Path) -> None:
    choice().save(tmp_path, {})
    other = ClusterSpec.preset("dgx-h100")
    loaded = open_choice(tmp_path, cluster=other)
    assert loaded.cluster == other
    assert loaded.cost_model.device == other.device


def test_another_graph_is_refused(tmp_path: Path) -> None:
    path = changed(tmp_path)
    graph, order = late_gradient()
    emission = Emission(groups=(), order=order)
    Problem(name="late", graph=graph, emission=emission).save(tmp_path / "problem.json.gz")
    with pytest.raises(ValueError, match=r"is for another graph than the problem 'late'"):
        load_choice(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"strategy": "missing"}, "'strategy' is missing"),
        ({"cluster_spec": "missing"}, "'cluster_spec' is missing"),
        ({"cluster_spec": []}, "cluster_spec must be a cluster"),
        ({"simulated_us": None}, "float"),
        ({"op_times_us": [1.0]}, "1 times for 5 ops"),
        ({"op_times_us": ["x"]}, "could not convert"),
        ({"kernels_us": [[[0, 9], [9], 1.0]]}, "kernels_us: "),
        ({"kernels_us": [[[0, 2], [2], -1.0]]}, "kernels_us has the time -1.0; allowed: above 0"),
        ({"kernels_us": [[0, 2]]}, "not enough values to unpack"),
        ({"generated": 5}, "not iterable"),
        ({"strategy": {"group_of": [0, 0, 0, 0, 0]}}, "not the JSON of a Strategy"),
        ({"strategy": [1]}, "not the JSON of a Strategy"),
        ({"graph_digest": 7}, "is for another graph"),
    ],
)
def test_wrong_files(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = changed(tmp_path, **entries)
    with pytest.raises(ValueError, match=message) as caught:
        load_choice(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_files_that_are_no_json_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"strategy\.json"):
        load_choice(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not there"):
        open_choice(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds neither strategy\.json nor plan\.json"):
        open_choice(tmp_path)


def test_a_cluster_with_a_wrong_field() -> None:
    data = json.loads(json.dumps(asdict(CLUSTER))) | {"colour": 1}
    with pytest.raises(ValueError, match=r"cluster_spec: unknown field 'colour'"):
        cluster_of(data)


def test_a_plan_alone_has_facts_only(tmp_path: Path) -> None:
    strategy = json.loads(Strategy.unfused(fork()).to_json())
    plan = Plan(
        name="ddp",
        model="fork",
        target="llvm",
        world_size=2,
        cost_model={},
        graph_digest=fork().digest,
        strategy=strategy | {"group_of": [0, 0, 2, 3, 4]},
        num_inputs=1,
        tensors=(),
        needs_blas=False,
        num_kernels=4,
        num_allreduces=1,
        predicted={"makespan_us": 3.0},
        step_sha256="",
    )
    save_plan(tmp_path, plan)
    facts = plan_facts(tmp_path)
    assert facts is not None
    assert facts.group_sizes == (2, 1, 1, 1)
    assert plan_facts(tmp_path / "plan.json") == facts
    with pytest.raises(ValueError, match=r"says neither which ops it fuses"):
        open_choice(tmp_path)
    data = json.loads((tmp_path / "plan.json").read_text())
    for change, message in (
        ({"schema_version": 99}, "has schema version 99; this release reads 2"),
        ({"world_size": -3}, "was changed after it was written, in world_size"),
        ({"predicted": {"makespan_us": float("nan")}}, "was changed .* in predicted"),
    ):
        (tmp_path / "plan.json").write_text(json.dumps(data | change))
        with pytest.raises(ValueError, match=message):
            plan_facts(tmp_path)
    assert plan_facts(tmp_path / "elsewhere" / "strategy.json") is None
