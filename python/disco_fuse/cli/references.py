"""How the commands name models, clusters and configurations, and what wrong names are answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from disco_fuse import zoo
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.workload import load_function

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FUNCTIONS = "'package.module:function' or 'file.py:function'"
MODEL_HELP = f"a model of the zoo, or a function that returns a Workload, as {_FUNCTIONS}"

BENCH_MODELS = ("bert_mini", "resnet18_cifar", "byte_gpt", "rnnlm_small", "vgg_dense")
_BENCH_FILE = "disco_fuse.zoo.bench_models"

cluster_option = click.option(
    "--cluster",
    "cluster_name",
    default="cluster-a",
    show_default=True,
    metavar="NAME|FILE",
    help="Preset or TOML file of the cluster to simulate.",
)


def reference_of(name: str) -> str:
    """The ``package.module:function`` or ``file.py:function`` of what the user called ``name``.

    Raises
    ------
    click.UsageError
        The zoo has no such model, or there is no such function: its module is imported.
    """
    if ":" in name:
        return function_reference(name)
    try:
        return zoo.reference(name)
    except ValueError as error:
        raise click.UsageError(f"{error}; or a function, as {_FUNCTIONS}") from error


def function_reference(name: str) -> str:
    """``name``, which must be that of a function; its module is imported, before any work is done.

    Raises
    ------
    click.UsageError
        It is of another form, or its module is not there or raises, or has no such function.
    """
    try:
        load_function(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return name


def measured_reference_of(name: str) -> str:
    """As :func:`reference_of`, for commands that measure steps: their own models come first.

    Raises
    ------
    click.UsageError
        Neither they nor the zoo have such a model.
    """
    if name in BENCH_MODELS:
        return f"{_BENCH_FILE}:{name}"
    try:
        return reference_of(name)
    except click.UsageError as error:
        own = ", ".join(BENCH_MODELS)
        raise click.UsageError(f"{error.message}; or for measuring {own}") from error


def load_cluster(name: str) -> ClusterSpec:
    """The preset or file of that name; ``click.UsageError`` if there is none or it is wrong."""
    try:
        return ClusterSpec.load(name)
    except (UnicodeDecodeError, OSError) as error:
        raise click.UsageError(f"{name}: cannot be read: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


instead_of_model_option = click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file of 'disco-fuse extract' instead of MODEL.",
)


def search_options(command: _Command) -> _Command:
    """Adds what decides where one search goes and when it ends."""
    seed = click.option("--seed", type=int, default=0, show_default=True)
    time_limit = click.option(
        "--time-limit", type=float, metavar="SECONDS", help="End the search after that."
    )
    max_steps = click.option(
        "--max-steps", type=int, metavar="N", help="End the search after N candidates."
    )
    patience = click.option(
        "--patience", type=int, metavar="N", help="Candidates without improvement."
    )
    return seed(time_limit(max_steps(patience(command))))


threads_option = click.option(
    "--threads",
    "num_threads",
    type=int,
    metavar="N",
    help="Threads for them; the result does not depend on it.  [default: one per processor]",
)


def search_config(preset: str, changes: dict[str, Any]) -> SearchConfig:
    """A preset with what the user gave; ``None`` stands for what was not given."""
    given = {name: value for name, value in changes.items() if value is not None}
    given.setdefault("num_threads", os.cpu_count() or 1)
    try:
        return SearchConfig.preset(preset, **given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
