"""How the commands name a cost model, the folder of trained ones and what they learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from disco_fuse.cost_model.registry import NAMES, SHIPPED
from disco_fuse.dataset.packed import SHIPPED_SAMPLES

Command = TypeVar("Command", bound=Callable[..., Any])


def samples_argument(command: Command) -> Command:
    """Adds ``file``: measured groups to learn from, by default those of the package."""
    return click.argument(
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=SHIPPED_SAMPLES,
        required=False,
    )(command)


class Names(click.ParamType[tuple[str, ...]]):
    """Some of a few names, separated by commas."""

    name = "names"

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        names = value if isinstance(value, tuple) else tuple(str(value).split(","))
        for name in names:
            if name not in self._allowed:
                self.fail(f"{name!r} is none of {', '.join(self._allowed)}", param, ctx)
        return names


def models_option(allowed: Sequence[str]) -> Callable[[Command], Command]:
    """Adds ``models``: which of the allowed ones, all by default."""
    return click.option(
        "--models",
        type=Names(allowed),
        default=",".join(allowed),
        show_default=True,
        metavar="NAMES",
        help="Which ones.",
    )


def cost_model_options(command: Command) -> Command:
    """Adds ``cost_model`` (a name) and ``cost_models`` (a folder) to a command."""
    folder = click.option(
        "--cost-models",
        type=click.Path(file_okay=False, exists=True, path_type=Path),
        default=SHIPPED,
        metavar="DIR",
        help="Files of 'disco-fuse train-cost-model'.  [default: those of the package]",
    )
    name = click.option(
        "--cost-model",
        type=click.Choice(NAMES),
        default="roofline",
        show_default=True,
        help="What prices kernels; auto takes gnn, xgboost or roofline and says why.",
    )
    return name(folder(command))
