"""What is said about a search: gain, share, FO, the bound, and the work that cannot overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import CLUSTER, DEVICE, late_gradient, op

from disco_fuse.bench.exposed import explain, exposed
from disco_fuse.bench.plan_runs import paper_run, sweep_runs, varied_runs
from disco_fuse.bench.quality import Quality, missed
from disco_fuse.bench.runs import Run, RunStore
from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.fuse_ops import Emission
from disco_fuse.graph import Edge, OpGraph, OpKind, OpPattern
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning import Problem, tune
from disco_fuse.tuning.tune import gain, share_closed

MODEL = RooflineCostModel(DEVICE)


def _layers(num_layers: int = 4) -> OpGraph:
    """Per layer a gradient of two ops, its AllReduce, and its update; layers follow each other."""
    ops, edges = [], []
    chain = -1
    for layer in range(num_layers):
        first = len(ops)
        ops += [
            op(f"a{layer}"),
            op(f"g{layer}", pattern=OpPattern.COMM_REDUCE),
            op(f"r{layer}", kind=OpKind.ALLREDUCE),
        ]
        pairs = [(first, first + 1), (first + 1, first + 2)]
        if chain >= 0:
            pairs.append((chain, first))
        edges += [Edge(producer=p, consumer=c, bytes=400) for p, c in pairs]
        chain = first
    for layer in range(num_layers):
        ops.append(op(f"u{layer}", is_output=True))
        edges.append(Edge(producer=3 * layer + 2, consumer=len(ops) - 1, bytes=400))
    return OpGraph.create(ops, edges)


def _problem(num_layers: int = 4) -> Problem:
    graph = _layers(num_layers)
    emission = Emission(groups=((0, 1),), order=tuple(range(graph.num_ops)))
    return Problem(name="layers", graph=graph, emission=emission)


def test_gain_and_share() -> None:
    assert gain(110.0, 100.0) == pytest.approx(0.1)
    assert share_closed(110.0, 101.0, 100.0) == pytest.approx(0.9)
    assert share_closed(110.0, 110.0, 100.0) == 0.0
    assert share_closed(100.0, 100.0, 100.0) == 1.0  # there was no distance


def test_tuning_is_never_worse_than_a_baseline_and_never_below_the_bound() -> None:
    result = tune(_problem(), CLUSTER, SearchConfig.preset("full", patience=200))
    best = min(baseline.makespan_us for baseline in result.baselines.values())
    assert result.best_baseline.makespan_us == best
    assert result.lower_bound_us <= result.makespan_us <= best
    assert result.makespan_us <= result.search.found_us
    timeline = result.timeline
    assert result.fo_us == max(timeline.compute_us, timeline.allreduce_us)
    data = result.to_json()
    assert data["simulated"] is True
    assert data["fo_us"] <= data["fo_strategy_us"]
    assert data["gain"] == pytest.approx(best / result.makespan_us - 1)
    limit = max(data["fo_us"], data["lower_bound_us"])
    assert data["gap"] == pytest.approx(result.makespan_us / limit - 1)


def test_a_baseline_in_its_own_order_may_win() -> None:
    # One step: nothing is found, and the list schedule of every baseline loses to this order.
    graph, order = late_gradient()
    problem = Problem(name="order", graph=graph, emission=Emission(groups=(), order=order))
    config = SearchConfig.preset("paper", max_steps=1)
    result = tune(problem, CLUSTER, config)
    assert result.makespan_us < result.search.makespan_us
    assert result.strategy == result.best_baseline.strategy
    cold = tune(problem, CLUSTER, config, warm_start=False)
    assert cold.strategy == cold.search.best


def _run(**changes: object) -> dict[str, object]:
    return {
        "name": "bert",
        "best_baseline": "ddp",
        "baselines": {"none": 200.0, "ddp": 120.0},
        "disco_fuse_us": 104.0,
        "lower_bound_us": 90.0,
        "least_compute_us": 95.0,
        "least_allreduce_us": 60.0,
        "exposed": {
            "head_us": 10_000.0,
            "waiting_us": 9_000.0,
            "longest_wait_us": 8_000.0,
            "bytes": 4_000_000,
            "ready_us": 50_000.0,
            "gradient": "wte",
        },
        **changes,
    }


def test_a_wasteful_strategy_does_not_move_its_own_goal() -> None:
    # Some other run has computed less: FO* is from there.
    quality = Quality.of(_run(), [_run(least_compute_us=80.0), _run(least_allreduce_us=85.0)])
    assert quality.fo_us == 80.0
    assert quality.limit_us == 90.0
    assert quality.gain == pytest.approx(120 / 104 - 1)
    assert quality.largest_gain == pytest.approx(120 / 90 - 1)
    assert quality.share == pytest.approx(16 / 30)
    assert quality.row()[-2:] == ("18.5", "53.3")
    assert Quality.of(_run(), []).fo_us == 95.0


def test_what_is_missed_is_explained() -> None:
    lines = missed(Quality.of(_run(), []), _run())
    assert len(lines) == 2
    assert lines[0].startswith("bert: share 64.0% of 90%: ")
    assert "8.0 of these it waits in one piece for 4.0 MB with wte, ready at 50.0 ms" in lines[0]
    assert "gain 15.4% of the paper's 18.5%" in lines[1]
    reached = _run(disco_fuse_us=96.0)
    assert missed(Quality.of(reached, []), reached) == []
    # where the bound does not allow the paper's gain, it is no goal
    hopeless = _run(lower_bound_us=103.9, least_compute_us=103.9)
    assert missed(Quality.of(hopeless, []), hopeless) == []


def test_exposed_work_is_read_off_the_timeline() -> None:
    ops = [op("g", kind=OpKind.LIBRARY), op("a", kind=OpKind.ALLREDUCE), op("u", is_output=True)]
    edges = [Edge(producer=p, consumer=p + 1, bytes=400) for p in (0, 1)]
    graph = OpGraph.create(ops, edges)
    strategy = schedule(graph, Strategy.unfused(graph), MODEL, CLUSTER)
    timeline = simulate(graph, strategy, MODEL, CLUSTER)
    # 12 us of compute, 9 us on the network, 12 us of update
    assert exposed(graph, strategy, timeline) == {
        "head_us": 12.0,
        "waiting_us": 9.0,
        "longest_wait_us": 9.0,
        "bytes": 400,
        "ready_us": 12.0,
        "gradient": "a",
    }


def test_exposed_work_at_the_end_and_without_messages() -> None:
    ops = [op("g", kind=OpKind.LIBRARY), op("a", kind=OpKind.ALLREDUCE)]
    graph = OpGraph.create(ops, [Edge(producer=0, consumer=1, bytes=400)])
    strategy = Strategy.unfused(graph)
    found = exposed(graph, strategy, simulate(graph, strategy, MODEL, CLUSTER))
    assert (found["waiting_us"], found["gradient"]) == (9.0, "a")
    graph = OpGraph.create([op("x")])
    strategy = Strategy.unfused(graph)
    found = exposed(graph, strategy, simulate(graph, strategy, MODEL, CLUSTER))
    assert found["waiting_us"] == 0
    assert explain(found, 12.0) == "nothing is sent"


def test_runs_are_remembered_by_what_they_depend_on(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    _problem().save(file)
    full = Run(
        label="full",
        problem_file=str(file),
        cluster=CLUSTER,
        config=SearchConfig.preset("full", max_steps=50),
    )
    store = RunStore(tmp_path)
    assert store.find(full) is None
    result = store.execute(full)
    assert result["peak_rss_mb"] > 50
    assert store.find(full) == result
    assert RunStore(tmp_path).execute(full) == result  # not made again: seconds would differ
    others = [*varied_runs(full), paper_run(str(file), CLUSTER, 0)]
    assert all(store.find(run) is None for run in others)
    _problem(5).save(file)
    assert store.find(full) is None


def test_sweeps_change_one_thing_at_a_time() -> None:
    paper = paper_run("problem.json", CLUSTER, seed=3)
    assert (paper.config, paper.warm_start) == (SearchConfig(seed=3), False)
    configs = {run.label: run.config for run in sweep_runs(paper)}
    assert configs["alpha=1.05"] == configs["beta=10"] == configs["all three"] == paper.config
    assert configs["beta=30"] == SearchConfig(seed=3, beta=30)
    assert configs["without fuse"].methods == ("fuse-duplicate", "merge-buckets")
