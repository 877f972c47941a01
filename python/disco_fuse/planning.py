"""From a workload to a plan folder that `disco-fuse run` takes and `disco-fuse show` explains.

workload --import--> graph --search, or a strategy of earlier--> step.so, plan.json
                                                                 strategy.json, problem.json.gz
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tvm.target import Target

from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.extract import extract
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.plan import Plan, write_plan
from disco_fuse.search import SearchEvent
from disco_fuse.simulate import simulate
from disco_fuse.tuning import tune
from disco_fuse.tuning.choice import Choice, load_choice
from disco_fuse.tuning.importing import ImportedStep, import_step, problem_of


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a plan is for.

    Attributes
    ----------
    model, reference : str
        Its name in the plan, and the workload.
    target : tvm.target.Target
    num_ranks : int
    """

    model: str
    reference: str
    target: Target
    num_ranks: int


def search_choice(
    goal: Goal,
    cluster: ClusterSpec,
    config: SearchConfig,
    on_search: Callable[[], None] | None = None,
    on_event: Callable[[SearchEvent], None] | None = None,
) -> tuple[ImportedStep, Choice, str]:
    """Import the workload and search on a simulated cluster; also why the search has ended.

    ``on_search`` is called between the two, ``on_event`` with what happens in the search.

    Raises
    ------
    ValueError
        The workload cannot be imported, or no strategy fits the memory limit.
    """
    convolutions = cluster.device.library_convolutions and goal.target.kind.name == "llvm"
    step = import_step(goal.reference, library_convolutions=convolutions, target=goal.target)
    problem = problem_of(goal.model, step, library_convolutions=convolutions)
    if on_search is not None:
        on_search()
    result = tune(problem, cluster, config, on_event=on_event)
    choice = Choice(
        problem=problem,
        strategy=result.strategy,
        cluster=cluster,
        simulated_us=result.makespan_us,
    )
    return step, choice, result.search.stop_reason


def known_choice(goal: Goal, strategy_file: Path) -> tuple[ImportedStep, Choice]:
    """Import the workload and take the strategy of a strategy.json.

    Raises
    ------
    ValueError
        The file cannot be read, or is for another graph than the workload has for this target.
    """
    choice = load_choice(strategy_file)
    problem = choice.problem
    step = import_step(
        goal.reference,
        library_convolutions=problem.library_convolutions,
        target=goal.target,
    )
    step = _generated(step, choice.generated, goal.target)
    digest = step.extraction.graph.digest
    if digest != problem.graph.digest:
        raise ValueError(
            f"{strategy_file} is for the graph {problem.graph.digest[:8]} of {problem.name!r}, but "
            f"{goal.model} has the graph {digest[:8]} when it is lowered for this target"
        )
    return step, choice


def _generated(step: ImportedStep, signatures: tuple[str, ...], target: Target) -> ImportedStep:
    """The step with generated kernels in place of these library calls."""
    if not signatures or target.kind.name != "llvm":
        return step
    mod = GenerateKernels(signatures, target)(step.mod)
    return replace(step, mod=mod, extraction=extract(mod))


def write_choice(folder: Path, goal: Goal, step: ImportedStep, choice: Choice, seed: int) -> Plan:
    """Compile the strategy and write the plan, with the strategy and its graph beside it."""
    model, graph = choice.cost_model, choice.problem.graph
    timeline = simulate(graph, choice.strategy, model, choice.cluster)
    plan = write_plan(
        folder,
        name="disco_fuse",
        model=goal.model,
        mod=step.mod,
        extraction=step.extraction,
        strategy=choice.strategy,
        target=goal.target,
        world_size=goal.num_ranks,
        cost_model={"name": model.name, "digest": model.digest},
        predicted={
            "makespan_us": timeline.makespan_us,
            "compute_us": timeline.compute_us,
            "allreduce_us": timeline.allreduce_us,
            "overlap": timeline.overlap,
            "exposed_us": timeline.exposed_us,
        },
        names=(*step.step.input_names, *step.step.names),
    )
    choice.save(folder, {"seed": seed})
    return plan
