"""What tells a process that it is a rank: the environment that its launcher made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

# Launcher -> the variable that holds its number of ranks. Slurm's is set in the tasks of srun, not
# in the batch script around them (SLURM_NTASKS is set in both).
_SIZES = {
    "Open MPI": "OMPI_COMM_WORLD_SIZE",
    "MPICH": "PMI_SIZE",
    "Slurm": "SLURM_STEP_NUM_TASKS",
}


def launched_by(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Who started this process as one of how many ranks; None if nobody did.

    The only task of a Slurm step may be an interactive shell, so it is no rank.
    """
    for launcher, variable in _SIZES.items():
        size = environment.get(variable, "")
        if size.isdigit() and (launcher != "Slurm" or int(size) > 1):
            return launcher, int(size)
    return None


def read_hostfile(path: Path) -> dict[str, int]:
    """Hosts and how many ranks each takes, in the format of Open MPI and MPICH.

    One host a line, with ``slots=N`` or ``:N`` behind it (1 by default); ``#`` begins a comment.

    Raises
    ------
    click.UsageError
        A line has another form, a host comes twice, or there is none.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].replace(":", " slots=").split()
        if not words:
            continue
        name, *rest = words
        slots = rest[0].removeprefix("slots=") if rest else "1"
        if len(rest) > 1 or not slots.isdigit() or int(slots) < 1 or name in hosts:
            raise click.UsageError(
                f"{path}, line {number}: {line.strip()!r}; allowed: one line for each host, "
                "'HOST', 'HOST slots=N' or 'HOST:N'"
            )
        hosts[name] = int(slots)
    if not hosts:
        raise click.UsageError(f"{path} names no host")
    return hosts
