"""How results are printed or written, and how what went wrong is said."""

from __future__ import annotations

import contextlib
import errno
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from disco_fuse.errors import MissingInputError, WorkloadError
from disco_fuse.files import write_text

_PICTURES = (".png", ".svg", ".pdf")
_HEAD_BYTES = 1 << 16  # torch.profiler writes its traceEvents behind some facts of the machine


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
    missing: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return error.strerror
    finally:
        for folder in missing:  # it is made again when there is something to put into it
            with contextlib.suppress(OSError):  # it could not be made
                folder.rmdir()
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

    An input that is not there is a wrong call, and so is a function that is of no use.
    """
    text = str(error)
    if isinstance(error, MissingInputError | WorkloadError):
        return click.UsageError(text)
    if isinstance(error, OSError):
        return system_failure(error)
    if isinstance(error, ValueError):
        return click.ClickException(text if text.startswith(str(what)) else f"{what}: {text}")
    return click.ClickException(f"{what}: {type(error).__name__}: {text}")


def system_failure(error: OSError) -> click.ClickException:
    """What to raise when the system refused something: a name that cannot be is a wrong call."""
    what = "standard output" if error.filename is None else error.filename
    text = f"{what}: {error.strerror or error}"
    wrong_call = error.errno == errno.ENAMETOOLONG
    return click.UsageError(text) if wrong_call else click.ClickException(text)


def _writable(_context: click.Context, _parameter: click.Parameter, file: str | None) -> str | None:
    """FILE of ``json_option``, which must not be an argument that comes after a bare ``--json``.

    Raises
    ------
    click.UsageError
    """
    if file is None or file == "-":
        return file
    path = Path(file)
    require_file(path, "--json")
    if path.is_file() or not path.exists():
        if path.suffix != ".json":
            raise click.UsageError(f"--json: {file} must end in .json, or be '-'")
        if is_trace(path):
            raise click.UsageError(
                f"--json: {file} is a trace, and would be overwritten; if it is the input, write "
                "'--json -' before it"
            )
    return file


def is_trace(path: Path) -> bool:
    """Whether a file holds a trace in the Chrome format, of torch.profiler or of our own."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"traceEvents"' in file.read(_HEAD_BYTES)


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
        write_text(Path(json_file), text + "\n")
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
