"""``disco-fuse graphs``: what importing the models costs, and how big their graphs are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool

import click
from tqdm import tqdm

from disco_fuse import zoo
from disco_fuse.cli import completion
from disco_fuse.cli.apart import apart
from disco_fuse.cli.graph_facts import GraphFacts, graph_facts
from disco_fuse.cli.output import json_option, show
from disco_fuse.cli.references import reference_of
from disco_fuse.errors import UnsupportedOperatorError

_HEADER = ("model", "seconds", "peak MB", "ops", "gradients", "gradient MB")


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse graphs bert_small
  $ disco-fuse graphs tutorials/quickstart.py:byte_gpt --json -
  $ disco-fuse graphs --all --json graphs.json
"""
)
@click.argument("names", nargs=-1, shell_complete=completion.models)
@click.option("--all", "every", is_flag=True, help="All models of the zoo.")
@json_option
def graphs(names: tuple[str, ...], every: bool, json_file: str | None) -> None:
    """Import training steps and show seconds, peak memory, ops, and gradients to be averaged.

    NAMES are what 'disco-fuse tune' takes for MODEL. Each is imported in a process of its own;
    seconds are from the model to the lowered module, MB are 10**6 bytes.
    """
    if every == bool(names):
        raise click.UsageError(f"give names or --all; names are {', '.join(zoo.models())}")
    references = {name: reference_of(name) for name in (zoo.models() if every else names)}
    rows, failed = _measure_all(references)
    show([_HEADER, *map(_cells, rows)], {"models": rows}, json_file)
    if failed:
        raise click.ClickException(
            f"{len(failed)} of {len(references)} failed: {', '.join(failed)}"
        )


def _measure_all(references: dict[str, str]) -> tuple[list[GraphFacts], list[str]]:
    """Facts of those that can be imported, and the names of the others."""
    rows, failed = [], []
    # disable=None: no bar unless standard error is a terminal.
    with tqdm(total=len(references), file=sys.stderr, unit="model", disable=None) as bar:
        for name, reference in references.items():
            bar.set_description(name)
            try:
                rows.append(_in_own_process(name, reference))
            except (
                UnsupportedOperatorError,
                ValueError,
                TypeError,
                ImportError,
                MemoryError,
            ) as error:
                failed.append(name)
                bar.write(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            except BrokenProcessPool:
                failed.append(name)
                bar.write(f"{name}: the process died, perhaps out of memory", file=sys.stderr)
            bar.update()
    return rows, failed


def _in_own_process(name: str, reference: str) -> GraphFacts:
    return apart(graph_facts, name, reference)


def _cells(row: GraphFacts) -> Sequence[str]:
    return (
        row["name"],
        f"{row['import_s']:.1f}",
        f"{row['peak_rss_mb']:.0f}",
        str(row["ops"]),
        str(row["gradients"]),
        f"{row['bytes'] / 1e6:.1f}",
    )
