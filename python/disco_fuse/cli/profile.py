"""``disco-fuse profile``: measure kernels, AllReduce and what they do to each other, once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse import zoo
from disco_fuse.cli.links import NO_LINK, check_link, link_option, measuring_ranks_option, started
from disco_fuse.cli.output import failure, json_option, markdown_table, show
from disco_fuse.cli.references import measured_reference_of, models_argument
from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.kernel_cache import user_cache_folder
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.profile.contention import PATTERNS, load_contention, profile_contention
from disco_fuse.profile.database import ProfileDatabase
from disco_fuse.profile.kernels import Progress, profile_key
from disco_fuse.profile.machine import profile_device, profile_model
from disco_fuse.profile.messages import (
    SIZES_BYTES,
    fit_costs,
    link_key,
    load_costs,
    profile_messages,
)
from disco_fuse.target import host_target
from disco_fuse.tuning.importing import import_step

Rows = list[tuple[str, ...]]

database_option = click.option(
    "--database",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where measured times are kept.  [default: profile.sqlite in the user's cache folder]",
)
_FAILURES = (UnsupportedOperatorError, ValueError, TypeError, RuntimeError, ImportError, OSError)


def database_path(given: Path | None) -> Path:
    """The file that the user named, or the one in the cache folder, which is made."""
    if given is not None:
        return given
    folder = user_cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "profile.sqlite"


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse profile bert_small
  $ disco-fuse profile --all-small -n 2 --link 1gbit --database profile.sqlite --json profile.json
"""
)
@models_argument
@click.option("--all-small", is_flag=True, help="The small models of the zoo.")
@measuring_ranks_option
@link_option
@click.option(
    "--largest",
    type=click.IntRange(min=SIZES_BYTES[2]),
    default=SIZES_BYTES[-1],
    show_default=True,
    metavar="BYTES",
    help="The largest AllReduce that is measured.",
)
@database_option
@json_option
def profile(
    models: tuple[str, ...],
    all_small: bool,
    num_ranks: int,
    link: str | None,
    largest: int,
    database: Path | None,
    json_file: str | None,
) -> None:
    """Measure this machine, the kernels of MODELS, and AllReduce between ranks.

    What the database holds is not measured again: it is kept by processor, target, versions of
    software and, for AllReduce, the ranks and their links. Everything is stored as soon as it is
    measured, so that nothing is lost when the command ends early; two may run at a time.
    """
    names = [*models, *(m for m in zoo.models() if all_small and m.endswith("_small"))]
    references = {name: measured_reference_of(name) for name in names}
    check_link(link)
    file = database_path(database)
    sizes = tuple(size for size in SIZES_BYTES if size <= largest)
    try:
        with ProfileDatabase(file) as opened:
            opened.require_writable()
            data = _device(opened)
            data["models"] = _models(opened, references)
            if num_ranks > 1:
                with started(num_ranks, link) as run_ranks:
                    data |= _between_ranks(opened, num_ranks, link or NO_LINK, sizes, run_ranks)
    except _FAILURES as error:
        raise failure(file, error) from error
    data["database"] = str(file)
    show(_summary(data), data, json_file)
    if json_file != "-":
        for rows in (_model_rows(data), _message_rows(data), _contention_rows(data)):
            if len(rows) > 1:
                click.echo("\n" + markdown_table(rows))


def _device(database: ProfileDatabase) -> dict[str, Any]:
    target = host_target()
    device, is_new = profile_device(target, database)
    return {
        "environment": profile_key(target),
        "device": {
            "launch_us": device.launch_us,
            "nest_us": device.nest_us,
            "peak_gflops": device.peak_gflops,
            "bandwidth_gbps": device.bandwidth_gbps,
        },
        "num_new": {"device": int(is_new)},
    }


def _models(database: ProfileDatabase, references: dict[str, str]) -> dict[str, Any]:
    """What was measured of each model, by name."""
    if references and library_available():
        load_library()
    target, result = host_target(), {}
    for name, reference in references.items():
        step = import_step(reference)
        with _bar(name, "kernel") as progress:
            found = profile_model(step.mod, target, database, progress)
        result[name] = {
            "num_kernels": found.num_kernels,
            "num_new": found.num_new,
            "varying": list(found.varying),
            "sum_of_kernels_us": float(found.op_times_us.sum()),
        }
    return result


def _between_ranks(
    database: ProfileDatabase,
    num_ranks: int,
    link: str,
    sizes: tuple[int, ...],
    run_ranks: Any,
) -> dict[str, Any]:
    target = host_target()
    environment = link_key(target, num_ranks, link)
    with _bar("AllReduce", "size") as progress:
        new_sizes = profile_messages(
            database, environment, num_ranks, sizes, run_ranks, progress=progress
        )
    with _bar("contention", "pattern") as progress:
        new_patterns = profile_contention(
            database, environment, target, num_ranks, run_ranks, progress=progress
        )
    costs = load_costs(database, environment, sizes)
    transport = fit_costs(costs)
    return {
        "link": {"environment": environment, "num_ranks": num_ranks, "rate": link},
        "num_new_sizes": new_sizes,
        "num_new_patterns": new_patterns,
        "allreduce": [
            {
                "num_bytes": size,
                "flight_us": flight.median_us,
                "p10_us": flight.p10_us,
                "p90_us": flight.p90_us,
                "stolen_us": stolen.median_us,
                "fitted_us": transport.allreduce.time_us(size),
            }
            for size, (flight, stolen) in costs.items()
        ],
        "fit": {**vars(transport.allreduce), "contention": transport.contention},
        "contention": {
            pattern: {
                "alone_us": alone.median_us,
                "beside_us": beside.median_us,
                "factor": beside.median_us / alone.median_us,
            }
            for pattern, (alone, beside) in load_contention(database, environment).items()
        },
    }


@contextmanager
def _bar(description: str, unit: str) -> Iterator[Progress]:
    """A bar with the time left, and the callback that moves it."""
    # disable=None: no bar unless standard error is a terminal.
    with tqdm(desc=description, unit=unit, file=sys.stderr, disable=None, leave=False) as bar:

        def update(done: int, total: int, name: str) -> None:
            if done < bar.n:  # the next part of the work counts from the start
                bar.reset()
            bar.total = total
            bar.set_postfix_str(name[:40], refresh=False)
            bar.update(done - bar.n)

        yield update


def _summary(data: dict[str, Any]) -> Rows:
    """What is new and what was there."""
    kernels = sum(model["num_kernels"] for model in data["models"].values())
    new = sum(model["num_new"] for model in data["models"].values())
    rows: Rows = [("what", "known", "measured now")]
    is_new = data["num_new"]["device"]
    rows.append(("device", str(1 - is_new), str(is_new)))
    rows.append(("kernels", str(kernels - new), str(new)))
    if "link" in data:
        num, new = len(data["allreduce"]), data["num_new_sizes"]
        rows.append((f"AllReduce sizes, {data['link']['rate']}", str(num - new), str(new)))
        new = data["num_new_patterns"]
        rows.append(("contention patterns", str(len(PATTERNS) - new), str(new)))
    return rows


def _model_rows(data: dict[str, Any]) -> Rows:
    rows: Rows = [("model", "kernels", "measured now", "varying", "all ops ms")]
    for name, model in data["models"].items():
        numbers = (model["num_kernels"], model["num_new"], len(model["varying"]))
        total_ms = f"{model['sum_of_kernels_us'] / 1e3:.2f}"
        rows.append((name, *map(str, numbers), total_ms))
    return rows


def _message_rows(data: dict[str, Any]) -> Rows:
    rows: Rows = [("AllReduce KiB", "us", "p10", "p90", "stolen us", "fitted us")]
    for row in data.get("allreduce", []):
        keys = ("flight_us", "p10_us", "p90_us", "stolen_us", "fitted_us")
        rows.append((str(row["num_bytes"] // 1024), *(f"{row[key]:.0f}" for key in keys)))
    return rows


def _contention_rows(data: dict[str, Any]) -> Rows:
    rows: Rows = [("pattern", "alone us", "beside AllReduce us", "factor")]
    for pattern, row in data.get("contention", {}).items():
        times = (f"{row['alone_us']:.1f}", f"{row['beside_us']:.1f}")
        rows.append((pattern, *times, f"{row['factor']:.2f}"))
    return rows
