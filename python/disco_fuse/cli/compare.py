"""``disco-fuse compare``: how two chosen strategies differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from disco_fuse.baselines import baseline_names, evaluate_baselines
from disco_fuse.cli import completion
from disco_fuse.cli.choices import (
    heading,
    ms,
    open_summary,
    other_cluster_option,
    problem_option,
    told,
)
from disco_fuse.cli.output import json_option, markdown_table, require_picture, show
from disco_fuse.explain.difference import difference, difference_json
from disco_fuse.explain.names import unit_name
from disco_fuse.explain.summary import Summary, summarise
from disco_fuse.tuning.choice import Choice
from disco_fuse.tuning.tune import gain

_BASELINE = "baseline:"


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse compare plan plan2
  $ disco-fuse compare plan plan2 --cluster a100-100gbe --json difference.json
  $ disco-fuse compare baseline:ddp plan --plot timeline.png
"""
)
@click.argument("first", metavar="A", shell_complete=completion.baselines)
@click.argument("second", metavar="B", shell_complete=completion.baselines)
@problem_option
@other_cluster_option
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Kernels and buckets in the table; JSON has all.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw both timelines, one above the other, as .png, .svg or .pdf.",
)
@json_option
def compare(
    first: str,
    second: str,
    problem_file: Path | None,
    cluster_name: str | None,
    top: int,
    picture: Path | None,
    json_file: str | None,
) -> None:
    """Compare two plan folders or strategy.json files for the same model.

    One of them may be a baseline for the graph of the other: baseline:none, baseline:op_fusion,
    baseline:allreduce_fusion, baseline:default, baseline:ddp, baseline:horovod, baseline:single.

    Kernels and buckets that only one of them has, how many units stand elsewhere in the order, and
    the step of both, simulated on one cluster: that of A, or of the one that is no baseline, unless
    --cluster names one.
    """
    require_picture(picture)
    one, other = _open(first, second, problem_file, cluster_name)
    with told():
        if cluster_name is None and one.choice.problem.graph == other.choice.problem.graph:
            other = summarise(_at_prices_of(one.choice, other.choice))
        found = difference(one, other)
    if picture is not None:
        _plot(one, other, (first, second), picture)
    if json_file != "-":
        click.echo(heading(one))
    show(
        _figures(one, other),
        difference_json(one, other, found) | {"names": [first, second]},
        json_file,
    )
    if json_file == "-":
        return
    if found.is_empty:
        click.echo("\nBoth are the same.")
        return
    click.echo("\ngain: by how much less B takes, A / B - 1; what 'disco-fuse tune' calls gain.")
    graph = one.choice.problem.graph
    sides = [("A", found.only_first), ("B", found.only_second)]
    rows = [("only in", "what", "ops", "name")]
    for name, units in sides:
        largest = sorted(units, key=lambda unit: (-len(unit.ops), unit.id))[:top]
        rows += [(name, u.kind, str(len(u.ops)), unit_name(graph, u)) for u in largest]
    click.echo(
        f"\n{found.num_common} kernels and buckets of several ops are in both, "
        f"{len(found.only_first)} only in A, {len(found.only_second)} only in B; of "
        f"{found.num_common_units} units that both have, {found.num_moved} stand elsewhere in the "
        "order.\n"
    )
    if len(rows) > 1:
        click.echo(markdown_table(rows))


def _at_prices_of(one: Choice, other: Choice) -> Choice:
    """``other`` on the cluster of ``one``; what was measured of its own kernels counts if of both.

    Times that were measured on one machine say nothing of a cluster that is only simulated.
    """
    kernels_us = one.kernels_us + (() if one.op_times_us is None else other.kernels_us)
    return replace(other, cluster=one.cluster, op_times_us=one.op_times_us, kernels_us=kernels_us)


def _open(
    first: str, second: str, problem_file: Path | None, cluster_name: str | None
) -> tuple[Summary, Summary]:
    """Both sides; a baseline gets the graph of the other one."""
    if first.startswith(_BASELINE) and second.startswith(_BASELINE):
        raise click.UsageError("one of A and B must be a plan or a strategy, which has the graph")
    if first.startswith(_BASELINE):
        other = open_summary(Path(second), problem_file, cluster_name)
        return _baseline(first, other), other
    one = open_summary(Path(first), problem_file, cluster_name)
    if second.startswith(_BASELINE):
        return one, _baseline(second, one)
    return one, open_summary(Path(second), problem_file, cluster_name)


def _baseline(name: str, known: Summary) -> Summary:
    """What a baseline makes of the graph of ``known``, on its cluster and in the better order."""
    rule = name.removeprefix(_BASELINE)
    if rule not in baseline_names():
        allowed = ", ".join(_BASELINE + other for other in baseline_names())
        raise click.UsageError(f"no baseline {name!r}; allowed: {allowed}")
    choice = known.choice
    problem = choice.problem
    with told():
        result = evaluate_baselines(
            problem.graph, problem.emission, choice.cost_model, choice.cluster
        )[rule]
        return summarise(replace(choice, strategy=result.strategy, simulated_us=result.makespan_us))


def _figures(one: Summary, other: Summary) -> list[tuple[str, ...]]:
    def row(name: str, a: float, b: float) -> tuple[str, ...]:
        return (name, ms(a), ms(b), f"{100 * gain(a, b):+.2f}" if b else "-")

    pairs = (one.timeline, other.timeline)
    return [
        ("figure", "A", "B", "gain of B %"),
        row("step ms", *(timeline.makespan_us for timeline in pairs)),
        row("compute ms", *(timeline.compute_us for timeline in pairs)),
        row("AllReduce ms", *(timeline.allreduce_us for timeline in pairs)),
        row("exposed ms", one.exposed_us, other.exposed_us),
        ("kernels", str(len(one.kernels)), str(len(other.kernels)), "-"),
        ("buckets", str(len(one.buckets)), str(len(other.buckets)), "-"),
    ]


def _plot(one: Summary, other: Summary, names: tuple[str, str], picture: Path) -> None:
    try:
        from disco_fuse.explain.plot import plot_timelines
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--plot needs {error.name}: install disco-fuse[plot]"
        ) from error
    with told():
        plot_timelines({names[0]: one, names[1]: other}, picture)
