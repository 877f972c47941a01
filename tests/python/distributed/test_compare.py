"""The whole line on a tiny model: plans of three strategies and PyTorch DDP train alike."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_workload import workload

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.baselines import baseline
from disco_fuse.compare import check_losses, compare
from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.launch import run
from disco_fuse.lower import lower
from disco_fuse.plan import load_plan, save_plan, write_plan
from disco_fuse.search import search
from disco_fuse.simulate import schedule
from disco_fuse.target import host_target

HERE = Path(__file__).parent
REFERENCE = f"{HERE.parent}/shared/small_workload.py:workload"
CLUSTER = ClusterSpec(
    name="test",
    world_size=2,
    device=DeviceSpec(
        name="test", peak_gflops=50.0, bandwidth_gbps=20.0, launch_us=1.0, nest_us=0.1
    ),
    allreduce=AllReduceModel.linear(latency_us=30.0, us_per_byte=0.001),
)


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    load = workload()
    example = [torch.from_numpy(part) for part in load.example_batch()]
    return training_step(load.model, example, loss=load.loss, optimizer=load.optimizer)


@pytest.fixture(scope="module")
def plans(step: TrainingStep, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    target = host_target()
    mod = lower(InsertAllReduce()(step.mod), target, library=library_available())
    extraction = extract(mod)
    model = RooflineCostModel(CLUSTER.device)
    strategies = {name: baseline(name, mod, extraction) for name in ("none", "ddp")}
    config = SearchConfig(max_steps=2000)
    strategies["disco_fuse"] = search(extraction.graph, model, CLUSTER, config).best
    folders = {}
    for name, strategy in strategies.items():
        folders[name] = tmp_path_factory.mktemp(name)
        write_plan(
            folders[name],
            name=name,
            model="tiny",
            mod=mod,
            extraction=extraction,
            strategy=schedule(extraction.graph, strategy, model, CLUSTER),
            target=target,
            world_size=2,
            cost_model={"name": model.name, "digest": model.digest},
            predicted={"makespan_us": 1.0},
            names=(*step.input_names, *step.names),
        )
    return folders


def test_all_strategies_train_like_ddp_on_two_ranks(
    plans: dict[str, Path], step: TrainingStep
) -> None:
    comparison = compare(REFERENCE, plans, step.values, num_ranks=2, num_steps=6, num_warmup=1)
    assert [r.name for r in comparison.results] == ["none", "ddp", "disco_fuse", "pytorch_ddp"]
    assert check_losses(comparison.results, tolerance=1e-5) == []
    losses = np.array([r.losses for r in comparison.results])
    assert losses.shape == (4, 7)
    np.testing.assert_allclose(losses, np.broadcast_to(losses[-1], losses.shape), rtol=1e-5)
    assert losses[0, -1] < losses[0, 0]
    by_name = {r.name: r for r in comparison.results}
    assert by_name["disco_fuse"].kernels < by_name["none"].kernels
    assert by_name["none"].allreduces == len(step.gradient_names)
    assert all(len(r.step_times_us) == 6 for r in comparison.results)
    for name in plans:
        assert len(comparison.timelines[name]) == 2
        assert 0.0 <= by_name[name].overlap <= 1.0


def test_one_rank_runs_without_mpirun(plans: dict[str, Path], step: TrainingStep) -> None:
    comparison = compare(REFERENCE, plans, step.values, num_ranks=1, num_steps=3, num_warmup=0)
    assert check_losses(comparison.results, tolerance=1e-5) == []


@pytest.mark.parametrize("num_ranks", [0, -1, (os.cpu_count() or 1) + 1])
def test_impossible_numbers_of_ranks_are_refused(
    num_ranks: int, plans: dict[str, Path], step: TrainingStep
) -> None:
    with pytest.raises(ValueError, match=rf"num_ranks is {num_ranks}; allowed: 1 to"):
        compare(REFERENCE, plans, step.values, num_ranks=num_ranks, num_steps=1)


def test_steps_must_be_positive(plans: dict[str, Path], step: TrainingStep) -> None:
    with pytest.raises(ValueError, match="num_steps is 0"):
        compare(REFERENCE, plans, step.values, num_ranks=1, num_steps=0)


def test_ranks_with_different_plans_all_stop(
    plans: dict[str, Path], step: TrainingStep, tmp_path: Path
) -> None:
    """Each rank opens the folder plan-<rank>; rank 1's differs in one field."""
    for rank in (0, 1):
        folder = tmp_path / f"plan-{rank}"
        shutil.copytree(plans["ddp"], folder)
        save_plan(folder, replace(load_plan(folder), world_size=2 + rank))
    np.savez(tmp_path / "values.npz", **dict(step.values))
    program = [str(HERE / "load_plan.py"), str(tmp_path)]
    finished = run(program, 2, timeout_s=60, capture=True)
    assert finished.returncode != 0
    assert "the ranks disagree on plan 'ddp': rank 0:" in finished.stderr
    assert "rank 0 of 2 failed" in finished.stderr
    assert "rank 1 of 2 failed" in finished.stderr


@pytest.mark.parametrize("how", ["killed", "raising"])
def test_a_rank_that_dies_ends_the_run(
    how: str,
    plans: dict[str, Path],
    step: TrainingStep,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent / "shared"))
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="the ranks ended with exit status"):
        compare(
            f"{HERE.parent}/shared/dying_workload.py:{how}",
            plans,
            step.values,
            num_ranks=2,
            num_steps=1000,
            ddp={},
        )
    # Start-up included; without an end the 1000 steps would go on, and a hang would time out.
    assert time.monotonic() - begin < 60.0
    printed = capfd.readouterr()
    message = "the disk with the data is gone" if how == "raising" else "signal 9"
    assert message in printed.err + printed.out


def test_losses_that_differ_are_found(plans: dict[str, Path], step: TrainingStep) -> None:
    """A strategy that starts from other weights must not pass."""
    wrong = {name: value * 1.5 for name, value in step.values.items()}
    comparison = compare(REFERENCE, plans, wrong, num_ranks=1, num_steps=2)
    assert len(check_losses(comparison.results)) == len(plans)
    same = [replace(r, name="pytorch_ddp") for r in comparison.results[:1]]
    assert check_losses(same) == []
