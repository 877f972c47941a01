"""``disco-fuse whatif``: the same model at other world sizes, bandwidths, batches and devices."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli import completion
from disco_fuse.cli.output import failure, json_option, require_picture, show
from disco_fuse.cli.references import (
    cluster_option,
    instead_of_model_option,
    load_cluster,
    max_steps_option,
    optional_model_argument,
    patience_option,
    reference_of,
    search_config,
    seed_option,
    starts_option,
    threads_option,
)
from disco_fuse.config import ClusterSpec
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.search import SearchEvent
from disco_fuse.tuning import Problem
from disco_fuse.tuning.importing import import_problem
from disco_fuse.tuning.tune import gain
from disco_fuse.whatif import Outcome, Point, points_of, run_points, takeovers

_HEADER = (
    "ranks",
    "network GB/s",
    "batch",
    "device",
    "step ms",
    "compute ms",
    "AllReduce ms",
    "exposed ms",
    "buckets",
    "bound ms",
    "best baseline",
    "gain %",
)
_WORDS = """

exposed: the part of AllReduce during which compute waits, step less compute and what messages slow
kernels by. gain: best baseline / step - 1."""


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers, separated by commas."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind
        self.name = f"{kind.__name__}s"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        try:
            return tuple(self._kind(word) for word in words)
        except ValueError:
            what = "whole numbers" if self._kind is int else "numbers"
            self.fail(f"{value!r}: {what} separated by commas are allowed", param, ctx)


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse whatif bert --world-size 2,8,64,512,4096 --json
  $ disco-fuse whatif gpt2_small --bandwidth 0.1,1,10 --cluster cluster-b --plot whatif.png
  $ disco-fuse whatif vgg19_small --batch 2,8 --device cluster-a,dgx-h100 --patience 200
"""
)
@optional_model_argument
@instead_of_model_option
@cluster_option
@click.option(
    "--world-size", "world_sizes", type=Numbers(int), default=(), metavar="N,...", help="Ranks."
)
@click.option(
    "--bandwidth",
    "bandwidths",
    type=Numbers(float),
    default=(),
    metavar="GB/S,...",
    help="Of the network between hosts, 1e9 bytes a second.",
)
@click.option(
    "--batch", "batches", type=Numbers(int), default=(), metavar="N,...", help="Samples of a rank."
)
@click.option(
    "--device",
    "devices",
    metavar="NAME,...",
    shell_complete=completion.many_clusters,
    help="Devices of these clusters (presets or TOML files) in the network of --cluster.",
)
@seed_option
@patience_option
@max_steps_option
@starts_option(2)
@threads_option
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw the curves, as .png, .svg or .pdf.",
)
@json_option
def whatif(
    model: str | None,
    problem_file: Path | None,
    cluster_name: str,
    world_sizes: tuple[int, ...],
    bandwidths: tuple[float, ...],
    batches: tuple[int, ...],
    devices: str | None,
    picture: Path | None,
    json_file: str | None,
    **changes: Any,
) -> None:
    """Tune MODEL at other world sizes, bandwidths, batches and devices: every combination of them.

    Each is searched anew, with the winner of the one before among the starts. Says where
    communication takes over: where the AllReduces of a step take longer than its kernels.
    """
    if (model is None) == (problem_file is None):
        raise click.UsageError("give either MODEL or --problem FILE")
    if problem_file is not None and batches:
        raise click.UsageError("--batch needs MODEL: a problem file holds the graph of one batch")
    points = _points(load_cluster(cluster_name), world_sizes, bandwidths, batches, devices)
    if len(points) < 2:
        raise click.UsageError("give at least two values to compare, as in --world-size 2,8")
    require_picture(picture)
    config = search_config("full", changes)
    begin = time.perf_counter()
    outcomes = _run(points, model, problem_file, config)
    seconds = time.perf_counter() - begin
    name = outcomes[0].result.problem.name
    found = takeovers(outcomes)
    if picture is not None:
        _plot(outcomes, f"{name} on {cluster_name}", picture)
    data = {
        "model": name,
        "cluster": cluster_name,
        "simulated": True,
        "seed": config.seed,
        "seconds": seconds,
        "points": [outcome.to_json() for outcome in outcomes],
        "takeover": [
            {
                "axis": one.axis,
                "others": one.others,
                "at": one.at,
                "communication_rules": one.communication_rules,
                "text": one.in_words(),
            }
            for one in found
        ],
    }
    if json_file != "-":
        click.echo(f"{name}, simulated on {cluster_name}, tuned anew in every row\n")
    show(_told([_HEADER, *map(_row, outcomes)]), data, json_file)
    if json_file != "-":
        click.echo("\n" + "\n".join(one.in_words() for one in found) + _WORDS)


def _points(
    cluster: ClusterSpec,
    world_sizes: Sequence[int],
    bandwidths: Sequence[float],
    batches: Sequence[int],
    devices: str | None,
) -> list[Point]:
    names = [] if devices is None else devices.split(",")
    try:
        return points_of(
            cluster,
            world_sizes=world_sizes,
            bandwidths_gbps=bandwidths,
            batches=batches,
            devices=[load_cluster(name).device for name in names],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _run(
    points: Sequence[Point], model: str | None, problem_file: Path | None, config: Any
) -> list[Outcome]:
    reference = None if model is None else reference_of(model)
    with tqdm(
        total=len(points), file=sys.stderr, desc="whatif", miniters=0, disable=None, leave=False
    ) as bar:

        def load(batch: int | None, library_convolutions: bool) -> Problem:
            if problem_file is not None:
                return Problem.load(problem_file)
            assert model is not None
            assert reference is not None
            bar.set_postfix_str("import")
            return import_problem(
                model, reference, library_convolutions=library_convolutions, batch=batch
            )

        def on_event(event: SearchEvent) -> None:
            bar.set_postfix_str(
                f"{event.num_candidates} candidates, best {event.makespan_us / 1e3:.2f} ms",
                refresh=False,
            )
            bar.update(0)  # draws again, but not more often than a bar does

        outcomes = []
        try:
            for outcome in run_points(points, load, config, on_event):
                outcomes.append(outcome)
                bar.update()
                if outcome.result.search.stop_reason == "interrupted":
                    raise click.Abort
        except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
            what = model or problem_file
            raise failure(what, error) from error
    return outcomes


def _told(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """The rows without the columns that say nothing."""
    kept = [i for i in range(len(_HEADER)) if any(row[i] != "-" for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def _row(outcome: Outcome) -> tuple[str, ...]:
    data = outcome.to_json()
    bandwidth = data["bandwidth_gbps"]
    return (
        str(data["world_size"]),
        "-" if bandwidth is None else f"{bandwidth:g}",
        "-" if data["batch"] is None else str(data["batch"]),
        data["device"],
        f"{data['step_us'] / 1e3:.2f}",
        f"{data['compute_us'] / 1e3:.2f}",
        f"{data['allreduce_us'] / 1e3:.2f}",
        f"{data['exposed_us'] / 1e3:.2f}",
        str(data["buckets"]),
        f"{data['lower_bound_us'] / 1e3:.2f}",
        data["best_baseline"],
        f"{100 * gain(data['best_baseline_us'], data['step_us']):.2f}",
    )


def _plot(outcomes: Sequence[Outcome], title: str, picture: Path) -> None:
    try:
        from disco_fuse.whatif.plot import plot_outcomes
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--plot needs {error.name}: install disco-fuse[plot]"
        ) from error
    try:
        plot_outcomes(outcomes, title, picture)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
