"""``disco-fuse fidelity``: simulated against measured steps of many strategies of one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli.cost_models import cost_model_options
from disco_fuse.cli.links import (
    NO_LINK,
    check_link,
    link_option,
    measuring_ranks_option,
    run_folder,
    started,
)
from disco_fuse.cli.output import failure, json_option, markdown_table, show
from disco_fuse.cli.references import measured_reference_of, model_argument
from disco_fuse.compare.fidelity import Fidelity
from disco_fuse.compare.preparation import CostModelChoice
from disco_fuse.errors import UnsupportedOperatorError

_FAILURES = (UnsupportedOperatorError, ValueError, TypeError, RuntimeError, ImportError, OSError)


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse fidelity bert_small --strategies 20 --json fidelity.json
  $ disco-fuse fidelity byte_gpt --strategies 20 --link 1gbit --cost-model auto
"""
)
@model_argument
@click.option(
    "--strategies",
    "num_strategies",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    metavar="N",
    help="The best, baselines, strategies near the best, random ones.",
)
@measuring_ranks_option
@link_option
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(min=5),
    default=20,
    show_default=True,
    metavar="N",
    help="Measured steps of each.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random strategies.")
@cost_model_options
@json_option
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/fidelity"),
    show_default=True,
    metavar="DIR",
    help="Keeps plans and profiles.",
)
def fidelity(
    model: str,
    num_strategies: int,
    num_ranks: int,
    link: str | None,
    num_steps: int,
    seed: int,
    cost_model: str,
    cost_models: Path,
    json_file: str | None,
    cache: Path,
) -> None:
    """Run strategies of MODEL on this machine, in turn, and compare with their simulation.

    MODEL is a model of the zoo or of 'disco-fuse bench', or a function that returns a Workload.
    Kendall's tau leaves out pairs of strategies whose measured order is not certain.
    """
    reference = measured_reference_of(model)
    check_link(link)
    # disable=None: no bar unless standard error is a terminal.
    with tqdm(desc=model, file=sys.stderr, unit="stage", disable=None, leave=False) as bar:

        def say(text: str) -> None:
            bar.set_postfix_str(text)
            bar.update()

        try:
            with started(num_ranks, link) as run_ranks:
                data = Fidelity(
                    model=model,
                    reference=reference,
                    num_ranks=num_ranks,
                    link=link or NO_LINK,
                    num_strategies=num_strategies,
                    num_steps=num_steps,
                    folder=run_folder(cache, model, num_ranks, link),
                    run_ranks=run_ranks,
                    cost_model=CostModelChoice(name=cost_model, folder=cost_models),
                    seed=seed,
                ).run(say)
        except _FAILURES as error:
            raise failure(model, error) from error
    if json_file != "-":
        click.echo(f"{model}, {num_ranks} ranks, {data['link']}; cost model {data['cost_model']}\n")
    show(_strategy_rows(data), data, json_file)
    if json_file != "-":
        click.echo("\n" + markdown_table(_summary_rows(data)))
        for strategy, items in data["differences"].items():
            click.echo(f"\n{strategy}, where it differs:\n")
            click.echo(markdown_table(_difference_rows(items)))


def _strategy_rows(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("strategy", "simulated ms", "step ms", "p10", "p90", "error %"),
    ]
    for row in sorted(data["strategies"], key=lambda row: row["step_ms"]):
        numbers = (row["simulated_ms"], row["step_ms"], row["p10"], row["p90"])
        rows.append((row["name"], *(f"{x:.3f}" for x in numbers), f"{100 * row['error']:+.1f}"))
    return rows


def _summary_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    tau = data["kendall_tau"]
    return [
        ("figure", "value"),
        ("mean error", f"{100 * data['mean_error']:.1f} %"),
        ("largest error", f"{100 * data['max_error']:.1f} %"),
        ("Kendall's tau", "-" if tau is None else f"{tau:.3f}"),
        ("pairs", f"{data['num_pairs']}"),
        ("pairs left out", f"{data['num_pairs_left_out']}"),
        ("strategies within 15% of the fastest", f"{data['num_near_best']}"),
    ]


def _difference_rows(items: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("part", "simulated us", "measured us", "difference us")]
    for item in items:
        simulated, measured = item["simulated_us"], item["measured_us"]
        rows.append(
            (item["what"], f"{simulated:.1f}", f"{measured:.1f}", f"{simulated - measured:+.1f}")
        )
    return rows
