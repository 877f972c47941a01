"""``disco-fuse sample``: measure fusion groups of models, for a cost model to learn from."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from tqdm import tqdm

from disco_fuse import zoo
from disco_fuse.cli.output import failure, json_option, show
from disco_fuse.cli.references import reference_of
from disco_fuse.dataset.collect import collect, open_samples
from disco_fuse.dataset.report import describe
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.target import host_target


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse sample samples.db --groups 3000
  $ disco-fuse sample samples.db --models bert_small,vgg19_small --groups 200 --json -
"""
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--groups",
    "num_groups",
    type=click.IntRange(min=1),
    default=3000,
    show_default=True,
    metavar="N",
    help="Groups the file is to hold in the end.",
)
@click.option(
    "--models",
    metavar="NAMES",
    help="Models, separated by commas.  [default: all small ones of the zoo]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random strategies.")
@json_option
def sample(
    file: Path, num_groups: int, models: str | None, seed: int, json_file: str | None
) -> None:
    """Measure fusion groups of random strategies on this machine and keep them in FILE.

    A reference kernel runs between all measurements; where it is slow, something else runs too,
    and the measurement is repeated. A second call goes on where the first one ended, also after
    Ctrl-C. Two processes may fill one file; give each a seed of its own.
    """
    names = models.split(",") if models else [m for m in zoo.models() if m.endswith("_small")]
    chosen = [(name, reference_of(name)) for name in names]
    try:
        target = host_target()
        with open_samples(file, target) as samples:
            start = sum(samples.counts().get(name, 0) for name in names)
            # disable=None: no bar unless standard error is a terminal.
            with tqdm(
                total=num_groups, initial=start, file=sys.stderr, unit="group", disable=None
            ) as bar:

                def progress(done: int, model: str) -> None:
                    bar.set_description(model)
                    bar.update(done - bar.n)

                collect(samples, chosen, num_groups, target, seed=seed, progress=progress)
            rows, data = describe(samples)
    except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
        raise failure(file, error) from error
    show(rows, data, json_file)
