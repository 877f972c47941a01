"""``disco-fuse bench``: measured steps on links of a given rate."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse import __version__
from disco_fuse.cli.apart import apart
from disco_fuse.cli.cost_models import cost_model_options
from disco_fuse.cli.links import (
    NO_LINK,
    check_link,
    link_option,
    measuring_ranks_option,
    run_folder,
    started,
)
from disco_fuse.cli.output import json_option, show
from disco_fuse.cli.references import BENCH_MODELS as MODELS
from disco_fuse.cli.references import measured_reference_of, models_argument
from disco_fuse.compare.link_bench import LinkBench
from disco_fuse.compare.preparation import CostModelChoice
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.files import write_text

HEADER = (
    "model",
    "best baseline",
    "ms",
    "best ddp",
    "ms",
    "disco_fuse ms",
    "to baseline",
    "to ddp",
    "FO_cpu ms",
    "to FO_cpu",
    "FO ms",
    "exposed ms",
    "simulated",
    "step simulated",
    "bound ms",
    "overhead ms",
)
_FAILURES = (
    UnsupportedOperatorError,
    ValueError,
    TypeError,
    RuntimeError,
    ImportError,
    OSError,
    MemoryError,
    BrokenProcessPool,
)


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse bench byte_gpt -n 2 --link 1gbit
  $ disco-fuse bench --all --link 1gbit --json bench.json
"""
)
@models_argument
@click.option("--all", "every", is_flag=True, help=f"The models {', '.join(MODELS)}.")
@measuring_ranks_option
@link_option
@click.option("--steps", "num_steps", type=int, default=20, show_default=True, metavar="N")
@cost_model_options
@json_option
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    metavar="DIR",
    help="Keeps plans and results; a model that is there is not measured again.",
)
@click.option("--fresh", is_flag=True, help="Empty the cache first.")
def bench(
    models: tuple[str, ...],
    every: bool,
    num_ranks: int,
    link: str | None,
    num_steps: int,
    cost_model: str,
    cost_models: Path,
    json_file: str | None,
    cache: Path,
    fresh: bool,
) -> None:
    """Measure steps of MODELS: baselines, DisCoFuse and PyTorch DDP, in turn, on the same ranks.

    MODELS are those of --all, models of the zoo, or functions that return a Workload.
    """
    if every == bool(models):
        raise click.UsageError(f"give models or --all; those are {', '.join(MODELS)}")
    if num_steps < 1 or num_ranks < 2:
        raise click.UsageError(f"--steps {num_steps} must be at least 1, -n {num_ranks} at least 2")
    names = MODELS if every else models
    references = {name: measured_reference_of(name) for name in names}
    check_link(link)
    if fresh:
        shutil.rmtree(cache, ignore_errors=True)
    runs, failed = [], []
    with started(num_ranks, link) as run_ranks:
        for name, reference in tqdm(
            references.items(), file=sys.stderr, unit="model", disable=None
        ):
            what = LinkBench(
                model=name,
                reference=reference,
                num_ranks=num_ranks,
                link=link or NO_LINK,
                num_steps=num_steps,
                folder=run_folder(cache, name, num_ranks, link),
                run_ranks=run_ranks,
                cost_model=CostModelChoice(name=cost_model, folder=cost_models),
            )
            try:
                runs.append(_measured(what))
            except _FAILURES as error:
                tqdm.write(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed.append(name)
    show(table(runs), {"runs": runs}, json_file)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def _measured(what: LinkBench) -> dict[str, Any]:
    """The result in the cache, or a new one, made in a process of its own."""
    model = (what.cost_model.name, str(what.cost_model.folder.resolve()))
    key = json.dumps(
        [__version__, what.reference, what.num_ranks, what.link, what.num_steps, *model]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    file = what.folder / f"result-{digest}.json"
    if not file.exists():
        result = apart(_run, what)
        write_text(file, json.dumps(result))  # never half a file, whenever this is stopped
    read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return read


def _run(what: LinkBench) -> dict[str, Any]:
    def say(text: str) -> None:
        if sys.stderr.isatty():
            tqdm.write(f"{what.model}: {text}", file=sys.stderr)

    return what.run(say)


def table(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of the report: milliseconds, and the ratios that matter."""
    rows = [list(HEADER)]
    for run_ in runs:
        times = run_["step_time_ms"]
        ddp = {name: t for name, t in times.items() if name.startswith("pytorch") and t is not None}
        best_ddp = min(ddp, key=lambda name: ddp[name])
        ours, best = times["disco_fuse"], times[run_["best_baseline"]]
        rows.append(
            [
                run_["model"],
                run_["best_baseline"],
                f"{best:.1f}",
                best_ddp.removeprefix("pytorch_ddp_"),
                f"{ddp[best_ddp]:.1f}",
                f"{ours:.1f}",
                f"{ours / best:.3f}",
                f"{ours / ddp[best_ddp]:.3f}",
                f"{run_['fo_cpu_ms']:.1f}",
                f"{ours / run_['fo_cpu_ms']:.3f}",
                f"{run_['fo_ms']:.1f}",
                f"{run_['exposed_ms']:.1f}",
                f"{run_['simulated_exposed_ms']:.1f}",
                f"{run_['simulated_ms']['disco_fuse']:.1f}",
                f"{run_['lower_bound_ms']:.1f}",
                f"{run_['overhead_ms']:.1f}",
            ]
        )
    return rows
