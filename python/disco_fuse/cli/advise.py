"""``disco-fuse advise``: bucket caps for somebody's own PyTorch DDP job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from disco_fuse.advise import Advice, CapResult, load_job
from disco_fuse.advise import advise as advise_job
from disco_fuse.advise.advice import LIST_SINCE, PLAIN_CAP_SINCE
from disco_fuse.advise.caps import NUM_CAPS
from disco_fuse.advise.scenarios import Scenario, safest
from disco_fuse.advise.verdict import AS_GOOD, Verdict
from disco_fuse.checks import MAX_US
from disco_fuse.cli.numbers import FiniteRange
from disco_fuse.cli.output import failure, json_option, markdown_table, show
from disco_fuse.cli.references import load_cluster, reference_of
from disco_fuse.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from disco_fuse.advise.from_model import ModelAdvice

_FAILURES = (UnsupportedOperatorError, ValueError, TypeError, ImportError, OSError, MemoryError)


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse advise rank0.json rank1.json.gz
  $ disco-fuse advise rank0.json --json advice.json
  $ disco-fuse advise bert_small --cluster cluster-a
"""
)
@click.argument("sources", nargs=-1, required=True, metavar="TRACE...|MODEL")
@click.option(
    "--cluster",
    "cluster_name",
    metavar="NAME|FILE",
    help="Advise for MODEL on that cluster (preset or TOML file), without a trace.",
)
@click.option(
    "--latency-us",
    type=FiniteRange(0, MAX_US),
    metavar="US",
    help="Latency of an AllReduce, where all messages of the job have one size.",
)
@json_option
def advise(
    sources: tuple[str, ...],
    cluster_name: str | None,
    latency_us: float | None,
    json_file: str | None,
) -> None:
    """Say which bucket caps make a PyTorch DDP job fastest.

    TRACE is a file that torch.profiler has exported (JSON, also .gz), of one rank or of several
    ranks of one run; profile at least five steps, with record_shapes=True. With --cluster, MODEL is
    a model of the zoo, or a function that returns a Workload, as 'package.module:function' or
    'file.py:function'; all times are then simulated.
    """
    if cluster_name is None:
        _advise_traces(sources, latency_us, json_file)
    else:
        if len(sources) != 1 or latency_us is not None:
            raise click.UsageError("--cluster takes one MODEL, and no --latency-us")
        _advise_model(sources[0], cluster_name, json_file)


def _advise_traces(paths: tuple[str, ...], latency_us: float | None, json_file: str | None) -> None:
    for path in paths:
        if not Path(path).is_file():
            hint = "; a MODEL needs --cluster" if ":" in path or "." not in path else ""
            raise click.UsageError(f"no file {path!r}{hint}")
    try:
        with tqdm(
            total=len(paths), file=sys.stderr, unit="trace", disable=None, leave=False
        ) as bar:
            job = load_job(paths, lambda _: bar.update())
        with _caps_bar() as bar:
            advice = advise_job(job, latency_us, lambda _: bar.update())
    except _FAILURES as error:
        raise click.ClickException(str(error)) from error
    if json_file != "-":
        click.echo(markdown_table(_figures(advice)) + "\n")
        if len(advice.ranks) > 1:
            click.echo(markdown_table(_rank_rows(advice)) + "\n")
    rows = _cap_rows(advice.caps) if advice.verdict else _scenario_rows(advice.scenarios)
    show(rows, advice.to_json(), json_file)
    if json_file != "-":
        said = _in_words(advice.verdict) if advice.verdict else _of_all(advice.scenarios)
        _conclude(said, advice.notes)


def _advise_model(model: str, cluster_name: str, json_file: str | None) -> None:
    # Importing a model needs tvm's frontends and torch, which traces do without.
    from disco_fuse.advise.from_model import advise_model
    from disco_fuse.tuning.importing import import_problem

    cluster = load_cluster(cluster_name)
    reference = reference_of(model)
    try:
        problem = import_problem(
            model, reference, library_convolutions=cluster.device.library_convolutions
        )
        with _caps_bar() as bar:
            advice = advise_model(problem, cluster, lambda _: bar.update())
    except _FAILURES as error:
        raise failure(model, error) from error
    if json_file != "-":
        click.echo(
            f"{model}, simulated on {cluster.name}, {cluster.world_size} ranks of "
            f"{cluster.device.name}\n"
        )
        click.echo(markdown_table(_model_figures(advice)) + "\n")
    show(_cap_rows(advice.caps), advice.to_json(), json_file)
    if json_file != "-":
        _conclude(_in_words(advice.verdict), advice.notes)


def _caps_bar() -> Any:
    return tqdm(total=NUM_CAPS, file=sys.stderr, unit="cap", desc="caps", disable=None, leave=False)


def _figures(advice: Advice) -> list[tuple[str, str]]:
    measured, line = advice.measured, advice.line
    rows = [
        ("figure", "value"),
        ("steps", f"{measured['steps']:.0f}"),
        ("step", f"{measured['step_us'] / 1e3:.2f} ms"),
        ("without waiting for messages, mean of ranks", f"{measured['compute_us'] / 1e3:.2f} ms"),
    ]
    if "kernels_us" in measured:
        rows.append(("kernels of the GPU", f"{measured['kernels_us'] / 1e3:.2f} ms"))
    buckets = ", ".join(f"{size:.1f}" for size in advice.bucket_mb[:8])
    more = "" if len(advice.bucket_mb) <= 8 else ", ..."
    rows += [
        ("AllReduce", f"{measured['allreduce_us'] / 1e3:.2f} ms"),
        ("exposed AllReduce", f"{measured['exposed_us'] / 1e3:.2f} ms"),
        ("buckets, MiB", f"{len(advice.bucket_mb)}: {buckets}{more}"),
    ]
    if line is not None:
        rows.append(_line_row(line.latency_us, line.us_per_byte))
    if advice.contention is not None:
        rows.append(("compute beside messages", f"{advice.contention:.2f} times as long"))
    if advice.verdict is not None and advice.bound_us is not None:
        rows += [
            ("replay of these buckets", f"{advice.verdict.present.step_us / 1e3:.2f} ms"),
            ("bound for all buckets", f"{advice.bound_us / 1e3:.2f} ms"),
        ]
    return rows


def _model_figures(advice: ModelAdvice) -> list[tuple[str, str]]:
    data = advice.to_json()
    return [
        ("figure", "value"),
        ("compute", f"{data['compute_us'] / 1e3:.2f} ms"),
        ("first gradient at", f"{data['first_gradient_us'] / 1e3:.2f} ms"),
        ("gradients", f"{data['gradient_mb']:.1f} MiB"),
        _line_row(data["latency_us"], data["us_per_byte"]),
        ("bound for all buckets", f"{data['bound_us'] / 1e3:.2f} ms"),
    ]


def _line_row(latency_us: float, us_per_byte: float) -> tuple[str, str]:
    rate = f"{1e-3 / us_per_byte:.3f} GB/s" if us_per_byte > 0 else "no limit seen"
    return "AllReduce line", f"{latency_us:.0f} us + {rate}"


def _rank_rows(advice: Advice) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("trace", "rank", "without waiting for messages, ms", "messages waited for later ranks, ms")
    ]
    for row in advice.ranks:
        rank = "-" if row["rank"] is None else str(row["rank"])
        times = (f"{row[name] / 1e3:.2f}" for name in ("compute_us", "waited_us"))
        rows.append((row["trace"], rank, *times))
    return rows


def _cap_rows(caps: Sequence[CapResult]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "bucket_cap_mb",
            "buckets",
            "ms",
            f"ms, torch before {PLAIN_CAP_SINCE}",
            "best first cap",
            "ms with list",
        )
    ]
    for cap in caps:
        times = (cap.step_us, cap.small_first_us, cap.list_us)
        plain, small_first, listed = (f"{time / 1e3:.2f}" for time in times)
        first = f"{cap.first_cap_mb:g}"
        rows.append((f"{cap.cap_mb:g}", str(cap.num_buckets), plain, small_first, first, listed))
    return rows


def _scenario_rows(scenarios: Sequence[Scenario]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("if an AllReduce has", "best bucket_cap_mb", "ms", "ms now", "level within 1%")
    ]
    for scenario in scenarios:
        line, verdict = scenario.line, scenario.verdict
        times = (verdict.fastest.step_us, verdict.present.step_us)
        best, now = (f"{time / 1e3:.2f}" for time in times)
        have = _line_row(line.latency_us, line.us_per_byte)[1]
        rows.append((have, f"{verdict.best.cap_mb:g}", best, now, verdict.level_in_words))
    return rows


def _of_all(scenarios: Sequence[Scenario]) -> list[str]:
    present = scenarios[0].verdict.present
    if all(scenario.verdict.keeps for scenario in scenarios):
        return [f"best: keep {present.name}: with none of these latencies a change is worth it"]
    cap_mb, behind = safest(scenarios)
    return [
        f"whatever the latency: bucket_cap_mb={cap_mb:g} is at most {100 * behind:.1f}% behind the "
        "best of each row"
    ]


def _in_words(verdict: Verdict) -> list[str]:
    present, fastest, best_list = verdict.present, verdict.fastest, verdict.best_list
    saved = (
        f"saves {verdict.saved_us / 1e3:.2f} ms ({100 * verdict.saved_us / present.step_us:.1f}%)"
    )
    now = f"{present.name}, predicted {present.step_us / 1e3:.2f} ms"
    cap = f"bucket_cap_mb={fastest.cap_mb:g}"
    if not verdict.keeps:
        said = [
            f"best: {cap}, predicted {fastest.step_us / 1e3:.2f} ms",
            f"now: {now}; {cap} {saved}",
        ]
    elif fastest.cap_mb in present.caps_mb or verdict.saved_us <= 0:
        said = [f"best: keep {now}: no cap is faster"]
    else:
        said = [f"best: keep {now}; the fastest, {cap}, {saved}, which is not worth a change"]
    said.append(
        f"level within {100 * AS_GOOD:.0f}% of the fastest: bucket_cap_mb={verdict.level_in_words}"
    )
    two = f"bucket_cap_mb_list=[{best_list.first_cap_mb:g}, {best_list.cap_mb:g}]"
    said.append(
        f"torch {LIST_SINCE} and later: "
        + (
            f"{two}, predicted {best_list.list_us / 1e3:.2f} ms"
            if verdict.list_gains
            else "a bucket_cap_mb_list gains nothing"
        )
    )
    return said


def _conclude(said: Sequence[str], notes: Sequence[str]) -> None:
    click.echo("\n" + "\n".join(said))
    if notes:
        click.echo("\n" + "\n".join(f"note: {note}" for note in notes))
