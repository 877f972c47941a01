"""``disco-fuse extract``: a model as a search problem in a file."""

from __future__ import annotations

from pathlib import Path

import click

from disco_fuse.cli.output import failure, require_file
from disco_fuse.cli.references import cluster_option, load_cluster, reference_of
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.tuning.importing import import_problem


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse extract gpt2_small -o problem.json.gz
  $ disco-fuse extract tutorials/quickstart.py:byte_gpt -o byte_gpt.json
"""
)
@click.argument("model")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    required=True,
    metavar="FILE",
    help="Where to write it; compressed if the name ends in .gz.",
)
@cluster_option
def extract(model: str, output: Path, cluster_name: str) -> None:
    """Import MODEL and save its graph and its baselines, for 'disco-fuse tune --problem'.

    MODEL is a model of the zoo, or a function that returns a Workload, as 'package.module:function'
    or 'file.py:function'. The cluster matters only for whether convolutions are library calls.
    """
    reference = reference_of(model)
    require_file(output, "-o")
    device = load_cluster(cluster_name).device
    try:
        problem = import_problem(model, reference, library_convolutions=device.library_convolutions)
        problem.save(output)
    except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
        raise failure(model, error) from error
    click.echo(f"{output}: {problem.graph.num_ops} ops, digest {problem.graph.digest[:8]}")
