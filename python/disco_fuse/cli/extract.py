"""``disco-fuse extract``: a model as a search problem in a file."""

from __future__ import annotations

from pathlib import Path

import click

from disco_fuse.cli.output import failure, json_option, require_file, show
from disco_fuse.cli.references import cluster_option, load_cluster, model_argument, reference_of
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.tuning.importing import import_problem


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse extract gpt2_small -O problem.json.gz
  $ disco-fuse extract tutorials/quickstart.py:byte_gpt -O byte_gpt.json
"""
)
@model_argument
@click.option(
    "-O",
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    required=True,
    metavar="FILE",
    help="Where to write it; compressed if the name ends in .gz.",
)
@cluster_option
@json_option
def extract(model: str, output: Path, cluster_name: str, json_file: str | None) -> None:
    """Import MODEL and save its graph and its baselines, for 'disco-fuse tune --problem'.

    MODEL is that of 'disco-fuse tune'. The cluster matters only for whether convolutions are
    library calls.
    """
    reference = reference_of(model)
    require_file(output, "-O")
    device = load_cluster(cluster_name).device
    try:
        problem = import_problem(model, reference, library_convolutions=device.library_convolutions)
        problem.save(output)
    except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
        raise failure(model, error) from error
    graph = problem.graph
    data = {"model": model, "file": str(output), "ops": graph.num_ops, "digest": graph.digest}
    show([], data, json_file)
    if json_file != "-":
        click.echo(f"{output}: {graph.num_ops} ops, digest {graph.digest[:8]}")
