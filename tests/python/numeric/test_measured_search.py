"""A search that measures the groups of its best strategies, on a small step of this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disco_fuse.cli.main import main
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.dataset import measure, measured_search
from disco_fuse.dataset.measured_search import MeasuredTuning, best_strategies, tune_measured
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.profile import ProfileDatabase, Sample
from disco_fuse.profile.machine import ModelProfile, profile_device, profile_model
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_step
from disco_fuse.tuning import Problem

CLUSTER = ClusterSpec.load("1gbit-cpu")
CONFIG = SearchConfig.preset("full", max_steps=300, num_threads=1)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile") / "profile.sqlite"


@pytest.fixture(scope="module")
def profiled(database: Path) -> ModelProfile:
    mod = lower(InsertAllReduce()(mlp_step()), host_target(), library=False)
    with ProfileDatabase(database) as opened:
        return profile_model(mod, host_target(), opened)


def tuned(profiled: ModelProfile, database: Path, **more: Any) -> MeasuredTuning:
    target = host_target()
    with ProfileDatabase(database) as opened:
        device, _ = profile_device(target, opened)
        emission = fuse_ops(profiled.mod, profiled.extraction)
        return tune_measured(
            Problem(name="mlp", graph=profiled.extraction.graph, emission=emission),
            profiled,
            target,
            opened,
            replace(CLUSTER, device=device),
            CONFIG,
            RooflineCostModel(device, profiled.op_times_us),
            3,
            **more,
        )


def test_the_winner_is_measured_and_nothing_is_measured_twice(
    profiled: ModelProfile, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_ROUND_S", 0.0)
    monkeypatch.setattr(measure, "_MOST_ROUNDS", 4)
    reports: list[tuple[int, int]] = []
    first = tuned(profiled, database, progress=lambda done, total, _: reports.append((done, total)))
    assert first.is_stable
    assert first.num_rounds >= 2
    assert first.num_new == len(reports) > 0
    assert all(1 <= done <= total for done, total in reports)
    data = first.to_json()
    assert data["measured_us"] == first.result.makespan_us
    assert data["groups"][0]["measured_us"] != data["groups"][0]["predicted_us"]
    differences = [abs(g["measured_us"] - g["predicted_us"]) for g in data["groups"]]
    assert differences == sorted(differences, reverse=True)
    again = tuned(profiled, database)
    assert (again.num_new, again.num_known) == (0, first.num_new)
    assert again.result.strategy == first.result.strategy


def test_measurements_decide(
    profiled: ModelProfile, database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dear = Sample(median_us=1e5, p10_us=1e5, p90_us=1e5, repeats=5)
    monkeypatch.setattr(measured_search, "_measure", lambda *_: dear)
    fresh = tmp_path / "profile.sqlite"
    fresh.write_bytes(database.read_bytes())
    with ProfileDatabase(fresh) as opened:
        opened._connection.execute("DELETE FROM sample WHERE signature LIKE 'group %'")
        opened._connection.commit()
    found = tuned(profiled, fresh)
    # Whatever was fused is dear, so the winner holds none of the groups that were measured.
    assert found.result.makespan_us < 1e5
    assert found.num_new > 0


def test_groups_that_cannot_be_built_keep_their_prediction(
    profiled: ModelProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("LLVM says no")

    monkeypatch.setattr(measured_search, "measure_kernels", broken)
    found = tuned(profiled, tmp_path / "empty.sqlite")
    assert found.is_stable
    assert (found.num_new, found.num_known) == (0, 0)
    assert found.num_failed > 0
    assert found.predicted_us == pytest.approx(found.result.makespan_us)


def test_the_best_strategies_are_different_and_sorted(
    profiled: ModelProfile, database: Path
) -> None:
    result = tuned(profiled, database).result
    best = best_strategies(result, 3)
    assert best[0] == result.strategy
    assert 2 <= len({strategy.hash for strategy in best}) == len(best) <= 3


@pytest.mark.slow  # a model is imported, its kernels and groups are built and measured
def test_tune_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the command imports torch models")
    monkeypatch.setattr(measure, "_ROUND_S", 0.0)
    monkeypatch.setattr(measure, "_MOST_ROUNDS", 4)
    monkeypatch.setattr("disco_fuse.profile.kernels._TIME_PER_KERNEL_S", 0.0)
    monkeypatch.setattr("disco_fuse.profile.kernels._MOST_TIME_S", 0.0)
    model = f"{Path(__file__).parents[1] / 'shared' / 'small_workload.py'}:workload"
    options = ["--cluster", "1gbit-cpu", "--measure-top", "1", "--max-steps", "100"]
    database = ["--database", str(tmp_path / "profile.sqlite"), "--json", "-"]
    output = ["-O", str(tmp_path / "tuned")]
    done = CliRunner().invoke(main, ["tune", model, *options, *database, *output])
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)["measured"]
    assert measured["new_groups"] > 0
    assert measured["measured_us"] > 0
    # A plan that is built from it has its graph and its predicted step.
    plan = tmp_path / "plan"
    strategy = ["--strategy", str(tmp_path / "tuned"), "--json", "-"]
    done = CliRunner().invoke(main, ["build", model, "-O", str(plan), *strategy])
    assert done.exit_code == 0, done.output
    predicted = json.loads(done.stdout)["predicted"]
    assert predicted["makespan_us"] == pytest.approx(measured["measured_us"], rel=1e-12)
    for folder in ("tuned", "plan"):
        done = CliRunner().invoke(main, ["show", str(tmp_path / folder)])
        assert done.exit_code == 0, done.output
        assert "its file says" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert_small", "--measure-top", "2"], "cluster-a has GTX 1080 Ti: take a cluster of"),
        (["--problem", "x.json", "--measure-top", "2"], "it needs MODEL, not --problem FILE"),
        (["bert_small", "--measure-top", "0"], "x>=1"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["tune", *arguments])
    assert done.exit_code == 2
    assert message in done.output
