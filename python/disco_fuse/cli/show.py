"""``disco-fuse show``: what a plan or a strategy consists of."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from disco_fuse.cli.choices import (
    bucket_rows,
    heading,
    ms,
    open_summary,
    other_cluster_option,
    problem_option,
    told,
)
from disco_fuse.cli.output import json_option, markdown_table
from disco_fuse.cli.output import show as show_table
from disco_fuse.explain.names import unit_name, unit_shape
from disco_fuse.explain.source import PlanFacts, find_file, is_plan, plan_facts
from disco_fuse.explain.summary import Summary
from disco_fuse.tuning.choice import PROBLEM_FILE, STRATEGY_FILE, read_json


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse show plan
  $ disco-fuse show plan/strategy.json --top 20 --json plan.json
  $ disco-fuse show plan --cluster dgx-h100
"""
)
@click.argument("what", type=click.Path(path_type=Path), metavar="PLAN_OR_STRATEGY")
@problem_option
@other_cluster_option
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Rows of each table; JSON has all.",
)
@json_option
def show(
    what: Path, problem_file: Path | None, cluster_name: str | None, top: int, json_file: str | None
) -> None:
    """Show kernels, buckets, order and predicted step of a plan folder or a strategy.json.

    'disco-fuse tune -O' writes the strategy with its graph beside it, 'disco-fuse build' also the
    plan. Of a plan without them only what the plan itself says is shown.
    """
    with told():
        file = find_file(what)
        facts = plan_facts(file)
        alone = is_plan(read_json(file)) and not (file.parent / STRATEGY_FILE).is_file()
    if facts is not None and alone:
        _show_plan(facts, json_file)
        return
    summary = open_summary(what, problem_file, cluster_name)
    if facts is not None and facts.graph_digest != summary.choice.problem.graph.digest:
        facts = None  # a plan of something else lies in the same folder
    data = summary.to_json() | {"plan": None if facts is None else asdict(facts)}
    if json_file != "-":
        click.echo(heading(summary))
    show_table(_figures(summary, facts), data, json_file)
    if json_file != "-":
        graph = summary.choice.problem.graph
        _echo_table("kernels that take longest, equal ones together:", _kernel_rows(summary, top))
        largest = sorted(summary.buckets, key=lambda b: (-b.num_bytes, b.unit.id))[:top]
        largest.sort(key=lambda bucket: (bucket.start_us, bucket.unit.id))
        title = (
            f"largest {len(largest)} of {len(summary.buckets)} buckets, in the order of sending:"
        )
        _echo_table(title, bucket_rows(graph, largest))
        moved = _place_rows(summary, top)
        num_moved = len(summary.choice.strategy.priorities)
        title = f"first {len(moved) - 1} of {num_moved} units with a place of their own:"
        _echo_table(title, moved)


def _echo_table(title: str, rows: list[tuple[str, ...]]) -> None:
    if len(rows) > 1:
        click.echo(f"\n{title}\n\n{markdown_table(rows)}")


def _show_plan(facts: PlanFacts, json_file: str | None) -> None:
    fused = [size for size in facts.group_sizes if size > 1]
    rows = [
        ("figure", "value"),
        ("plan", facts.name),
        ("model", facts.model),
        ("target", facts.target),
        ("ranks it is for", str(facts.world_size)),
        ("kernels", str(facts.num_kernels)),
        ("AllReduces", str(facts.num_allreduces)),
        ("groups and buckets of several ops", str(len(fused))),
        ("ops in the largest", str(max(facts.group_sizes, default=0))),
        *((f"predicted {name}", f"{value:.3f}") for name, value in facts.predicted.items()),
    ]
    show_table(rows, {"plan": asdict(facts)}, json_file)
    if json_file != "-":
        click.echo(
            f"\nThere is no {STRATEGY_FILE} and {PROBLEM_FILE} beside the plan, so that its "
            "kernels cannot be named; 'disco-fuse build' writes them."
        )


def _figures(summary: Summary, facts: PlanFacts | None) -> list[tuple[str, str]]:
    timeline, strategy = summary.timeline, summary.choice.strategy
    rows = [
        ("figure", "value"),
        ("predicted step", f"{ms(timeline.makespan_us)} ms"),
        ("lower bound of every strategy", f"{ms(summary.lower_bound_us)} ms"),
        ("above the bound", f"{100 * summary.gap:.2f} %"),
        ("compute", f"{ms(timeline.compute_us)} ms"),
        ("AllReduce", f"{ms(timeline.allreduce_us)} ms"),
        ("exposed AllReduce", f"{ms(summary.exposed_us)} ms"),
        ("AllReduce overlapped", f"{100 * timeline.overlap:.1f} %"),
        ("peak memory", f"{timeline.memory.peak_bytes / 1e6:.1f} MB"),
        ("kernels and library calls", str(len(summary.kernels))),
        ("kernels of several ops", str(summary.num_fused)),
        ("ops computed twice", str(len(strategy.duplicated))),
        ("buckets", str(len(summary.buckets))),
        ("units with a place of their own", str(len(strategy.priorities))),
    ]
    if facts is not None:
        rows += [
            ("compiled for", facts.target),
            ("kernels, AllReduces compiled", f"{facts.num_kernels}, {facts.num_allreduces}"),
        ]
    return rows


def _kernel_rows(summary: Summary, number: int) -> list[tuple[str, ...]]:
    graph = summary.choice.problem.graph
    return [
        ("kernel", "elements", "ops", "first starts ms", "time", "sum ms", "saved by fusion ms"),
        *(
            (
                group.name,
                unit_shape(graph, group.kernels[0].unit),
                str(len(group.kernels[0].unit.ops)),
                ms(group.kernels[0].start_us),
                group.times_text,
                ms(group.time_us),
                ms(group.saved_us),
            )
            for group in summary.longest(number)
        ),
    ]


def _place_rows(summary: Summary, number: int) -> list[tuple[str, ...]]:
    """Units that the search gave a place of their own, in the order, with the unit before each."""
    choice = summary.choice
    graph, strategy = choice.problem.graph, choice.strategy
    units = {unit.id: unit for unit in strategy.units(graph)}
    moved = {int(strategy.group_of[op]) for op, _ in strategy.priorities}
    order = list(units)
    places = [(place, unit) for place, unit in enumerate(order) if unit in moved][:number]
    return [
        ("unit", "place", "behind"),
        *(
            (
                unit_name(graph, units[unit]),
                f"{place + 1} of {len(order)}",
                unit_name(graph, units[order[place - 1]]) if place else "-",
            )
            for place, unit in places
        ),
    ]
