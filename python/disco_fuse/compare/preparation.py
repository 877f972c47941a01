"""From a workload to measured costs, strategies and plans on this machine.

import -> library or generated -> profile in a step, AllReduce on the link -> cost model
       -> baselines (the better order of each), search -> one plan for each strategy
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from numpy.typing import NDArray

from disco_fuse.baselines import evaluate_baselines
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import CostModel, choose_cost_model
from disco_fuse.cost_model.registry import SHIPPED
from disco_fuse.extract import Extraction, extract
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, choose_generated, measure_device
from disco_fuse.profile.allreduce import RunRanks, profile_allreduce
from disco_fuse.profile.in_step import profile_in_step
from disco_fuse.profile.kernels import environment_key
from disco_fuse.simulate import Timeline, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target
from disco_fuse.tuning.contention import search_contentions
from disco_fuse.tuning.importing import ImportedStep, import_step

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CostModelChoice:
    """Which cost model is asked for.

    Attributes
    ----------
    name : str
        See :func:`disco_fuse.cost_model.choose_cost_model`.
    folder : Path
        Of trained files.
    """

    name: str = "roofline"
    folder: Path = SHIPPED


@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation:
    """A training step on this machine, with all that a simulation of it needs.

    Attributes
    ----------
    step : ImportedStep
    mod : tvm.IRModule
        Lowered, with generated kernels where those are faster than the library.
    extraction : Extraction
        Of ``mod``.
    target : tvm.target.Target
    op_times_us : float64[num_ops]
        Of every op inside an unfused step.
    cost_model : CostModel
    reason : str
        Why it is this one.
    cluster : ClusterSpec
        The ranks and their link, as measured.
    """

    step: ImportedStep
    mod: tvm.IRModule
    extraction: Extraction
    target: tvm.target.Target
    op_times_us: NDArray[np.float64]
    cost_model: CostModel
    reason: str
    cluster: ClusterSpec


def prepare(
    reference: str,
    *,
    num_ranks: int,
    link: str,
    database: Path,
    run_ranks: RunRanks,
    choice: CostModelChoice,
    say: Say,
) -> Preparation:
    """Import a workload and measure what its simulation needs.

    Parameters
    ----------
    reference : str
        See :func:`disco_fuse.workload.load_workload`.
    link : str
        Its name, for the cluster's.
    database : Path
        Of times of library calls and generated kernels.
    run_ranks : callable
        Starts ranks on the link, with the signature of :func:`disco_fuse.launch.run`.
    say : callable
        Is told every stage.

    Raises
    ------
    RuntimeError
        The ranks failed.
    ValueError, FileNotFoundError, ImportError
        See :func:`disco_fuse.cost_model.choose_cost_model`.
    """
    say("import")
    step = import_step(reference)
    target = host_target()
    if library_available():
        load_library()
    say("choose matmuls")
    with ProfileDatabase(database) as opened:
        chosen = choose_generated(step.mod, target, opened)
    mod = GenerateKernels(chosen, target)(step.mod)
    extraction = extract(mod)
    device = measure_device(target)
    say("profile kernels")
    profile = profile_in_step(mod, extraction, target, num_ranks, run_ranks)
    model = choose_cost_model(
        choice.name, device, profile.op_times_us, choice.folder, environment=environment_key(target)
    )
    say(f"cost model {model.reason}")
    say("profile AllReduce")
    transport = profile_allreduce(num_ranks, run_ranks=run_ranks)
    cluster = ClusterSpec(
        name=f"{num_ranks} ranks at {link}",
        world_size=num_ranks,
        device=device,
        allreduce=transport.allreduce,
        contention=profile.contention,
    )
    return Preparation(
        step=step,
        mod=mod,
        extraction=extraction,
        target=target,
        op_times_us=profile.op_times_us,
        cost_model=model.model,
        reason=model.reason,
        cluster=cluster,
    )


def baselines_and_best(prepared: Preparation, say: Say) -> dict[str, Strategy]:
    """Every baseline in the better of both orders, and what the search finds as "disco_fuse".

    The search is :func:`disco_fuse.tuning.contention.search_contentions`.
    """
    say("search")
    graph, model, cluster = prepared.extraction.graph, prepared.cost_model, prepared.cluster
    emission = fuse_ops(prepared.mod, prepared.extraction)
    baselines = evaluate_baselines(graph, emission, model, cluster)
    strategies = {name: result.strategy for name, result in baselines.items()}
    config = SearchConfig.preset("full", seed=0)
    best = search_contentions(graph, model, cluster, config, list(strategies.values()))
    return {**strategies, "disco_fuse": best}


def build_plans(
    prepared: Preparation,
    strategies: Mapping[str, Strategy],
    *,
    model: str,
    folder: Path,
    say: Say,
) -> tuple[dict[str, Path], dict[str, Timeline]]:
    """One plan folder and one simulated timeline for each strategy, by name.

    Parameters
    ----------
    model : str
        Its name, for the plans.
    folder : Path
        Where ``plans/<strategy>`` is written.
    """
    graph, cost_model = prepared.extraction.graph, prepared.cost_model
    plans: dict[str, Path] = {}
    timelines: dict[str, Timeline] = {}
    for name, strategy in strategies.items():
        say(f"build {name}")
        timelines[name] = simulate(graph, strategy, cost_model, prepared.cluster)
        plans[name] = folder / "plans" / name
        write_plan(
            plans[name],
            name=name,
            model=model,
            mod=prepared.mod,
            extraction=prepared.extraction,
            strategy=strategy,
            target=prepared.target,
            world_size=prepared.cluster.world_size,
            cost_model={"name": cost_model.name, "digest": cost_model.digest},
            predicted={
                "makespan_us": timelines[name].makespan_us,
                "exposed_us": timelines[name].exposed_us,
            },
            names=(*prepared.step.step.input_names, *prepared.step.step.names),
        )
    return plans, timelines
