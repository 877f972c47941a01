"""What two ranks compute together, against PyTorch DDP and against one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import tvm
from data_parallel_workloads import (
    batches,
    clipped_adamw,
    dropout,
    normalised,
    overflowing,
    padded,
    padded_batches,
)
from tvm import relax

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.baselines import baseline
from disco_fuse.compare import compare
from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.launch import run
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.search import search
from disco_fuse.simulate import schedule
from disco_fuse.target import host_target
from disco_fuse.workload import Workload

HERE = Path(__file__).parent
WORKLOADS = HERE.parent / "shared" / "data_parallel_workloads.py"
CLUSTER = ClusterSpec(
    name="test",
    world_size=2,
    device=DeviceSpec(
        name="test", peak_gflops=50.0, bandwidth_gbps=20.0, launch_us=1.0, nest_us=0.1
    ),
    allreduce=AllReduceModel.linear(latency_us=30.0, us_per_byte=0.001),
)


def step_of(workload: Workload) -> TrainingStep:
    example = [torch.from_numpy(part) for part in workload.example_batch()]
    return training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)


def write_plans(step: TrainingStep, folder: Path, *names: str) -> dict[str, Path]:
    """Plans without fusion ("none") and of a search ("disco_fuse")."""
    target = host_target()
    mod = lower(InsertAllReduce()(step.mod), target, library=library_available())
    extraction = extract(mod)
    model = RooflineCostModel(CLUSTER.device)
    found = search(extraction.graph, model, CLUSTER, SearchConfig(max_steps=300)).best
    strategies = {"none": baseline("none", mod, extraction), "disco_fuse": found}
    for name in names:
        strategy = strategies[name]
        write_plan(
            folder / name,
            name=name,
            model="test",
            mod=mod,
            extraction=extraction,
            strategy=schedule(extraction.graph, strategy, model, CLUSTER),
            target=target,
            world_size=2,
            cost_model={"name": model.name, "digest": model.digest},
            predicted={"makespan_us": 1.0},
            names=(*step.input_names, *step.names),
        )
    return {name: folder / name for name in names}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_clipped_adamw_as_ddp(num_ranks: int, tmp_path: Path) -> None:
    """The norm is that of the averaged gradients: clipping each rank's own would differ."""
    step = step_of(clipped_adamw())
    plans = write_plans(step, tmp_path, "none", "disco_fuse")
    comparison = compare(
        f"{WORKLOADS}:clipped_adamw", plans, step.values, num_ranks=num_ranks, num_steps=12,
        num_warmup=0,
    )  # fmt: skip
    losses = np.array([r.losses for r in comparison.results])
    assert [r.name for r in comparison.results] == ["none", "disco_fuse", "pytorch_ddp"]
    np.testing.assert_allclose(losses, np.broadcast_to(losses[-1], losses.shape), rtol=2e-5)


def one_process(step: TrainingStep, num_ranks: int, num_steps: int) -> list[float]:
    """Mean losses of ranks that run after one another in this process, with plain SGD.

    Its update is linear in the gradient: the mean of the ranks' new weights is the new weight for
    the mean gradient.
    """
    legal = relax.transform.LegalizeOps()(step.mod)
    main = relax.VirtualMachine(tvm.compile(legal, target="llvm"), tvm.cpu())["main"]
    streams = [batches(rank, num_ranks) for rank in range(num_ranks)]
    values, losses = dict(step.values), []
    for _ in range(num_steps):
        results = []
        for rank, stream in enumerate(streams):
            own = values | {"rank": np.array(rank, "uint32")}
            arguments = [*next(stream), *(own[name] for name in step.names)]
            outputs = main(*(tvm.runtime.tensor(np.asarray(a)) for a in arguments))
            results.append(dict(zip(step.output_names, (o.numpy() for o in outputs), strict=True)))
        losses.append(float(np.mean([result["loss"] for result in results])))
        new = {name: np.mean([r[name] for r in results], 0) for name in step.output_names[1:]}
        values |= {name: value.astype(values[name].dtype) for name, value in new.items()}
    return losses


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_rank_and_step_drops_something_else(num_ranks: int, tmp_path: Path) -> None:
    """Fused or not, ranks draw what the definition says for their rank and step."""
    step = step_of(dropout())
    plans = write_plans(step, tmp_path, "none", "disco_fuse")
    comparison = compare(
        f"{WORKLOADS}:dropout", plans, step.values, num_ranks=num_ranks, num_steps=8,
        num_warmup=0, ddp={},
    )  # fmt: skip
    expected = one_process(step, num_ranks, 8)
    for result in comparison.results:
        np.testing.assert_allclose(result.losses, expected, rtol=2e-5)


def test_state_is_set_between_steps(tmp_path: Path) -> None:
    workload = clipped_adamw()
    step = step_of(workload)
    runner = StepRunner(write_plans(step, tmp_path, "none")["none"], loopback(), step.values)
    batch = workload.example_batch()
    runner.step(batch)
    before = runner.values()
    runner.set_learning_rate(0)
    runner.step(batch)
    after = runner.values()
    assert after["optimizer.step"] == 2.0
    for name in step.parameter_names:
        np.testing.assert_array_equal(before[name], after[name])
        assert not np.array_equal(before[name], step.values[name])
    with pytest.raises(ValueError, match=r"no state 'lr'; there are .*'optimizer.learning_rate'"):
        runner.set_value("lr", 0.1)
    with pytest.raises(ValueError, match=r"is float64\[\], not float64\[1\]"):
        runner.set_value("optimizer.learning_rate", [0.1])
    with pytest.raises(ValueError, match=r"is float64\[\], not complex128\[\]"):
        runner.set_value("optimizer.learning_rate", 1j)


def train_two_ranks(
    name: str, step: TrainingStep, folder: Path, num_steps: int
) -> list[dict[str, np.ndarray]]:
    """Losses and final state of both ranks, under the plan of a search."""
    plans = write_plans(step, folder, "disco_fuse")
    np.savez(folder / "values.npz", **dict(step.values))
    program = [str(HERE / "train_ranks.py"), str(folder), str(plans["disco_fuse"])]
    finished = run([*program, f"{WORKLOADS}:{name}", str(num_steps)], 2, timeout_s=60, capture=True)
    assert finished.returncode == 0, finished.stderr
    return [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(2)]


def assert_same_state(ranks: list[dict[str, np.ndarray]], *but: str) -> None:
    for name in ranks[0]:
        if name not in ("losses", "rank", *but):
            np.testing.assert_array_equal(ranks[0][name], ranks[1][name], err_msg=name)


def test_one_ranks_overflow_skips_the_step_of_all(tmp_path: Path) -> None:
    step = step_of(overflowing())
    ranks = train_two_ranks("overflowing", step, tmp_path, 7)
    assert_same_state(ranks)
    assert np.isfinite(ranks[0]["losses"]).all()
    assert np.isnan(ranks[1]["losses"][2])
    # Two steps went well, one did not (16 -> 8), then three did (8 -> 16), then one more.
    assert ranks[0]["optimizer.loss_scale"] == 16.0
    assert ranks[0]["optimizer.good_steps"] == 1.0
    # The same training without the spoiled step, in one process on the joined batches.
    model = overflowing().model
    theirs = to_torch_optimizer(SGD(lr=0.05, momentum=0.9), model.parameters())
    for number, batch in zip(range(7), joined(batches), strict=False):
        if number != 2:
            theirs.zero_grad()
            F.mse_loss(model(batch[0]), batch[1]).backward()
            theirs.step()
    assert_weights(ranks[0], model)


def joined(stream: Any) -> Iterator[list[torch.Tensor]]:
    """Both ranks' batches, joined along axis 0."""
    for parts in zip(stream(0, 2), stream(1, 2), strict=True):
        yield [torch.from_numpy(np.concatenate(pair)) for pair in zip(*parts, strict=True)]


def assert_weights(actual: dict[str, np.ndarray], model: torch.nn.Module) -> None:
    for name, value in model.named_parameters():
        expected = value.detach().numpy()
        np.testing.assert_allclose(actual[name], expected, rtol=1e-4, atol=2e-6, err_msg=name)


def test_batches_of_unequal_size_as_the_joined_batch(tmp_path: Path) -> None:
    """6 and 2 real samples: an unweighted mean of the ranks' gradients would be wrong."""
    workload = padded()
    example = [torch.from_numpy(part) for part in workload.example_batch()[:3]]
    step = training_step(workload.model, example, optimizer=workload.optimizer, weighted=True)
    ranks = train_two_ranks("padded", step, tmp_path, 6)
    assert_same_state(ranks)
    model = padded().model
    theirs = to_torch_optimizer(workload.optimizer, model.parameters())
    for _, (x, y, real, _count) in zip(range(6), joined(padded_batches), strict=False):
        theirs.zero_grad()
        model(x[real > 0], y[real > 0], real[real > 0]).backward()
        theirs.step()
    assert_weights(ranks[0], model)


@pytest.mark.parametrize("mode", ["broadcast", "average", "local"])
def test_statistics_of_batch_normalisation(mode: Any, tmp_path: Path) -> None:
    workload = normalised()
    example = [torch.from_numpy(part) for part in workload.example_batch()]
    step = training_step(
        workload.model, example, loss=F.mse_loss, optimizer=workload.optimizer, buffers=mode
    )
    ranks = train_two_ranks("normalised", step, tmp_path, 5)
    statistics = ("1.running_mean", "1.running_var")
    assert ranks[0]["1.num_batches_tracked"] == ranks[1]["1.num_batches_tracked"] == 5
    expected = ddp_statistics(5)
    if mode == "local":
        assert_same_state(ranks, *statistics)
        for rank in range(2):
            for name in statistics:
                np.testing.assert_allclose(ranks[rank][name], expected[rank][name], rtol=1e-5)
        return
    assert_same_state(ranks)
    for name in statistics:
        both = [expected[rank][name] for rank in range(2)]
        np.testing.assert_allclose(
            ranks[0][name], both[0] if mode == "broadcast" else np.mean(both, 0), rtol=1e-5
        )
        assert not np.allclose(both[0], both[1], rtol=1e-3)


def ddp_statistics(num_steps: int) -> list[dict[str, np.ndarray]]:
    """Each rank's own running statistics, in one process: ranks share weights only."""
    models = [normalised().model for _ in range(2)]
    streams = [batches(rank, 2) for rank in range(2)]
    for _ in range(num_steps):
        for model, stream in zip(models, streams, strict=True):
            x, y = (torch.from_numpy(part) for part in next(stream))
            model.zero_grad()
            F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for pair in zip(*(model.parameters() for model in models), strict=True):
                gradient = (pair[0].grad + pair[1].grad) / 2
                for parameter in pair:
                    parameter -= 0.05 * gradient
    return [{name: b.numpy() for name, b in model.named_buffers()} for model in models]


def test_unknown_modes_of_buffers_are_refused() -> None:
    workload = normalised()
    example = [torch.from_numpy(part) for part in workload.example_batch()]
    with pytest.raises(ValueError, match="buffers is 'sync'; allowed: broadcast, average, local"):
        training_step(
            workload.model,
            example,
            loss=F.mse_loss,
            optimizer=workload.optimizer,
            buffers="sync",  # type: ignore[arg-type]
        )
