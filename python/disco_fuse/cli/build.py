"""``disco-fuse build``: a model as a plan folder, searched for or from a strategy of earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from disco_fuse.cli import completion
from disco_fuse.cli.output import failure, json_option, require_folder, show
from disco_fuse.cli.references import (
    load_cluster,
    model_argument,
    ranks_option,
    reference_of,
    search_config,
    search_options,
)
from disco_fuse.cli.search_bar import SearchBar
from disco_fuse.config import SearchConfig
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.explain.source import find_file
from disco_fuse.plan import Plan
from disco_fuse.planning import Goal, known_choice, search_choice, write_choice
from disco_fuse.target import GPU_ARCHS, gpu_target, host_target
from disco_fuse.tuning.choice import Choice
from disco_fuse.tuning.importing import ImportedStep

_CPU = "cpu"
_CLUSTERS = {_CPU: "1gbit-cpu"}
_GPU_CLUSTER = "dgx-h100"


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse build gpt2_small -O plan
  $ disco-fuse build bert_small -O plan_gpu --target sm_90 --max-steps 1000
  $ disco-fuse build gpt2_small -O again --strategy plan --ranks 4
"""
)
@model_argument
@click.option(
    "-O",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The plan folder; also gets strategy.json and problem.json.gz.",
)
@click.option(
    "--target",
    "target_name",
    type=click.Choice([_CPU, *GPU_ARCHS]),
    default=_CPU,
    show_default=True,
    help="This machine's processor, or a GPU, which need not be here.",
)
@click.option(
    "--strategy",
    "strategy_file",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Take the strategy of 'disco-fuse tune -O' or of another plan instead of searching.",
)
@click.option(
    "--cluster",
    "cluster_name",
    metavar="NAME|FILE",
    shell_complete=completion.clusters,
    help="Cluster on which the search is simulated.  "
    f"[default: {_CLUSTERS[_CPU]}, or {_GPU_CLUSTER} for a GPU]",
)
@ranks_option("Ranks the plan is for; the search simulates so many.")
@search_options
@json_option
def build(
    model: str,
    output: Path,
    target_name: str,
    strategy_file: Path | None,
    cluster_name: str | None,
    num_ranks: int,
    preset: str,
    json_file: str | None,
    **changes: Any,
) -> None:
    """Search a strategy for MODEL, compile it and write a plan folder for 'disco-fuse run'.

    MODEL and the search, on a simulated cluster, are those of 'disco-fuse tune'; 'show', 'explain'
    and 'compare' take the folder. Ctrl-C ends the search with the best strategy so far.
    """
    if strategy_file is not None and cluster_name is not None:
        raise click.UsageError("--cluster is for searching, but --strategy names a strategy")
    config = search_config(preset, changes)
    goal = Goal(
        model=model,
        reference=reference_of(model),
        target=host_target() if target_name == _CPU else gpu_target(target_name),
        num_ranks=num_ranks,
    )
    require_folder(output, "-O")
    cluster_name = cluster_name or _CLUSTERS.get(target_name, _GPU_CLUSTER)
    with SearchBar(config) as bar:
        try:
            step, choice, reason = _choose(goal, strategy_file, cluster_name, config, bar)
            if reason == "interrupted":
                click.echo("interrupted: the plan is of the best so far", err=True)
            bar.stage(f"compile {len(choice.strategy.order)} units")
            plan = write_choice(output, goal, step, choice, config.seed)
        except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
            raise failure(model, error) from error
    _show(plan, output, choice.cluster.name, json_file)
    if json_file != "-":
        where = "" if target_name == _CPU else f", where an {target_name} GPU is"
        click.echo(f"\nNext{where}: disco-fuse run {output} -n {num_ranks}")


def _show(plan: Plan, folder: Path, cluster_name: str, json_file: str | None) -> None:
    data = {
        "folder": str(folder),
        "model": plan.model,
        "target": plan.target,
        "world_size": plan.world_size,
        "cluster": cluster_name,
        "kernels": plan.num_kernels,
        "allreduces": plan.num_allreduces,
        "predicted": dict(plan.predicted),
        "digest": plan.digest,
    }
    rows = [
        ("figure", "value"),
        ("kernels", str(plan.num_kernels)),
        ("AllReduces", str(plan.num_allreduces)),
        (f"simulated on {cluster_name}", f"{plan.predicted['makespan_us'] / 1e3:.3f} ms"),
    ]
    show(rows, data, json_file)


def _choose(
    goal: Goal, strategy_file: Path | None, cluster_name: str, config: SearchConfig, bar: SearchBar
) -> tuple[ImportedStep, Choice, str]:
    """The step, the strategy for it, and why the search for it has ended, if there was one."""
    if strategy_file is not None:
        return *known_choice(goal, find_file(strategy_file)), "known"
    cluster = load_cluster(cluster_name)
    # A measured AllReduce curve is that of its own world size; it is the best guess for others.
    if cluster.links is not None:
        cluster = cluster.with_world_size(goal.num_ranks)
    return search_choice(goal, cluster, config, bar.search, bar)
