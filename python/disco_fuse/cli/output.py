"""How results are printed: a Markdown table, or JSON to a file or to standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
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
    """A table with aligned columns, all but the first flush right if they hold numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [all(_is_number(row[i]) for row in rows[1:]) for i in range(len(widths))]
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
    return cell.replace(",", "").replace(".", "", 1).isdigit()
