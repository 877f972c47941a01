"""``disco-fuse bench-search``: quality and speed of the search on the models of the paper."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.bench.launches import count_launches
from disco_fuse.bench.paper import MODELS
from disco_fuse.bench.plan_runs import paper_run, sweep_runs, varied_runs
from disco_fuse.bench.runs import Run, RunStore
from disco_fuse.bench.scaling import SCALING_OPS, time_per_candidate
from disco_fuse.cli.apart import apart
from disco_fuse.cli.bench_search_report import show_report
from disco_fuse.cli.output import json_option
from disco_fuse.cli.references import (
    cluster_option,
    load_cluster,
    models_argument,
    patience_option,
    preset_option,
    reference_of,
    search_config,
    seed_option,
    starts_option,
    threads_option,
)
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.tuning.importing import import_and_save

_FAILURES = (
    UnsupportedOperatorError,
    ValueError,
    TypeError,
    ImportError,
    OSError,
    MemoryError,
    BrokenProcessPool,
)


@click.command(
    "bench-search",
    epilog="""\b
Examples:
  $ disco-fuse bench-search bert_small --time-limit 1
  $ disco-fuse bench-search --all --json search.json
  $ disco-fuse bench-search transformer --sweep --json -
""",
)
@models_argument
@click.option("--all", "every", is_flag=True, help="The six models, varied costs, and scaling.")
@json_option
@cluster_option
@preset_option
@seed_option
@click.option(
    "--time-limit", type=float, default=50.0, show_default=True, metavar="SECONDS", help="A search."
)
@patience_option
@starts_option(1)
@threads_option
@click.option("--vary", is_flag=True, help="Also with all costs 30% up and down.")
@click.option("--scaling", is_flag=True, help="Also time per candidate of long GPT-2s.")
@click.option("--sweep", is_flag=True, help="Also alpha, beta and methods, as in the paper.")
@click.option("--check-launches", is_flag=True, help="Count kernels of the winners, scheduled.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/bench-search"),
    show_default=True,
    metavar="DIR",
    help="Keeps graphs and results; what is there is not made again.",
)
@click.option("--fresh", is_flag=True, help="Empty the cache first.")
def bench_search(
    models: tuple[str, ...],
    every: bool,
    json_file: str | None,
    cluster_name: str,
    preset: str,
    seed: int,
    time_limit: float,
    patience: int | None,
    num_starts: int,
    num_threads: int | None,
    vary: bool,
    scaling: bool,
    sweep: bool,
    check_launches: bool,
    cache: Path,
    fresh: bool,
) -> None:
    """Search strategies of MODELS on a simulated cluster: how good, how fast, and why not better.

    MODELS are models of the zoo, or functions that return a Workload. Each model is imported in a
    process of its own, and so is each search, from the saved graph. Nothing is built or run.
    """
    if every == bool(models):
        raise click.UsageError(f"give models or --all; the paper's are {', '.join(MODELS)}")
    names = MODELS if every else models
    references = {name: reference_of(name) for name in names}
    cluster = load_cluster(cluster_name)
    changes = {
        "seed": seed,
        "time_limit_s": time_limit,
        "patience": patience,
        "num_starts": num_starts,
        "num_threads": num_threads,
    }
    config = search_config(preset, changes)
    if fresh:
        shutil.rmtree(cache, ignore_errors=True)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write {cache}: {error}") from error
    bench = _Bench(cache=cache, library_convolutions=cluster.device.library_convolutions)
    for name in names:
        file = str(bench.problem_file(name))
        full = Run(label="full", problem_file=file, cluster=cluster, config=config)
        paper = paper_run(file, cluster, seed)
        bench.plan(name, references[name], [full, paper])
        bench.plan(name, references[name], varied_runs(full) if vary or every else [])
        bench.plan(name, references[name], sweep_runs(paper) if sweep else [])
    if scaling or every:
        bench.plan_scaling(cluster, config)
    bench.execute(cluster_name)
    launches = bench.launches(references) if check_launches else {}
    done = {name: runs for name, runs in bench.runs.items() if name not in bench.failed}
    show_report(done, bench.scaling, launches, json_file)
    if bench.failed:
        raise click.ClickException(f"failed: {', '.join(bench.failed)}")


@dataclass(kw_only=True)
class _Bench:
    """The tasks of one call, and what came of them."""

    cache: Path
    library_convolutions: bool
    tasks: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def problem_file(self, name: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
        calls = "" if self.library_convolutions else ".loops"
        return self.cache / f"{safe}{calls}.json.gz"

    def plan(self, name: str, reference: str, runs: list[Run]) -> None:
        """Append an import, if the graph is not there, and searches."""
        store = RunStore(self.cache)
        if runs and not self.runs.get(name):
            self.runs[name] = []
            self.tasks.append((f"{name}: import", lambda: self._import(name, reference)))
        for run in runs:

            def search(run: Run = run) -> None:
                self.runs[name].append(store.execute(run))

            self.tasks.append((f"{name}: {run.label}", search))

    def plan_scaling(self, cluster: ClusterSpec, config: SearchConfig) -> None:
        """Append measurements of GPT-2 with ever more layers."""
        reference = reference_of("gpt2")
        self.tasks.append(("gpt2: import", lambda: self._import("gpt2", reference)))
        file = str(self.problem_file("gpt2"))
        for num_ops in SCALING_OPS:

            def measure(num_ops: int = num_ops) -> None:
                self.scaling.append(apart(time_per_candidate, file, num_ops, cluster, config))

            self.tasks.append((f"gpt2: {num_ops} ops", measure))

    def execute(self, cluster_name: str) -> None:
        """Make all tasks; a model that fails is left out of the others."""
        with tqdm(self.tasks, file=sys.stderr, unit="task", desc=cluster_name, disable=None) as bar:
            for title, task in bar:
                name = title.partition(": ")[0]
                bar.set_postfix_str(title)
                if name in self.failed:
                    continue
                try:
                    task()
                except _FAILURES as error:
                    self.failed[name] = f"{type(error).__name__}: {error}"
                    bar.write(f"{title}: {self.failed[name]}", file=sys.stderr)

    def launches(self, references: dict[str, str]) -> dict[str, dict[str, int]]:
        """Per model, launches as simulated and after scheduling."""
        result = {}
        for name, runs in self.runs.items():
            if name in self.failed:
                continue
            run = runs[0]
            result[name] = apart(
                count_launches,
                references[name],
                self.library_convolutions,
                run["digest"],
                run["strategy"],
            )
        return result

    def _import(self, name: str, reference: str) -> None:
        file = self.problem_file(name)
        if not file.exists():
            apart(import_and_save, name, reference, self.library_convolutions, str(file))
