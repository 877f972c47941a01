"""``disco-fuse ops``: the operators that the PyTorch front door accepts."""

from __future__ import annotations

import click

from disco_fuse.cli.output import json_option, show


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse ops
  $ disco-fuse ops --json ops.json
"""
)
@json_option
def ops(json_file: str | None) -> None:
    """List the verified ATen operators and what each computes.

    An operator is on this list only if a numeric test of ours compares its values and gradients
    with eager PyTorch; a training step with any other is refused by name.
    """
    try:
        from disco_fuse.frontend.torch.converters import CONVERTERS
        from disco_fuse.frontend.torch.verified import VERIFIED_OPERATORS
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error}; the PyTorch front door needs the extra 'torch'"
        ) from error
    operators = [
        {"name": name, "definition": _first_paragraph(CONVERTERS[name].convert.__doc__ or "")}
        for name in sorted(VERIFIED_OPERATORS)
    ]
    table = [("operator", "definition")]
    table += [(row["name"], row["definition"].replace("|", r"\|")) for row in operators]
    show(table, {"operators": operators}, json_file)


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())
