"""``disco-fuse build-all``: whether every model's step builds for GPUs, which need not be here."""

from __future__ import annotations

import multiprocessing
import queue
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse import zoo
from disco_fuse.cli.model_builds import Job, Run, build_model, code_digest
from disco_fuse.cli.output import json_option, show, why_unwritable
from disco_fuse.kernel_cache import user_cache_folder
from disco_fuse.kernels.cuda.compile import find_nvcc
from disco_fuse.target import GPU_ARCHS

_HEADER = ("model", "strategy", "target", "built", "failed", "new", "seconds")
_MAIN_ARCH = "sm_90"
_NUM_RANDOM = {"small": 10, "full": 2}
_POLL_S = 0.5


@click.command(
    name="build-all",
    epilog="""\b
Examples:
  $ disco-fuse build-all --small --json builds.json
  $ disco-fuse build-all --models bert,resnet50_small --targets sm_90
""",
)
@click.option("--models", metavar="NAMES", help="Models of the zoo, separated by commas.")
@click.option("--small", is_flag=True, help="Only models whose name ends in _small.")
@click.option(
    "--targets", default=",".join(reversed(GPU_ARCHS)), show_default=True, metavar="ARCHS"
)
@click.option(
    "--random",
    "num_random",
    type=click.IntRange(min=0),
    metavar="N",
    help="Random strategies of a model; by default 10 of a small one, 2 of a big one.",
)
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), metavar="N")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: user_cache_folder() / "build-all",
    show_default="build-all in the user's cache folder",
    help="Keeps what was built, so that a second call goes on where the first one ended.",
)
@json_option
def build_all(
    models: str | None,
    small: bool,
    targets: str,
    num_random: int | None,
    jobs: int,
    cache: Path,
    json_file: str | None,
) -> None:
    """Build training steps for GPUs without one, under many strategies.

    For sm_90: none, default, DisCoFuse's, and the random strategies. For the others: none,
    DisCoFuse's, and one random one. Every distinct kernel is scheduled
    once, and compiled once for each architecture, by nvcc where it is installed.
    """
    names = _models(models, small)
    archs = _archs(targets)
    reason = why_unwritable(cache)  # every process would fail at its first result
    if reason is not None:
        raise click.UsageError(f"cannot write to --cache {cache}: {reason}")
    if find_nvcc() is None:
        click.echo("nvcc is not installed: kernels are made as source, not compiled", err=True)
    work = {name: jobs_of(name, archs, num_random) for name in names}
    runs = _build(work, cache / code_digest(), jobs)
    show([_HEADER, *map(_cells, runs)], {"runs": runs}, json_file)
    failed = [run for run in runs if run["failed"]]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(runs)} steps have failures")


def jobs_of(name: str, archs: Sequence[str], num_random: int | None = None) -> list[Job]:
    """Strategies and architectures for a model."""
    if num_random is None:
        num_random = _NUM_RANDOM["small" if name.endswith("_small") else "full"]
    most = ["none", "default", "disco_fuse", *(f"random-{i}" for i in range(num_random))]
    few = ["none", "disco_fuse", *(f"random-{i}" for i in range(min(num_random, 1)))]
    return [(s, arch) for arch in archs for s in (most if arch == _MAIN_ARCH else few)]


def _models(given: str | None, small: bool) -> list[str]:
    names = list(zoo.models()) if given is None else given.split(",")
    for name in names:
        if name not in zoo.models():
            raise click.UsageError(
                f"no model {name!r} in the zoo; allowed: {', '.join(zoo.models())}"
            )
    return [name for name in names if name.endswith("_small")] if small else names


def _archs(given: str) -> list[str]:
    archs = given.split(",")
    for arch in archs:
        if arch not in GPU_ARCHS:
            raise click.UsageError(f"no GPU architecture {arch!r}; allowed: {', '.join(GPU_ARCHS)}")
    return archs


def _build(work: dict[str, list[Job]], cache: Path, jobs: int) -> list[Run]:
    """All runs, in the order of ``work``."""
    order = {
        (m, s, arch): i
        for i, (m, s, arch) in enumerate(
            (model, *job) for model, each in work.items() for job in each
        )
    }
    runs: dict[tuple[str, str, str], Run] = {}
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool,
        tqdm(total=len(order), file=sys.stderr, unit="step", disable=None) as bar,
    ):
        events = manager.Queue()
        models = {
            pool.submit(build_model, name, zoo.reference(name), each, cache, events.put): name
            for name, each in work.items()
        }
        for run in _reports(models, events, work):
            key = (run["model"], run["strategy"], run["target"])
            if key not in runs:
                bar.update()
            bar.set_description(run["model"])
            runs[key] = run
    return [runs[key] for key in order]


def _reports(
    models: dict[Future[None], str], events: Any, work: dict[str, list[Job]]
) -> Iterator[Run]:
    """Runs as they are done; a model that cannot be imported fails in all of its runs."""
    pending = set(models)
    while pending:
        done, pending = wait(pending, timeout=_POLL_S)
        while True:
            try:
                yield events.get_nowait()
            except queue.Empty:
                break
        for future in done:
            error = future.exception()
            if error is not None:
                reason = "".join(traceback.format_exception_only(error)).strip()[-400:]
                for strategy, arch in work[models[future]]:
                    yield Run(
                        model=models[future],
                        strategy=strategy,
                        target=arch,
                        built=0,
                        failed=1,
                        reasons=[f"model: {reason}"],
                        compiled=0,
                        launches=0,
                        seconds=0.0,
                    )


def _cells(run: Run) -> Sequence[str]:
    return (
        run["model"],
        run["strategy"],
        run["target"],
        str(run["built"]),
        str(run["failed"]),
        str(run["compiled"]),
        f"{run['seconds']:.1f}",
    )
