"""How the commands name models, clusters and configurations, and what wrong names are answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from disco_fuse import zoo
from disco_fuse.cli import completion
from disco_fuse.config import PRESET_NAMES, ClusterSpec, SearchConfig
from disco_fuse.workload import load_function

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FUNCTIONS = "'package.module:function' or 'file.py:function'"

BENCH_MODELS = ("bert_mini", "resnet18_cifar", "byte_gpt", "rnnlm_small", "vgg_dense")
_BENCH_FILE = "disco_fuse.zoo.bench_models"

cluster_option = click.option(
    "--cluster",
    "cluster_name",
    default="cluster-a",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=completion.clusters,
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


model_argument = click.argument("model", shell_complete=completion.models)
optional_model_argument = click.argument("model", required=False, shell_complete=completion.models)
models_argument = click.argument("models", nargs=-1, shell_complete=completion.models)
instead_of_model_option = click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file of 'disco-fuse extract' instead of MODEL.",
)


preset_option = click.option(
    "--preset",
    type=click.Choice(PRESET_NAMES),
    default="full",
    show_default=True,
    help="Search configuration.",
)
patience_option = click.option(
    "--patience", type=int, metavar="N", help="Candidates without improvement."
)
seed_option = click.option("--seed", type=int, default=0, show_default=True)
max_steps_option = click.option(
    "--max-steps", type=int, metavar="N", help="End each search after N candidates."
)
threads_option = click.option(
    "--threads",
    "num_threads",
    type=int,
    metavar="N",
    help="Threads for them; the result does not depend on it.  [default: one per processor]",
)
# Fields of SearchConfig -> how the command line calls them.
_OPTIONS = {
    "seed": "--seed",
    "time_limit_s": "--time-limit",
    "max_steps": "--max-steps",
    "patience": "--patience",
    "memory_limit_bytes": "--memory-limit",
    "num_starts": "--starts",
    "num_threads": "--threads",
}


def ranks_option(
    text: str, callback: Callable[..., int] | None = None
) -> Callable[[_Command], _Command]:
    """``--ranks``, two by default; ``text`` says of what, ``callback`` may refuse some."""
    return click.option(
        "-n",
        "--ranks",
        "num_ranks",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help=text,
        callback=callback,
    )


def starts_option(default: int) -> Callable[[_Command], _Command]:
    """``--starts``, of which commands need a different number."""
    return click.option(
        "--starts",
        "num_starts",
        type=int,
        default=default,
        show_default=True,
        metavar="N",
        help="Independent searches, of which the best counts.",
    )


def search_options(command: _Command) -> _Command:
    """Adds ``preset`` and what else decides where a search goes and when it ends."""
    time_limit = click.option(
        "--time-limit",
        "time_limit_s",
        type=float,
        metavar="SECONDS",
        help="End the search after that.",
    )
    memory_limit = click.option(
        "--memory-limit",
        "memory_limit_bytes",
        type=int,
        metavar="BYTES",
        help="Strategies whose step needs more are illegal.",
    )
    rest = (max_steps_option, patience_option, memory_limit, starts_option(1), threads_option)
    for option in reversed((preset_option, seed_option, time_limit, *rest)):
        command = option(command)
    return command


def search_config(preset: str, changes: dict[str, Any]) -> SearchConfig:
    """A preset with what the user gave, by field; ``None`` stands for what was not given.

    Raises
    ------
    click.UsageError
        Something is out of range; named as the command line calls it.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    given.setdefault("num_threads", os.cpu_count() or 1)
    try:
        return SearchConfig.preset(preset, **given)
    except ValueError as error:
        text = str(error).replace("None or ", "")
        for field, option in _OPTIONS.items():
            text = text.replace(f"SearchConfig.{field}", option)
        raise click.UsageError(text) from error
