"""What ``disco-fuse bench-search`` prints and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from disco_fuse.bench.quality import HEADER, Quality, missed
from disco_fuse.cli.output import markdown_table, show

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
Table = list[tuple[str, ...]]

_SPEED_HEADER = (
    "model",
    "ops",
    "seconds",
    "peak MB",
    "unseen candidates/s",
    "paper's search, seconds",
    "ms",
)


def show_report(
    runs_of: Runs,
    scaling: Sequence[Mapping[str, Any]],
    launches: Mapping[str, Mapping[str, int]],
    json_file: str | None,
) -> None:
    """Print all tables, or write them as JSON, or both, as ``json_option`` says.

    Parameters
    ----------
    runs_of : mapping
        Model -> results of its runs: "full" first, "paper" second, then any others.
    launches : mapping
        Model -> result of :func:`disco_fuse.bench.launches.count_launches`.
    """
    rows, qualities = [], {}
    for name, runs in runs_of.items():
        same = [run for run in runs if run["cluster"] == runs[0]["cluster"]]
        qualities[name] = Quality.of({**runs[0], "name": name}, same)
        rows.append(_model(name, qualities[name], runs, launches.get(name)))
    data = {
        "simulated": True,
        "models": rows,
        "scaling": list(scaling),
        "varied": _varied(runs_of),
        "sweep": _sweep(runs_of),
    }
    show([HEADER, *(quality.row() for quality in qualities.values())], data, json_file)
    if json_file == "-":
        return
    tables = (_speed(rows), _costs(data), _trends(data), _scaling(data), _launches(rows))
    for table in tables:
        if len(table) > 1:
            click.echo("\n" + markdown_table(table))
    for name, runs in runs_of.items():
        for line in missed(qualities[name], runs[0]):
            click.echo(f"\n{line}")


def _model(
    name: str,
    quality: Quality,
    runs: Sequence[Mapping[str, Any]],
    launches: Mapping[str, int] | None,
) -> dict[str, Any]:
    run, paper = runs[0], runs[1]
    row = {
        "name": name,
        "ops": run["ops"],
        "search_s": run["search_s"],
        "peak_rss_mb": run["peak_rss_mb"],
        "candidates_per_s": run["candidates_per_s"],
        "baselines": run["baselines"],
        "disco_fuse_us": run["disco_fuse_us"],
        "fo_us": quality.fo_us,
        "lower_bound_us": quality.bound_us,
        "best_baseline": quality.best_baseline,
        "emitted_order": run["emitted_order"],
        "list_schedule": run["list_schedule"],
        "found_us": run["found_us"],
        "gain": quality.gain,
        "largest_gain": quality.largest_gain,
        "share": quality.share,
        "stop_reason": run["stop_reason"],
        "exposed": run["exposed"],
        "paper": {
            key: paper[key] for key in ("search_s", "peak_rss_mb", "disco_fuse_us", "stop_reason")
        },
    }
    return row if launches is None else {**row, "launches": launches}


def _varied(runs_of: Runs) -> list[dict[str, Any]]:
    rows = []
    for name, runs in runs_of.items():
        for run in runs:
            if run["cluster"] != runs[0]["cluster"]:
                quality = Quality.of({**run, "name": name}, [])
                rows.append(
                    {
                        "name": name,
                        "costs": run["label"],
                        "gain": quality.gain,
                        "largest_gain": quality.largest_gain,
                        "share": quality.share,
                    }
                )
    return rows


def _sweep(runs_of: Runs) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "label": run["label"],
            "us": run["disco_fuse_us"],
            "search_s": run["search_s"],
            "candidates": run["candidates"],
        }
        for name, runs in runs_of.items()
        for run in runs[2:]
        if run["cluster"] == runs[0]["cluster"]
    ]


def _speed(rows: Sequence[Mapping[str, Any]]) -> Table:
    return [
        _SPEED_HEADER,
        *(
            (
                row["name"],
                str(row["ops"]),
                f"{row['search_s']:.1f}",
                f"{row['peak_rss_mb']:.0f}",
                f"{row['candidates_per_s']:.0f}",
                f"{row['paper']['search_s']:.1f}",
                f"{row['paper']['disco_fuse_us'] / 1e3:.2f}",
            )
            for row in rows
        ),
    ]


def _costs(data: Mapping[str, Any]) -> Table:
    return [
        ("model", "costs", "gain %", "largest %", "share %"),
        *(
            (
                row["name"],
                row["costs"],
                f"{100 * row['gain']:.1f}",
                f"{100 * row['largest_gain']:.1f}",
                f"{100 * row['share']:.1f}",
            )
            for row in data["varied"]
        ),
    ]


def _trends(data: Mapping[str, Any]) -> Table:
    return [
        ("model", "search", "ms", "seconds", "candidates"),
        *(
            (
                row["name"],
                row["label"],
                f"{row['us'] / 1e3:.2f}",
                f"{row['search_s']:.2f}",
                str(row["candidates"]),
            )
            for row in data["sweep"]
        ),
    ]


def _scaling(data: Mapping[str, Any]) -> Table:
    return [
        ("ops", "us a candidate"),
        *((str(row["ops"]), f"{row['us_per_candidate']:.1f}") for row in data["scaling"]),
    ]


def _launches(rows: Sequence[Mapping[str, Any]]) -> Table:
    counted = [(row["name"], row["launches"]) for row in rows if "launches" in row]
    return [
        ("model", "launches, simulated", "scheduled", "difference %"),
        *(
            (
                name,
                str(count["simulated"]),
                str(count["scheduled"]),
                f"{100 * (count['simulated'] / count['scheduled'] - 1):.1f}",
            )
            for name, count in counted
        ),
    ]
