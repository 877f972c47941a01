"""``disco-fuse train-cost-model``: learn cost models from a file of measured groups."""

from __future__ import annotations

import time
from pathlib import Path

import click

from disco_fuse.cli.cost_models import models_option, samples_argument
from disco_fuse.cli.output import failure, json_option, show
from disco_fuse.cost_model.registry import model_path
from disco_fuse.dataset.learning import LEARNED, load_examples, train
from disco_fuse.dataset.packed import read_samples


@click.command(
    name="train-cost-model",
    epilog="""\b
Examples:
  $ disco-fuse train-cost-model samples.db -O models
  $ disco-fuse train-cost-model samples.db -O models --models xgboost --seed 1
""",
)
@samples_argument
@click.option(
    "-O",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Write xgboost.npz and gnn.npz there.",
)
@models_option(LEARNED)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def train_cost_model(
    file: Path, output: Path, models: tuple[str, ...], seed: int, json_file: str | None
) -> None:
    """Train cost models on all groups of FILE, which 'disco-fuse sample' made.

    FILE may be compressed by xz; without it, these are the groups that come with the package. How
    well they do on groups they have not seen is the business of 'disco-fuse eval-cost-model'.
    """
    rows: list[tuple[str, ...]] = [("model", "groups", "file", "KB", "seconds")]
    data = {}
    try:
        with read_samples(file) as samples:
            examples, header = load_examples(samples), samples.header
        output.mkdir(parents=True, exist_ok=True)
        for name in models:
            begin = time.perf_counter()
            path = model_path(output, name)
            train(name, examples, header, seed).save(path)
            seconds, size = time.perf_counter() - begin, path.stat().st_size
            rows.append(
                (name, str(len(examples)), str(path), f"{size / 1e3:.0f}", f"{seconds:.1f}")
            )
            data[name] = {"file": str(path), "bytes": size, "seconds": seconds}
    except (ValueError, ImportError, OSError) as error:
        raise failure(file, error) from error
    show(rows, {"num_groups": len(examples), "models": data}, json_file)
