"""``disco-fuse build``: a model as a plan folder, searched for or from a strategy of earlier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli.output import failure, json_option, require_folder, show
from disco_fuse.cli.references import (
    load_cluster,
    reference_of,
    search_config,
    search_options,
    threads_option,
)
from disco_fuse.config import SearchConfig
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.explain.source import find_file
from disco_fuse.plan import Plan
from disco_fuse.planning import Goal, known_choice, search_choice, write_choice
from disco_fuse.search import SearchEvent
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
@click.argument("model")
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
    help="Cluster on which the search is simulated.  "
    f"[default: {_CLUSTERS[_CPU]}, or {_GPU_CLUSTER} for a GPU]",
)
@click.option(
    "-n",
    "--ranks",
    "num_ranks",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Ranks the plan is for; the search simulates so many.",
)
@search_options
@threads_option
@json_option
def build(
    model: str,
    output: Path,
    target_name: str,
    strategy_file: Path | None,
    cluster_name: str | None,
    num_ranks: int,
    json_file: str | None,
    **changes: Any,
) -> None:
    """Search a strategy for MODEL, compile it and write a plan folder for 'disco-fuse run'.

    MODEL is a model of the zoo, or a function that returns a Workload, as 'package.module:function'
    or 'file.py:function'. The search is that of 'disco-fuse tune', on a simulated cluster; 'show',
    'explain' and 'compare' take the folder.
    """
    if strategy_file is not None and cluster_name is not None:
        raise click.UsageError("--cluster is for searching, but --strategy names a strategy")
    changes["time_limit_s"] = changes.pop("time_limit")
    config = search_config("full", changes)
    goal = Goal(
        model=model,
        reference=reference_of(model),
        target=host_target() if target_name == _CPU else gpu_target(target_name),
        num_ranks=num_ranks,
    )
    require_folder(output, "-O")
    cluster_name = cluster_name or _CLUSTERS.get(target_name, _GPU_CLUSTER)
    with tqdm(file=sys.stderr, desc="build", disable=None, leave=False) as bar:

        def on_event(event: SearchEvent) -> None:
            bar.set_postfix_str(
                f"search: {event.num_candidates} candidates, best {event.makespan_us / 1e3:.2f} ms"
            )

        bar.set_postfix_str("import")
        try:
            step, choice = _choose(goal, strategy_file, cluster_name, config, on_event)
            bar.set_postfix_str(f"compile {len(choice.strategy.order)} units")
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
    goal: Goal, strategy_file: Path | None, cluster_name: str, config: SearchConfig, on_event: Any
) -> tuple[ImportedStep, Choice]:
    if strategy_file is not None:
        return known_choice(goal, find_file(strategy_file))
    cluster = load_cluster(cluster_name)
    # A measured AllReduce curve is that of its own world size; it is the best guess for others.
    if cluster.links is not None:
        cluster = cluster.with_world_size(goal.num_ranks)
    return search_choice(goal, cluster, config, on_event)
