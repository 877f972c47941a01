"""``disco-fuse bench-kernels``: training steps beside PyTorch's, and kernels beside a copy."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.bench.kernels.model import build_model, model_row, time_synthetic
from disco_fuse.bench.kernels.peak import step_peak_bytes
from disco_fuse.bench.kernels.plans import DISCO_FUSE
from disco_fuse.bench.kernels.steps import SIDES, TORCH_EAGER, measure_steps
from disco_fuse.cli.apart import apart
from disco_fuse.cli.output import json_option, markdown_table, show
from disco_fuse.cli.references import function_reference
from disco_fuse.errors import UnsupportedOperatorError

MODELS = ("bert", "resnet18", "gpt2", "rnnlm")
_FAILURES = (
    UnsupportedOperatorError,
    ValueError,
    TypeError,
    ImportError,
    OSError,
    MemoryError,
    RuntimeError,
    BrokenProcessPool,
)
_HEADER = ("model", *(f"{side} ms" for side in SIDES), "eager", "compile", "peak MB", "torch MB")
_GROUP_HEADER = ("model", "group", "rule", "MiB", "ms", "copy ms", "share")
_GOAL = 0.7


@click.command(
    "bench-kernels",
    epilog="""\b
Examples:
  $ disco-fuse bench-kernels --json kernels.json
  $ disco-fuse bench-kernels --models gpt2,rnnlm --rounds 20 --no-groups
""",
)
@click.option(
    "--models",
    default=",".join(MODELS),
    show_default=True,
    metavar="NAMES",
    help="Of these, or functions that return a Workload, separated by commas.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=12, show_default=True, help="Of all sides."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For the rounds of a model; one is always made.",
)
@click.option("--compile/--no-compile", "with_compile", default=True, help="Also torch.compile.")
@click.option("--groups/--no-groups", "with_groups", default=True, help="Also single kernels.")
@json_option
def bench_kernels(
    models: str,
    rounds: int,
    time_limit: float,
    with_compile: bool,
    with_groups: bool,
    json_file: str | None,
) -> None:
    """Time training steps (loss, backward, optimizer) on one thread, all sides in turn.

    Sides: DisCoFuse's step for one rank (no AllReduce), the same ops unfused, FuseOps' groups with
    the same schedules, PyTorch eager, and torch.compile. Times are medians, the ratios are
    DisCoFuse's to PyTorch's. Memory is what a fresh process needs for its first step beyond
    parameters and optimizer state. Losses that are not PyTorch's are an error.
    """
    references = {name: _reference(name) for name in models.split(",")}
    with tempfile.TemporaryDirectory(prefix="df-") as folder:
        bench = _Bench(folder=Path(folder), rounds=rounds, time_limit_s=time_limit)
        for name, reference in references.items():
            bench.plan_model(name, reference, with_compile=with_compile, with_groups=with_groups)
        if with_groups:
            bench.plan_synthetic()
        bench.execute()
    rows, groups = list(bench.rows.values()), bench.groups
    show([_HEADER, *map(_cells, rows)], {"models": rows, "groups": groups}, json_file)
    missed = [group for group in groups if group["big"] and group["share"] < _GOAL]
    if missed and json_file != "-":
        click.echo(f"\ngroups over 64 MiB below {_GOAL:.0%} of a copy's bandwidth:\n")
        click.echo(markdown_table([_GROUP_HEADER, *map(_group_cells, missed)]))
    _report_problems(rows, bench.failed)


def _report_problems(rows: Sequence[dict[str, Any]], failed: dict[str, str]) -> None:
    """``click.ClickException`` when a model failed or has wrong losses."""
    problems = [f"{row['name']}: {problem}" for row in rows for problem in row["problems"]]
    for problem in problems:
        click.echo(problem, err=True)
    if failed or problems:
        names = [*failed, *(row["name"] for row in rows if row["problems"])]
        raise click.ClickException(f"failed: {', '.join(names)}")


def _reference(name: str) -> str:
    """The function that returns the workload called ``name``."""
    if ":" in name:
        return function_reference(name)
    if name not in MODELS:
        raise click.UsageError(
            f"no model {name!r}; allowed: {', '.join(MODELS)}, 'package.module:function', "
            "'file.py:function'"
        )
    return f"disco_fuse.zoo.medium:{name}"


@dataclass(kw_only=True)
class _Bench:
    """The tasks of one call, and what came of them."""

    folder: Path
    rounds: int
    time_limit_s: float
    tasks: list[tuple[str, str, Callable[[], None]]] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def plan_model(
        self, name: str, reference: str, *, with_compile: bool, with_groups: bool
    ) -> None:
        """Append build, steps, and memory of both sides."""
        folder = str(self.folder / f"model{len(self.tasks)}")
        database = str(self.folder / "profile.sqlite")
        built: dict[str, Any] = {}
        measured: dict[str, Any] = {}
        peaks: dict[str, int] = {}

        def build() -> None:
            built.update(apart(build_model, name, reference, folder, database, with_groups))
            self.groups += built["groups"]

        def steps() -> None:
            arguments = (reference, folder, self.rounds, self.time_limit_s, with_compile)
            measured.update(apart(measure_steps, *arguments))

        def memory() -> None:
            for side in (DISCO_FUSE, TORCH_EAGER):
                peaks[side] = apart(step_peak_bytes, side, reference, folder)
            self.rows[name] = model_row(name, built, measured, peaks)

        self.tasks += [(name, "build", build), (name, "steps", steps), (name, "memory", memory)]

    def plan_synthetic(self) -> None:
        """Append the groups of no model."""

        def measure() -> None:
            self.groups += apart(time_synthetic)

        self.tasks.append(("synthetic groups", "kernels", measure))

    def execute(self) -> None:
        """Make all tasks; a model that fails is left out of the others."""
        with tqdm(self.tasks, file=sys.stderr, unit="task", disable=None) as bar:
            for name, task, run in bar:
                bar.set_description(f"{name}: {task}")
                if name in self.failed:
                    continue
                try:
                    run()
                except _FAILURES as error:
                    self.failed[name] = f"{type(error).__name__}: {error}"
                    bar.write(f"{name}: {task}: {self.failed[name]}", file=sys.stderr)


def _cells(row: dict[str, Any]) -> Sequence[str]:
    ours = row["disco_fuse_ms"]
    times = [row[f"{side}_ms"] for side in SIDES]
    ratios = [row["torch_eager_ms"], row["torch_compile_ms"]]
    return (
        row["name"],
        *("-" if time is None else f"{time:.1f}" for time in times),
        *("-" if time is None else f"{ours / time:.2f}" for time in ratios),
        f"{row['peak_mb']:.0f}",
        f"{row['torch_peak_mb']:.0f}",
    )


def _group_cells(group: dict[str, Any]) -> Sequence[str]:
    return (
        group["model"],
        group["name"][:40],
        group["rule"],
        f"{group['bytes'] / 2**20:.0f}",
        f"{group['ms']:.2f}",
        f"{group['copy_ms']:.2f}",
        f"{group['share']:.2f}",
    )
