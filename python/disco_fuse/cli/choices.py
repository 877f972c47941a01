"""How the commands that look at a chosen strategy name it, and the tables they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from disco_fuse.cli import completion
from disco_fuse.cli.references import load_cluster
from disco_fuse.errors import MissingInputError
from disco_fuse.explain.exposure import BucketExposure
from disco_fuse.explain.names import bytes_text, contents, op_name, unit_name
from disco_fuse.explain.source import open_choice
from disco_fuse.explain.summary import Summary, summarise
from disco_fuse.graph import OpGraph

problem_option = click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The graph, a file of 'disco-fuse extract'.  [default: problem.json.gz beside it]",
)
other_cluster_option = click.option(
    "--cluster",
    "cluster_name",
    metavar="NAME|FILE",
    shell_complete=completion.clusters,
    help="Preset or TOML file of the cluster to simulate.  [default: the one it was chosen on]",
)


def open_summary(path: Path, problem_file: Path | None, cluster_name: str | None) -> Summary:
    """What a path given by the user stands for, simulated.

    Raises
    ------
    click.UsageError
        There is nothing, or not all that must lie beside it.
    click.ClickException
        It is no choice, or the graph beside it is another one.
    """
    cluster = None if cluster_name is None else load_cluster(cluster_name)
    with told():
        choice = open_choice(path, problem_file=problem_file, cluster=cluster)
        if cluster is not None and choice.op_times_us is not None:
            raise ValueError(
                f"{path} has measured times of ops, which say nothing of cluster {cluster.name!r}"
            )
        return summarise(choice)


@contextmanager
def told() -> Iterator[None]:
    """Errors of the library as those of a command: one line, exit status 1, or 2 for no file."""
    try:
        yield
    except MissingInputError as error:
        raise click.UsageError(str(error)) from error
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


def heading(summary: Summary) -> str:
    """What is shown, in a line, and a second one if its times are no longer those of its file."""
    choice, makespan_us = summary.choice, summary.timeline.makespan_us
    cluster = choice.cluster
    text = (
        f"{choice.problem.name} ({choice.problem.graph.num_ops} ops), simulated on {cluster.name}, "
        f"{cluster.world_size} ranks of {cluster.device.name}\n"
    )
    recorded_us = choice.simulated_us
    if recorded_us and abs(makespan_us / recorded_us - 1) > 1e-3:
        text += (
            f"its file says {recorded_us / 1e3:.3f} ms: chosen on another cluster, or by "
            "another cost model than the roofline\n"
        )
    return text


def ms(time_us: float) -> str:
    """Milliseconds with three digits behind the point."""
    return f"{time_us / 1e3:.3f}"


def bucket_rows(graph: OpGraph, buckets: Sequence[BucketExposure]) -> list[tuple[str, ...]]:
    """A row for each bucket."""
    header = ("bucket", "holds", "MB", "ready ms", "start ms", "end ms", "exposed ms")
    return [
        header,
        *(
            (
                unit_name(graph, bucket.unit, 1),
                contents(graph, bucket.unit),
                f"{bucket.num_bytes / 1e6:.3f}",
                ms(bucket.ready_us),
                ms(bucket.start_us),
                ms(bucket.finish_us),
                ms(bucket.exposed_us),
            )
            for bucket in buckets
        ),
    ]


def why_exposed(graph: OpGraph, summary: Summary, bucket: BucketExposure, length: int) -> str:
    """What a bucket waited for, and the end of the chain that leads to it, in words."""
    names = {kernel.unit.id: unit_name(graph, kernel.unit, 2) for kernel in summary.kernels}
    names |= {other.unit.id: unit_name(graph, other.unit, 2) for other in summary.buckets}
    queued = (
        f"it stands {ms(bucket.queued_us)} ms behind other messages"
        if bucket.queued_us > 0
        else "no other message is in its way"
    )
    chain = [names[unit] for unit in bucket.chain[-length:]]
    dots = "... -> " if len(bucket.chain) > length else ""
    return (
        f"bucket {unit_name(graph, bucket.unit, 1)} ({bytes_text(bucket.num_bytes)}), exposed for "
        f"{ms(bucket.exposed_us)} ms, waits for {op_name(graph, bucket.last_gradient)} until "
        f"{ms(bucket.ready_us)} ms, then {queued}. Of the compute until then it needs "
        f"{ms(bucket.needed_us)} ms and does not need {ms(bucket.not_needed_us)} ms.\n"
        f"  longest chain, {len(bucket.chain)} kernels, {ms(bucket.chain_us)} ms: "
        f"{dots}{' -> '.join(chain)}"
    )
