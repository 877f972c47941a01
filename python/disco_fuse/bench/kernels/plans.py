"""The three plans of one model that are compared: the same kernels and schedules, three groupings.

All are the step of a single rank without AllReduces, since PyTorch's step beside them has none
either: what remains of DisCoFuse is its op fusion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.baselines import baseline
from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.training_step import TrainingStep
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, choose_generated, measure_device, profile_ops
from disco_fuse.search import search
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target
from disco_fuse.workload import load_workload

DISCO_FUSE, UNFUSED, FUSE_OPS = "disco_fuse", "unfused", "fuse_ops"
VALUES_FILE = "values.npz"
_PATIENCE = 10_000
_BASELINES = {UNFUSED: "none", FUSE_OPS: "op_fusion"}


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelPlans:
    """What the plans of a model were made from.

    Attributes
    ----------
    step : TrainingStep
    mod : tvm.IRModule
        Lowered, with the faster matmul of each pair.
    extraction : Extraction
    target : tvm.target.Target
    device : DeviceSpec
        As measured.
    cost_model : RooflineCostModel
        Over measured times of every op.
    strategies : mapping of str to Strategy
        In list-scheduled order, by the names of the JSON file.
    makespan_us : mapping of str to float
        Simulated time of a step of each.
    """

    step: TrainingStep
    mod: tvm.IRModule
    extraction: Extraction
    target: tvm.target.Target
    device: DeviceSpec
    cost_model: RooflineCostModel
    strategies: Mapping[str, Strategy]
    makespan_us: Mapping[str, float]


def plan_model(reference: str, database_file: Path) -> ModelPlans:
    """Import the workload, choose matmuls, profile every op, and search.

    Parameters
    ----------
    reference : str
        As :func:`disco_fuse.workload.load_workload` takes it.
    database_file : Path
        Keeps measured times, so that models share them.
    """
    # Needs torch, which the rest of this file does without.
    from disco_fuse.frontend.torch import training_step

    workload = load_workload(reference)
    step = training_step(
        workload.model,
        workload.example_tensors(),
        loss=workload.loss,
        optimizer=workload.optimizer,
    )
    target = host_target()
    library = library_available()
    if library:
        load_library()
    mod = lower(step.mod, target, library=library)
    device = measure_device(target)
    with ProfileDatabase(database_file) as database:
        if library:
            mod = GenerateKernels(choose_generated(mod, target, database), target)(mod)
        extraction = extract(mod)
        op_times_us = profile_ops(mod, extraction, target, database)
    cluster = ClusterSpec(
        name="one rank of this machine",
        world_size=1,
        device=device,
        allreduce=AllReduceModel.linear(latency_us=0.0, us_per_byte=0.0),
        contention=1.0,
    )
    cost_model = RooflineCostModel(device, op_times_us)
    strategies = {name: baseline(rule, mod, extraction) for name, rule in _BASELINES.items()}
    # No plan is worth more memory than the step has that everybody else's fusion makes.
    graph, fuse_ops = extraction.graph, strategies[FUSE_OPS]
    limit = simulate(graph, fuse_ops, cost_model, cluster).memory.peak_bytes
    config = SearchConfig.preset("full", seed=0, patience=_PATIENCE, memory_limit_bytes=limit)
    found = search(graph, cost_model, cluster, config, initial=list(strategies.values()))
    chosen = {DISCO_FUSE: found.best, **strategies}
    return ModelPlans(
        step=step,
        mod=mod,
        extraction=extraction,
        target=target,
        device=device,
        cost_model=cost_model,
        strategies={
            name: schedule(extraction.graph, strategy, cost_model, cluster)
            for name, strategy in chosen.items()
        },
        makespan_us={
            name: simulate(extraction.graph, strategy, cost_model, cluster).makespan_us
            for name, strategy in chosen.items()
        },
    )


def write_plans(plans: ModelPlans, name: str, folder: Path) -> dict[str, int]:
    """Build every strategy into ``folder/<strategy>`` and the initial state beside them.

    Returns
    -------
    dict
        Strategy -> kernels and library calls of one step.
    """
    num_kernels = {}
    for strategy_name, strategy in plans.strategies.items():
        plan = write_plan(
            folder / strategy_name,
            name=strategy_name,
            model=name,
            mod=plans.mod,
            extraction=plans.extraction,
            strategy=strategy,
            target=plans.target,
            world_size=1,
            cost_model={"name": plans.cost_model.name, "digest": plans.cost_model.digest},
            predicted={"makespan_us": plans.makespan_us[strategy_name]},
            names=(*plans.step.input_names, *plans.step.names),
        )
        num_kernels[strategy_name] = plan.num_kernels
    np.savez(folder / VALUES_FILE, **dict(plans.step.values))  # type: ignore[arg-type]
    return num_kernels
