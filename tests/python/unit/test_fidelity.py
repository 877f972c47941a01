"""Simulated against measured steps: errors, order, and where both differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from graphs import CLUSTER, DEVICE, fork

from disco_fuse.cli.main import main
from disco_fuse.compare.differences import differences
from disco_fuse.compare.fidelity import Fidelity, choose_strategies, judge
from disco_fuse.compare.report import Breakdown, StrategyResult, UnitTimes
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy

NUM_ROUNDS = 20


def result(name: str, simulated_us: float, steps_us: list[float]) -> StrategyResult:
    return StrategyResult(
        name=name,
        kernels=1,
        allreduces=1,
        makespan_us=simulated_us,
        step_times_us=tuple(steps_us),
        overlap=0.0,
        losses=(0.0,),
    )


def noisy(level: float) -> list[float]:
    """Steps around ``level`` with the same noise for every strategy, as rounds in turn have."""
    return [level + 10 * (i % 3) for i in range(NUM_ROUNDS)]


def test_errors_are_relative_to_the_measured_step() -> None:
    verdict = judge([result("a", 90.0, [100.0] * 9), result("b", 260.0, [200.0] * 9)])
    assert [row["error"] for row in verdict["strategies"]] == pytest.approx([-0.1, 0.3])
    assert verdict["mean_error"] == pytest.approx(0.2)
    assert verdict["max_error"] == pytest.approx(0.3)
    assert verdict["strategies"][0] == pytest.approx(
        {"name": "a", "simulated_ms": 0.09, "step_ms": 0.1, "p10": 0.1, "p90": 0.1, "error": -0.1}
    )
    assert verdict["num_near_best"] == 1


def test_tau_counts_pairs_in_the_same_and_in_the_other_order() -> None:
    results = [result("a", 1.0, noisy(100)), result("b", 3.0, noisy(101))]
    # One microsecond apart among noise of twenty, but in every round: that order is certain.
    assert judge(results)["kendall_tau"] == 1.0
    results.append(result("c", 2.0, noisy(102)))
    verdict = judge(results)
    assert verdict["kendall_tau"] == pytest.approx(1 / 3)
    assert (verdict["num_pairs"], verdict["num_pairs_left_out"]) == (3, 0)
    same = [replace(item, makespan_us=5.0) for item in results]
    assert judge(same)["kendall_tau"] == 0.0


def test_pairs_closer_than_the_noise_are_left_out_and_counted() -> None:
    back_and_forth = [100.0 + (-1) ** i for i in range(NUM_ROUNDS)]
    close = [result("a", 1.0, [100.0] * NUM_ROUNDS), result("b", 9.0, back_and_forth)]
    verdict = judge(close)
    assert verdict["kendall_tau"] is None
    assert (verdict["num_pairs"], verdict["num_pairs_left_out"]) == (0, 1)
    verdict = judge([*close, result("c", 20.0, [200.0] * NUM_ROUNDS)])
    assert (verdict["num_pairs"], verdict["num_pairs_left_out"]) == (2, 1)
    assert verdict["kendall_tau"] == 1.0


def prepared() -> Any:
    """What the choice of strategies reads of a preparation."""
    extraction = SimpleNamespace(graph=fork())
    return SimpleNamespace(
        extraction=extraction, cost_model=RooflineCostModel(DEVICE), cluster=CLUSTER
    )


def test_strategies_are_different_and_the_best_comes_first() -> None:
    what = prepared()
    unfused = Strategy.unfused(fork())
    known = {
        "none": unfused,
        "same": unfused,
        "disco_fuse": Strategy.create(fork(), [0, 0, 2, 3, 4]),
    }
    chosen = choose_strategies(what, known, 5, seed=0)
    assert list(chosen)[:2] == ["disco_fuse", "none"]
    assert len({strategy.to_json() for strategy in chosen.values()}) == len(chosen)
    assert any(name.startswith("random") or name.startswith("near") for name in chosen)
    again = choose_strategies(what, known, 5, seed=0)
    assert {n: s.to_json() for n, s in chosen.items()} == {n: s.to_json() for n, s in again.items()}
    assert list(choose_strategies(what, known, 1, seed=0)) == ["disco_fuse"]


def test_differences_are_named_part_by_part_and_unit_by_unit() -> None:
    graph = fork()
    strategy = Strategy.create(graph, [0, 0, 2, 3, 4])
    timeline = simulate(graph, strategy, RooflineCostModel(DEVICE), CLUSTER)
    compute = [e for e in timeline.events if e.stream == "compute"]
    simulated = [(e.finish_ns - e.start_ns) / 1e3 for e in compute]
    message = next(e for e in timeline.events if e.stream == "communication")
    message_us = (message.finish_ns - message.start_ns) / 1e3
    measured = replace(
        result("mine", timeline.makespan_us, [1.0]),
        unit_times=UnitTimes(
            kernels_us=[us + 100 * (i == 0) for i, us in enumerate(simulated)],
            messages_us=[message_us + 50],
            waits_us=[0.0],
        ),
        breakdown=Breakdown(kernels_us=0.0, exposed_us=7.0, overhead_us=3.0, copied_bytes=0),
    )
    found = differences(graph, strategy, timeline, measured, num_largest=2)
    parts = {item.what: (item.simulated_us, item.measured_us) for item in found}
    first = next(u for u in strategy.units(graph) if u.id == compute[0].unit)
    name = "+".join(graph.ops[op].name for op in first.ops)
    assert parts[name] == pytest.approx((simulated[0], simulated[0] + 100))
    assert [item.what for item in found[-2:]] == [
        name,
        f"AllReduce {graph.ops[message.unit].name}",
    ]
    assert parts["overhead"] == (0.0, 3.0)
    busy_us = sum(simulated)
    assert parts["waiting for AllReduces"] == pytest.approx((timeline.makespan_us - busy_us, 7.0))
    kernels = [parts[kind] for kind in ("fusion groups", "ops alone") if kind in parts]
    assert sum(us for us, _ in kernels) == pytest.approx(busy_us)
    assert sum(us for _, us in kernels) == pytest.approx(busy_us + 100)


def test_a_step_of_other_kernels_is_refused() -> None:
    graph = fork()
    strategy = Strategy.unfused(graph)
    timeline = simulate(graph, strategy, RooflineCostModel(DEVICE), CLUSTER)
    other = replace(
        result("mine", 1.0, [1.0]),
        unit_times=UnitTimes(kernels_us=[1.0], messages_us=[], waits_us=[]),
        breakdown=Breakdown(kernels_us=0.0, exposed_us=0.0, overhead_us=0.0, copied_bytes=0),
    )
    with pytest.raises(ValueError, match=r"mine has 4 kernels and 1 buckets, but its step ran 1"):
        differences(graph, strategy, timeline, other)
    with pytest.raises(ValueError, match="no kernels of mine were recorded"):
        differences(graph, strategy, timeline, replace(other, unit_times=None))


# The command.


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["fidelity", *arguments])


def test_the_command_prints_what_was_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Fidelity] = []

    def measured(self: Fidelity, say: Any) -> dict[str, Any]:
        asked.append(self)
        say("import")
        verdict = judge([result("slow", 90.0, [120.0] * 9), result("fast", 100.0, [100.0] * 9)])
        part = {"what": "overhead", "simulated_us": 0.0, "measured_us": 30.0}
        about = {"model": self.model, "link": self.link, "cost_model": "roofline: asked for"}
        return {**about, **verdict, "differences": {"slow": [part]}}

    monkeypatch.setattr(Fidelity, "run", measured)
    file = tmp_path / "fidelity.json"
    done = run("bert_small", "--strategies", "3", "--json", str(file), "--cache", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert asked[0].reference == "disco_fuse.zoo.bert:bert_small"
    assert (asked[0].num_strategies, asked[0].num_ranks, asked[0].cost_model.name) == (
        3,
        2,
        "roofline",
    )
    lines = done.stdout.splitlines()
    assert lines[0].endswith("cost model roofline: asked for")
    assert [line.split()[1] for line in lines if line.startswith(("| fast", "| slow"))] == [
        "fast",
        "slow",
    ]
    assert "| Kendall's tau " in done.stdout
    assert "slow, where it differs:" in done.stdout
    data = json.loads(file.read_text())
    assert {"mean_error", "max_error", "kendall_tau", "strategies"} <= data.keys()
    done = run("bert_small", "--json", "-", "--cache", str(tmp_path))
    assert json.loads(done.stdout)["kendall_tau"] == data["kendall_tau"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "or for measuring bert_mini, resnet18_cifar, byte_gpt"),
        (["bert_small", "--strategies", "1"], "x>=2"),
        (["bert_small", "--link", "fast"], "the rate of a link is 'fast'"),
        (["bert_small", "-n", "0"], "'--ranks': 0 is not in the range"),
        (["bert_small", "--cost-model", "oracle"], "'roofline', 'xgboost', 'gnn', 'auto'"),
        (["bert_small", "--cost-models", "/nowhere"], "does not exist"),
    ],
)
def test_wrong_arguments_of_fidelity(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_ranks_that_fail_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failed(*_: Any) -> dict[str, Any]:
        raise RuntimeError("the ranks ended with exit status 3")

    monkeypatch.setattr(Fidelity, "run", failed)
    done = run("bert_small", "--cache", str(tmp_path))
    assert done.exit_code == 1
    assert "bert_small: RuntimeError: the ranks ended with exit status 3" in done.output
