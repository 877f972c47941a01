"""How the commands that start ranks name their number and the links between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from disco_fuse.cli.references import ranks_option
from disco_fuse.launch import run
from disco_fuse.slow_link import rate_bytes_per_us, slow_link, why_unavailable

NO_LINK = "shared-memory"


def _countable(_context: click.Context, _parameter: click.Parameter, num_ranks: int) -> int:
    """Refuse more ranks than this machine has cores: they would measure one another."""
    most = os.cpu_count() or 1
    if num_ranks > most:
        raise click.UsageError(f"-n {num_ranks}: this machine has {most} cores for ranks")
    return num_ranks


measuring_ranks_option = ranks_option("Ranks.", _countable)
link_option = click.option(
    "--link",
    metavar="RATE",
    help="Links of that rate between the ranks, as 1gbit or 200mbit (Linux, as root).  [default: "
    "none, the ranks share memory]",
)


def run_folder(cache: Path, model: str, num_ranks: int, link: str | None) -> Path:
    """Where a command keeps what it made for these; the model's name may hold ``/`` and ``:``."""
    name = f"{model}-n{num_ranks}-{link or NO_LINK}"
    return cache / "".join(c if c.isalnum() or c in "_-" else "_" for c in name)


def check_link(link: str | None) -> None:
    """Refuse a rate that is none, and any where there can be no such links.

    Raises
    ------
    click.UsageError, click.ClickException
    """
    if link is None:
        return
    try:
        rate_bytes_per_us(link)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    reason = why_unavailable()
    if reason is not None:
        raise click.ClickException(f"no links of a given rate here: {reason}")


@contextlib.contextmanager
def started(num_ranks: int, link: str | None) -> Iterator[Callable[..., Any]]:
    """What starts the ranks, on links that are up meanwhile."""
    if link is None:
        yield run
        return
    with slow_link(num_ranks, link) as links:
        yield links.run
