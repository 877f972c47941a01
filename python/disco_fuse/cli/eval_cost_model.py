"""``disco-fuse eval-cost-model``: errors of cost models on groups they were not trained on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli.cost_models import models_option, samples_argument
from disco_fuse.cli.output import failure, json_option, require_picture, show
from disco_fuse.dataset.learning import (
    MODELS,
    Evaluation,
    Example,
    Fold,
    evaluate,
    family_folds,
    load_examples,
    model_folds,
)
from disco_fuse.dataset.packed import read_samples
from disco_fuse.dataset.report import noise_floor

Results = dict[str, dict[str, Evaluation]]


@click.command(
    name="eval-cost-model",
    epilog="""\b
Examples:
  $ disco-fuse eval-cost-model samples.db --json cost.json --plot cost.png
  $ disco-fuse eval-cost-model samples.db --models roofline,xgboost --folds 10
""",
)
@samples_argument
@models_option(MODELS)
@click.option(
    "--folds",
    "num_folds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    metavar="N",
    help="Parts that the families of groups are cut into.",
)
@json_option
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="IMAGE",
    help="Draw predicted against measured times, and the errors, of held-out families, as .png, "
    ".svg or .pdf.",
)
def eval_cost_model(
    file: Path, models: tuple[str, ...], num_folds: int, json_file: str | None, plot: Path | None
) -> None:
    """Train on a part of the groups of FILE and predict the rest, until each was predicted once.

    FILE may be compressed by xz; without it, these are the groups that come with the package.

    'families' keeps groups that are equal up to sizes together; 'leave_one_model_out' predicts the
    groups of one model by those of the others. Errors are of a kernel with its launch, which is
    what a step pays, and of the kernel alone. 'noise' is what a second measurement of the same
    kernels differs by, without launch.
    """
    require_picture(plot)
    try:
        with read_samples(file) as samples:
            examples, header = load_examples(samples), samples.header
        splits = {"families": _families(examples, num_folds)}
        if len({item.measured.model for item in examples}) > 1:
            splits["leave_one_model_out"] = model_folds(examples)
        results: Results = {}
        total = len(models) * sum(map(len, splits.values()))
        # disable=None: no bar unless standard error is a terminal.
        with tqdm(total=total, file=sys.stderr, unit="fold", disable=None) as bar:
            for name in models:
                results[name] = {
                    split: evaluate(name, examples, folds, header, bar.update)
                    for split, folds in splits.items()
                }
        if plot is not None:
            _plot(results, plot)
    except (ValueError, ImportError, OSError) as error:
        raise failure(file, error) from error
    noise = noise_floor([item.measured for item in examples])
    data: dict[str, Any] = {
        "models": {
            name: {split: result.to_json() for split, result in by_split.items()}
            for name, by_split in results.items()
        },
        "noise": {**noise, "num_groups": len(examples)},
        "environment": header.environment,
        "per_model": _per_model(results, splits, [item.measured.model for item in examples]),
    }
    show(_rows(data), data, json_file)


def _families(examples: Sequence[Example], num_folds: int) -> list[Fold]:
    try:
        return family_folds(examples, num_folds)
    except ValueError as error:
        raise click.UsageError(f"--folds: {error}") from error


def _plot(results: Results, path: Path) -> None:
    # Needs matplotlib, which nothing else does.
    from disco_fuse.dataset.plot import plot_evaluations

    by_name = {name: by_split["families"] for name, by_split in results.items()}
    plot_evaluations(by_name, path, "Held-out families of fusion groups")


def _per_model(
    results: Results, splits: dict[str, list[Fold]], owners: list[str]
) -> dict[str, dict[str, float]]:
    """Share within 14% of the groups of each model of the zoo when it was left out."""
    folds = splits.get("leave_one_model_out", [])
    return {
        name: {
            owners[fold.test[0]]: by_split["leave_one_model_out"].part(fold.test)["within_14"]
            for fold in folds
        }
        for name, by_split in results.items()
    }


def _rows(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("model", "split", "groups", "within 10%", "within 14%", "mean error %", "alone within 14%")
    ]
    items = [
        (n, s, errors) for n, by_split in data["models"].items() for s, errors in by_split.items()
    ]
    noise = data["noise"]
    items.append(("noise", "second measurement", {**noise, "without_launch": noise}))
    for name, split, errors in items:
        shares = (f"{errors['within_10']:.3f}", f"{errors['within_14']:.3f}")
        mean, alone = f"{100 * errors['mape']:.1f}", f"{errors['without_launch']['within_14']:.3f}"
        rows.append((name, split, str(errors["num_groups"]), *shares, mean, alone))
    return rows
