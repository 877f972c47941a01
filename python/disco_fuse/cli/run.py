"""``disco-fuse run``: train a plan on ranks, started here, by mpirun or by srun."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from disco_fuse import launch
from disco_fuse.cli.output import json_option, require_file, require_folder
from disco_fuse.cli.rank_environment import launched_by, read_hostfile
from disco_fuse.cli.run_rank import RunOptions, run_rank

_FOR_THE_LAUNCHER = ("hostfile", "oversubscribe", "as_rank")


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse run plans/disco_fuse -n 2 --steps 20
  $ disco-fuse run plans/disco_fuse -n 8 --hostfile hosts --data train.py:batches --checkpoints ckpt
  $ mpirun -n 2 disco-fuse run plans/disco_fuse --steps 20
  $ disco-fuse run plans/disco_fuse -n 2 --trace step.trace.json    # open it with Perfetto

\b
Exit status: 0 done; 1 failed; 2 wrong call; 143 ended by SIGTERM, after a checkpoint.
"""
)
@click.argument("plan", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-n",
    "--ranks",
    "num_ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of ranks, 1 by default; under mpirun or srun it must be theirs.",
)
@click.option(
    "--hostfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines 'HOST slots=N'; this host alone if absent.",
)
@click.option("--oversubscribe", is_flag=True, help="Allow more ranks than cores.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Train until so many are done, those before a resume included.",
)
@click.option(
    "--data",
    metavar="FUNCTION",
    help="'package.module:function' or 'file.py:function' from (rank, world size) to an "
    "iterator of batches; made-up batches if absent.",
)
@click.option(
    "--values",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Initial state (npz, by name); made up if absent.",
)
@click.option("--learning-rate", type=float, metavar="RATE", help="Instead of the state's.")
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write checkpoints there, and resume from the newest whole one.",
)
@click.option(
    "--every",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="A checkpoint every N steps; by default at the end only.",
)
@click.option(
    "--on-nan",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="When a loss is not finite on any rank.",
)
@click.option(
    "-O",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write events-rank-R.jsonl there.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Record every kernel, report where the time goes, and write the last step of all ranks "
    "in the Chrome trace format.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is made up."
)
@click.option(
    "--timeout",
    type=float,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="End the job when a bucket or a rank does not move for so long.",
)
@click.option(
    "--start-timeout",
    type=float,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="End the job when not all ranks are there by then.",
)
@click.option("--as-rank", is_flag=True, hidden=True)
@json_option
@click.pass_context
def run(context: click.Context, /, num_ranks: int | None, **options: Any) -> None:
    """Train PLAN, a folder of write_plan, on -n ranks, or as a rank that mpirun or srun started.

    A plan folder is code, and is run: give only one that you would run as a program. Every rank
    checks before the first step that its machine has what the plan needs, and that all ranks have
    the same plan.

    SIGTERM to any rank, or to this program, lets all ranks finish their step, write a checkpoint
    and end. mpirun itself gives its ranks one second when it gets SIGTERM: send it SIGUSR1.
    """
    hostfile, oversubscribe, as_rank = (options.pop(name) for name in _FOR_THE_LAUNCHER)
    _check_numbers(options)
    launcher = launched_by(os.environ)
    if launcher is not None:
        name, size = launcher
        if num_ranks is not None and num_ranks != size:
            raise click.UsageError(f"-n is {num_ranks}, but {name} started {size} ranks")
        if hostfile is not None and not as_rank:
            raise click.UsageError(f"--hostfile is for starting ranks, but {name} started this one")
        num_ranks = size
    elif as_rank:
        raise click.UsageError("--as-rank is for ranks that mpirun started, and it started none")
    num_ranks = num_ranks or 1
    if not as_rank:
        _check_plan(options)
    if launcher is None:  # ranks that try the same places at once would be in each other's way
        _check_places(options)
    hosts = None if hostfile is None or as_rank else read_hostfile(hostfile)
    if hosts is not None and num_ranks == 1:
        raise click.UsageError("--hostfile is for two ranks (-n 2) or more: one runs on this host")
    if launcher is None and num_ranks > 1:
        sys.exit(_start(context, num_ranks, hosts, oversubscribe))
    sys.exit(run_rank(RunOptions(**options), num_ranks))


def _check_plan(options: dict[str, Any]) -> None:
    """Usage errors for a folder that holds no plan, and for checkpoints that go nowhere."""
    if not (options["plan"] / "plan.json").is_file():
        hint = ""
        if (options["plan"] / "strategy.json").is_file():
            hint = "; it holds a strategy of 'disco-fuse tune': 'disco-fuse build' makes plans"
        raise click.UsageError(f"{options['plan']} holds no plan.json{hint}")
    if options["every"] and options["checkpoints"] is None:
        raise click.UsageError("--every needs --checkpoints")


def _check_places(options: dict[str, Any]) -> None:
    """Usage errors for what cannot be written, before the training."""
    for name, option in (("output", "-O"), ("checkpoints", "--checkpoints")):
        if options[name] is not None:
            require_folder(options[name], option)
    trace = options["trace"]
    if trace is not None:
        require_folder(trace.parent, "--trace")
        if trace.parent.exists():
            require_file(trace, "--trace")


def _check_numbers(options: dict[str, Any]) -> None:
    rate = options["learning_rate"]
    if rate is not None and not 0 <= rate < float("inf"):
        raise click.UsageError(f"--learning-rate is {rate}; allowed: finite, 0 or above")
    for name in ("timeout", "start_timeout"):
        if not 0 < options[name] < float("inf"):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is {options[name]}; allowed: above 0"
            )


def _start(
    context: click.Context, num_ranks: int, hosts: dict[str, int] | None, oversubscribe: bool
) -> int:
    """Start this same command on every rank; its exit status."""
    arguments = ["-m", "disco_fuse.cli", "run", *_arguments(context), "--as-rank"]
    try:
        finished = launch.run(
            arguments, num_ranks, hosts=hosts, oversubscribe=oversubscribe, pass_on_sigterm=True
        )
    except ValueError as error:
        text = str(error).replace("oversubscribe=True", "--oversubscribe")
        raise click.UsageError(text.replace("num_ranks", "-n")) from error
    except (FileNotFoundError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    return finished.returncode


def _arguments(context: click.Context) -> list[str]:
    """What the user gave, but for what concerns the launcher alone."""
    words: list[str] = []
    for parameter in context.command.params:
        assert parameter.name is not None
        value = context.params.get(parameter.name)
        if parameter.name in _FOR_THE_LAUNCHER or value is None:
            continue
        words += [str(value)] if parameter.name == "plan" else [parameter.opts[-1], str(value)]
    return words
