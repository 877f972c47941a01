"""How results are printed or written, and how what went wrong is said."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from disco_fuse.errors import MissingInputError

_PICTURES = (".png", ".svg", ".pdf")


def require_file(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Raises
    ------
    click.UsageError
    """
    try:
        there = path.exists()
        with path.open("ab"):
            pass
        if not there:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.UsageError(f"{option}: cannot write {path}: {error.strerror}") from error


def require_folder(path: Path, option: str) -> None:
    """Refuse a folder that cannot be made or written to, before any work is done for it.

    Raises
    ------
    click.UsageError
    """
    reason = why_unwritable(path)
    if reason is not None:
        raise click.UsageError(f"{option}: cannot write to {path}: {reason}")


def why_unwritable(path: Path) -> str | None:
    """Why a folder cannot be made or written to; it is only there afterwards if it was before."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        for folder in missing:  # it is made again when there is something to put into it
            folder.rmdir()
    except OSError as error:
        return error.strerror
    return None


def require_picture(path: Path | None) -> None:
    """Refuse a picture in a format that is not offered, or that cannot be written; None is none.

    Raises
    ------
    click.UsageError
    """
    if path is None:
        return
    if path.suffix not in _PICTURES:
        raise click.UsageError(f"--plot: {path} must end in {', '.join(_PICTURES)}")
    require_file(path, "--plot")


def failure(what: object, error: Exception) -> click.ClickException:
    """What to raise when the work on ``what`` failed: files by their own name, others after it.

    An input that is not there is a wrong call.
    """
    text = str(error)
    if isinstance(error, MissingInputError):
        return click.UsageError(text)
    if isinstance(error, OSError) and error.filename is not None:
        return click.ClickException(f"{error.filename}: {error.strerror}")
    if isinstance(error, ValueError):
        return click.ClickException(text if text.startswith(str(what)) else f"{what}: {text}")
    return click.ClickException(f"{what}: {type(error).__name__}: {text}")


def _writable(_context: click.Context, _parameter: click.Parameter, file: str | None) -> str | None:
    if file not in (None, "-"):
        require_file(Path(file), "--json")
    return file


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    callback=_writable,
    help="Also write the result as JSON to FILE; without one, or with '-', print only that.",
)


def show(rows: Sequence[Sequence[str]], data: dict[str, Any], json_file: str | None) -> None:
    """Print a table and write ``data`` as ``json_option`` says.

    The first row is the header; a header alone is not printed.
    """
    text = json.dumps(data, indent=1)
    if json_file == "-":
        click.echo(text)
        return
    if json_file is not None:
        try:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {json_file}: {error}") from error
    if len(rows) > 1:
        click.echo(markdown_table(rows))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, those flush right that hold numbers, and '-' for none."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    columns = [{row[i] for row in rows[1:]} - {"-"} for i in range(len(widths))]
    numeric = [bool(cells) and all(map(_is_number, cells)) for cells in columns]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        + " |"
        for row in rows
    ]
    rule = (
        "-" * (width + 1) + ":" if right else "-" * (width + 2)
        for width, right in zip(widths, numeric, strict=True)
    )
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-").replace(",", "").replace(".", "", 1).isdigit()
