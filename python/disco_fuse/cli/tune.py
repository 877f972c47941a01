"""``disco-fuse tune``: search a model's strategy on a simulated cluster and say how good it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from disco_fuse.cli.cost_models import cost_model_options
from disco_fuse.cli.made_by import made_by
from disco_fuse.cli.output import (
    failure,
    json_option,
    markdown_table,
    require_file,
    require_folder,
    show,
)
from disco_fuse.cli.profile import database_option
from disco_fuse.cli.references import (
    cluster_option,
    instead_of_model_option,
    load_cluster,
    optional_model_argument,
    reference_of,
    search_config,
    search_options,
)
from disco_fuse.cli.tune_measured import (
    TunedHere,
    check_measurable,
    measure_top_option,
    measured_rows,
    tune_here,
)
from disco_fuse.cli.tune_watch import SearchWatch
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import choose_cost_model
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.files import write_text
from disco_fuse.report import render, report_data
from disco_fuse.tuning.choice import Choice
from disco_fuse.tuning.importing import import_problem
from disco_fuse.tuning.problem import Problem
from disco_fuse.tuning.tune import TuningResult
from disco_fuse.tuning.tune import tune as tune_problem

_WORDS = """

gain: best baseline / ours - 1. Found without the baselines: what the search reaches from the
unfused graph, before it also starts from the baselines. FO (full overlap): total compute or total
AllReduce of a strategy, the larger one; FO*: of the least totals that any strategy here has. Lower
bound: no strategy at all is faster. Share: (best baseline - ours) / (best baseline - limit), where
the limit is the larger of FO* and the bound."""


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse tune bert_small --max-steps 2000
  $ disco-fuse tune gpt2_small --preset paper --seed 1 --json result.json --max-steps 2000
  $ disco-fuse tune tutorials/quickstart.py:byte_gpt --cluster 1gbit-cpu --time-limit 1 -O plan
"""
)
@optional_model_argument
@instead_of_model_option
@cluster_option
@search_options
@cost_model_options
@measure_top_option
@database_option
@click.option("--no-warm-start", is_flag=True, help="Do not start from the baselines as well.")
@json_option
@click.option(
    "-O",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write strategy.json, problem.json.gz (its graph), timeline.trace.json (for Perfetto) and "
    "events.jsonl there.",
)
@click.option(
    "--events",
    "events_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Append what happens to FILE, for 'disco-fuse dashboard'.  [default: in DIR of -O]",
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a page about the result there: one HTML file that needs no network.",
)
def tune(
    model: str | None,
    problem_file: Path | None,
    cluster_name: str,
    preset: str,
    cost_model: str,
    cost_models: Path,
    num_best: int | None,
    database: Path | None,
    no_warm_start: bool,
    json_file: str | None,
    output: Path | None,
    events_file: Path | None,
    report_file: Path | None,
    **changes: Any,
) -> None:
    """Search op fusion and tensor fusion for MODEL and compare with every baseline.

    MODEL is a model of the zoo, or a function of yours, as 'package.module:function' or
    'file.py:function', that returns (model, example inputs, loss, optimizer), a dict of model,
    example_inputs, loss and optimizer, or a disco_fuse.workload.Workload. The example inputs end
    with the target of the loss; the optimizer is one of disco_fuse.frontend, or torch's SGD, Adam
    or AdamW.

    Nothing is built or run, unless with --measure-top: all times are simulated. Ctrl-C ends the
    search with the best strategy so far.
    """
    if (model is None) == (problem_file is None):
        raise click.UsageError("give either MODEL or --problem FILE")
    cluster = load_cluster(cluster_name)
    config = search_config(preset, changes)
    check_measurable(num_best, model, cluster)
    models, start = (cost_model, cost_models), not no_warm_start
    if output is not None:
        require_folder(output, "-O")
        events_file = events_file or output / "events.jsonl"
    elif events_file is not None:
        require_folder(events_file.parent, "--events")
    if report_file is not None:
        require_file(report_file, "--report")
    try:
        with SearchWatch(events_file, cluster, config, preset) as watch:
            if num_best is None:
                measured = None
                reason, result = _simulated(
                    model, problem_file, cluster, config, models, watch, warm_start=start
                )
            else:
                assert model is not None
                measured = tune_here(
                    model,
                    reference_of(model),
                    cluster,
                    config,
                    num_best,
                    models,
                    database,
                    watch,
                    warm_start=start,
                )
                reason, result = measured.reason, measured.measured.result
            watch.end(result)
        if output is not None:
            write_strategy(output, result, preset, measured)
        if report_file is not None:
            page = render(report_data(result, watch.events, preset, made_by()))
            write_text(report_file, page)
    except (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError) as error:
        what = model or problem_file
        raise failure(what, error) from error
    if result.search.stop_reason == "interrupted":
        click.echo("interrupted: this is the best so far", err=True)
    if json_file != "-":
        click.echo(_heading(result, reason))
    data = result.to_json()
    if measured is not None:
        data["measured"] = measured.measured.to_json()
    show(_baseline_rows(result), data, json_file)
    if json_file != "-":
        click.echo("\n" + markdown_table(_result_rows(result)) + _WORDS)
    if measured is not None and json_file != "-":
        click.echo("\n" + markdown_table(measured_rows(measured.measured)))
    if watch.failure is not None:
        raise click.ClickException(watch.failure)


def _simulated(
    model: str | None,
    problem_file: Path | None,
    cluster: ClusterSpec,
    config: SearchConfig,
    cost_model: tuple[str, Path],
    watch: SearchWatch,
    *,
    warm_start: bool,
) -> tuple[str, TuningResult]:
    """The search on a simulated cluster, and why its cost model is the one it is."""
    name, folder = cost_model
    priced = choose_cost_model(name, cluster.device, folder=folder)
    problem = _problem(model, problem_file, cluster.device.library_convolutions)
    watch.begin(problem)
    result = tune_problem(
        problem,
        cluster,
        config,
        warm_start=warm_start,
        on_event=watch,
        on_limits=watch.limits,
        cost_model=priced.model,
    )
    return priced.reason, result


def write_strategy(
    folder: Path, result: TuningResult, preset: str, measured: TunedHere | None = None
) -> None:
    """Write the strategy, how it was reached, its graph, and its timeline.

    ``replay(graph, edits, start, limits=config.limits)`` of ``strategy.json`` has its ``hash``,
    unless a baseline in TVM's own order was faster than what was found; there are no edits then.
    With ``measured`` the prices of the search are written too.
    """
    graph, found = result.problem.graph, result.search
    starts = ["unfused", *result.baselines]
    edits, start = [asdict(edit) for edit in found.edits], starts[found.start]
    if result.strategy != found.best:
        edits, start = [], result.best_baseline.name
    start_strategy = None if start == "unfused" else result.baselines[start].strategy
    choice = Choice(
        problem=result.problem,
        strategy=result.strategy,
        cluster=result.cluster,
        simulated_us=result.makespan_us,
    )
    more = {
        "preset": preset,
        "cost_model": result.cost_model.name,
        "seed": result.config.seed,
        "start": start,
        "start_strategy": start_strategy and json.loads(start_strategy.to_json()),
        "edits": edits,
    }
    if measured is not None:
        choice = measured.priced(choice)
    choice.save(folder, more)
    trace = result.timeline.to_chrome_trace(graph, result.strategy)
    write_text(folder / "timeline.trace.json", trace)


def _problem(model: str | None, file: Path | None, library_convolutions: bool) -> Problem:
    if file is not None:
        return Problem.load(file)
    assert model is not None
    reference = reference_of(model)
    return import_problem(model, reference, library_convolutions=library_convolutions)


def _heading(result: TuningResult, reason: str) -> str:
    problem, cluster = result.problem, result.cluster
    return (
        f"{problem.name} ({problem.graph.num_ops} ops), simulated on {cluster.name}, "
        f"{cluster.world_size} ranks of {cluster.device.name}\ncost model {reason}\n"
    )


def _baseline_rows(result: TuningResult) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("strategy", "ms", "list schedule ms", "TVM's order ms", "order gain %")
    ]
    for name, baseline in result.baselines.items():
        best = " (best baseline)" if baseline is result.best_baseline else ""
        rows.append(
            (
                name + best,
                f"{baseline.makespan_us / 1e3:.3f}",
                f"{baseline.list_us / 1e3:.3f}",
                f"{baseline.emitted_us / 1e3:.3f}",
                f"{100 * baseline.order_gain:.2f}",
            )
        )
    ours = f"{result.makespan_us / 1e3:.3f}"
    return [*rows, ("disco_fuse", ours, ours, "-", "-")]


def _result_rows(result: TuningResult) -> list[tuple[str, str]]:
    data = result.to_json()
    return [
        ("figure", "value"),
        (f"gain over {data['best_baseline']}", f"{100 * data['gain']:.2f} %"),
        ("found without the baselines", f"{data['found_us'] / 1e3:.3f} ms"),
        ("FO of this strategy", f"{data['fo_strategy_us'] / 1e3:.3f} ms"),
        ("FO* of all strategies here", f"{data['fo_us'] / 1e3:.3f} ms"),
        ("lower bound of every strategy", f"{data['lower_bound_us'] / 1e3:.3f} ms"),
        ("above the larger of these two", f"{100 * data['gap']:.2f} %"),
        ("share of the distance closed", f"{100 * data['share']:.1f} %"),
        ("AllReduce overlapped", f"{100 * data['overlap']:.1f} %"),
        ("peak memory", f"{data['peak_bytes'] / 1e6:.1f} MB"),
        ("candidates", f"{data['candidates']} ({data['unseen']} unseen)"),
        ("unseen candidates a second", f"{data['candidates_per_s']:.0f}"),
        ("kernels whose time was known", f"{100 * data['memo_hit_rate']:.1f} %"),
        ("search seconds", f"{data['search_s']:.2f}"),
        ("stopped by", str(data["stop_reason"])),
    ]
