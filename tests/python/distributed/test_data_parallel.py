"""What two ranks compute together, against PyTorch DDP and against one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from data_parallel_workloads import batches, clipped_adamw, dropout
from tvm import relax

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.baselines import baseline
from disco_fuse.compare import compare
from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.search import search
from disco_fuse.simulate import schedule
from disco_fuse.target import host_target
from disco_fuse.workload import Workload

WORKLOADS = Path(__file__).parents[1] / "shared" / "data_parallel_workloads.py"
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


def write_plans(step: TrainingStep, folder: Path) -> dict[str, Path]:
    """Plans without fusion and of a search."""
    target = host_target()
    mod = lower(InsertAllReduce()(step.mod), target, library=library_available())
    extraction = extract(mod)
    model = RooflineCostModel(CLUSTER.device)
    found = search(extraction.graph, model, CLUSTER, SearchConfig(max_steps=1000)).best
    strategies = {"none": baseline("none", mod, extraction), "disco_fuse": found}
    for name, strategy in strategies.items():
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
    return {name: folder / name for name in strategies}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_clipped_adamw_as_ddp(num_ranks: int, tmp_path: Path) -> None:
    """The norm is that of the averaged gradients: clipping each rank's own would differ."""
    step = step_of(clipped_adamw())
    plans = write_plans(step, tmp_path)
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
            own = values | {"random.rank": np.array(rank, "uint32")}
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
    plans = write_plans(step, tmp_path)
    comparison = compare(
        f"{WORKLOADS}:dropout", plans, step.values, num_ranks=num_ranks, num_steps=8,
        num_warmup=0, with_ddp=False,
    )  # fmt: skip
    expected = one_process(step, num_ranks, 8)
    for result in comparison.results:
        np.testing.assert_allclose(result.losses, expected, rtol=2e-5)


def test_state_is_set_between_steps(tmp_path: Path) -> None:
    workload = clipped_adamw()
    step = step_of(workload)
    runner = StepRunner(write_plans(step, tmp_path)["none"], loopback(), step.values)
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
