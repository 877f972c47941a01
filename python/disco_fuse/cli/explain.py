"""``disco-fuse explain``: what a step waits for, and what its decisions gain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli.choices import (
    bucket_rows,
    heading,
    ms,
    open_summary,
    other_cluster_option,
    problem_option,
    told,
    why_exposed,
)
from disco_fuse.cli.output import json_option, markdown_table, show
from disco_fuse.explain.gains import Finding, Gains, gains
from disco_fuse.explain.names import find_op
from disco_fuse.explain.summary import Summary, bucket_json
from disco_fuse.explain.why import together, why_not

_NUM_FUSIONS, _NUM_BUCKETS, _NUM_ORDER = 10, 5, 5
_CHAIN = 6
_EXPOSED_US = 0.001  # the simulator's own step


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse explain plan
  $ disco-fuse explain plan --json why.json
  $ disco-fuse explain plan --why '#0' '#1'
"""
)
@click.argument("what", type=click.Path(path_type=Path), metavar="PLAN_OR_STRATEGY")
@problem_option
@other_cluster_option
@click.option(
    "--why",
    nargs=2,
    metavar="OP1 OP2",
    help="Why these two ops, kernels or gradients are apart, or what parting them would cost: by "
    "id ('#12', also of a kernel) or name.",
)
@json_option
def explain(
    what: Path,
    problem_file: Path | None,
    cluster_name: str | None,
    why: tuple[str, str] | None,
    json_file: str | None,
) -> None:
    """Explain a plan folder or a strategy.json of 'disco-fuse tune -O' or 'disco-fuse build'.

    The exposed communication bucket by bucket: which gradient each waited for, and the chain of
    kernels that this one depends on. Then the ten fusions and the five decisions about buckets that
    gain most, found by undoing every one of them alone in the simulator. Equal ones, as in layers
    that repeat, are one row: '6 x' and what they gain together.
    """
    summary = open_summary(what, problem_file, cluster_name)
    if why is not None:
        _why(summary, why, json_file)
        return
    with told(), tqdm(file=sys.stderr, desc="undo", disable=None, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = gains(summary.choice, progress)
    graph = summary.choice.problem.graph
    exposed = [bucket for bucket in summary.buckets if bucket.exposed_us >= _EXPOSED_US]
    if json_file != "-":
        click.echo(heading(summary))
        click.echo(
            f"Of {ms(summary.timeline.makespan_us)} ms, compute waits {ms(summary.exposed_us)} ms "
            f"for {len(exposed)} of {len(summary.buckets)} buckets; the bound is "
            f"{ms(summary.lower_bound_us)} ms.\n"
        )
    show(bucket_rows(graph, exposed), _json(summary, found), json_file)
    if json_file != "-":
        for bucket in exposed:
            click.echo("\n" + why_exposed(graph, summary, bucket, _CHAIN))
        _echo_decisions(found)


def _why(summary: Summary, names: tuple[str, str], json_file: str | None) -> None:
    choice = summary.choice
    try:
        first, second = (find_op(choice.problem.graph, name) for name in names)
        answers = why_not(choice, first, second)
    except ValueError as error:
        raise click.UsageError(f"--why: {error}") from error
    data = {
        "model": choice.problem.name,
        "ops": [first, second],
        "together": bool(choice.strategy.group_of[first] == choice.strategy.group_of[second]),
        "answers": [answer.to_json() for answer in answers],
    }
    show([], data, json_file)
    if json_file != "-":
        click.echo(together(choice, first, second))
        for answer in answers:
            click.echo(answer.in_words())


def _echo_decisions(found: Gains) -> None:
    parts = [
        ("fusion", _NUM_FUSIONS, "fusions that gain most"),
        ("bucket", _NUM_BUCKETS, "bucket decisions that gain most"),
        ("order", _NUM_ORDER, "places in the order that gain most"),
    ]
    for kind, number, title in parts:
        best = found.best(kind, number)
        if best:
            rows = [(title, "gain ms", "sum ms"), *map(_finding_row, best)]
            click.echo("\n" + markdown_table(rows))
    hurting = [decision for decision in found.decisions if decision.gain_us < 0]
    click.echo(
        f"\n{len(found.decisions)} decisions undone alone; {len(hurting)} of them cost more than "
        f"they gain; {found.num_fixed} cannot be undone alone. A gain is what the step loses when "
        "that decision alone is undone; what gains less than 0.001 ms is not shown."
    )


def _finding_row(finding: Finding) -> tuple[str, ...]:
    first, times = finding.decisions[0], len(finding.decisions)
    many = "" if times == 1 else f"{times} x "
    return (many + first.what, ms(first.gain_us), ms(finding.sum_us))


def _json(summary: Summary, found: Gains) -> dict[str, Any]:
    graph = summary.choice.problem.graph
    return {
        "model": summary.choice.problem.name,
        "cluster": summary.choice.cluster.name,
        "makespan_us": summary.timeline.makespan_us,
        "lower_bound_us": summary.lower_bound_us,
        "exposed_us": summary.exposed_us,
        "buckets": [bucket_json(graph, bucket) for bucket in summary.buckets],
        "fusions": [one.to_json() for one in found.best("fusion", _NUM_FUSIONS)],
        "bucket_decisions": [one.to_json() for one in found.best("bucket", _NUM_BUCKETS)],
        "order_decisions": [one.to_json() for one in found.best("order", _NUM_ORDER)],
        "undone": len(found.decisions),
        "hurting": sum(decision.gain_us < 0 for decision in found.decisions),
        "fixed": found.num_fixed,
    }
