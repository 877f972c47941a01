"""``disco-fuse tune --measure-top``: groups are measured on this machine on the way."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from disco_fuse.cli.profile import database_path
from disco_fuse.cli.tune_watch import SearchWatch
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import Group, choose_cost_model
from disco_fuse.dataset.measured_search import MeasuredTuning, tune_measured
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.profile import choose_generated
from disco_fuse.profile.database import ProfileDatabase
from disco_fuse.profile.kernels import environment_key
from disco_fuse.profile.machine import profile_device, profile_model
from disco_fuse.target import host_target
from disco_fuse.tuning.choice import Choice
from disco_fuse.tuning.importing import import_step
from disco_fuse.tuning.problem import Problem


@dataclass(frozen=True, kw_only=True)
class TunedHere:
    """What came of a search on measured costs, and what they are.

    Attributes
    ----------
    reason : str
        Why the cost model of what was not measured is the one it is.
    measured : MeasuredTuning
    op_times_us : tuple of float
        Measured, of every op alone.
    generated : tuple of str
        Signatures of library calls in whose place the graph has generated kernels.
    """

    reason: str
    measured: MeasuredTuning
    op_times_us: tuple[float, ...]
    generated: tuple[str, ...]

    def priced(self, choice: Choice) -> Choice:
        """``choice``, a strategy for this graph, with the prices of the search.

        Every kernel of several ops gets the price by which it was chosen. Groups that the strategy
        has not cost what the roofline says of measured ops.
        """
        graph = choice.problem.graph
        groups = [
            Group(ops=unit.ops, outputs=unit.outputs)
            for unit in choice.strategy.units(graph)
            if unit.kind == "kernel" and len(unit.ops) > 1
        ]
        model = self.measured.result.cost_model
        times_us = model.predict(graph, groups).tolist() if groups else []
        return replace(
            choice,
            op_times_us=self.op_times_us,
            kernels_us=tuple(zip(groups, times_us, strict=True)),
            generated=self.generated,
        )


measure_top_option = click.option(
    "--measure-top",
    "num_best",
    type=click.IntRange(min=1),
    metavar="K",
    help="Measure the fusion groups of the K best strategies on this machine, search again, until "
    "all groups of the winner are measured. Only ranks and links are then the cluster's.",
)


def check_measurable(num_best: int | None, model: str | None, cluster: ClusterSpec) -> None:
    """Refuse what cannot be measured here.

    Raises
    ------
    click.UsageError
    """
    if num_best is None:
        return
    if model is None:
        raise click.UsageError("--measure-top builds kernels: it needs MODEL, not --problem FILE")
    if cluster.device.library_convolutions:
        raise click.UsageError(
            f"--measure-top measures this processor; {cluster.name} has {cluster.device.name}: "
            "take a cluster of processors, such as 1gbit-cpu"
        )


def tune_here(
    model: str,
    reference: str,
    cluster: ClusterSpec,
    config: SearchConfig,
    num_best: int,
    cost_model: tuple[str, Path],
    database: Path | None,
    watch: SearchWatch,
    *,
    warm_start: bool,
) -> TunedHere:
    """Import, profile, then search and measure in turn.

    Parameters
    ----------
    cost_model : (name, folder)
        See :func:`disco_fuse.cost_model.choose_cost_model`.
    database : Path, optional
        See :func:`disco_fuse.cli.profile.database_path`.
    """
    target = host_target()
    step = import_step(reference)
    if library_available():
        load_library()
    # disable=None: no bar unless standard error is a terminal.
    bar: Any = tqdm(desc="measure", unit="kernel", file=sys.stderr, disable=None, leave=False)

    def progress(done: int, total: int, name: str) -> None:
        del name
        if done < bar.n:
            bar.reset()
        bar.total = total
        bar.update(done - bar.n)

    with bar, ProfileDatabase(database_path(database)) as opened:
        opened.require_writable()
        device, _ = profile_device(target, opened)
        profiled = profile_model(step.mod, target, opened, progress)
        name, folder = cost_model
        environment = environment_key(target)
        priced = choose_cost_model(
            name, device, profiled.op_times_us, folder, environment=environment
        )
        problem = Problem(
            name=model,
            graph=profiled.extraction.graph,
            emission=fuse_ops(profiled.mod, profiled.extraction),
        )
        watch.begin(problem)
        measured = tune_measured(
            problem,
            profiled,
            target,
            opened,
            replace(cluster, device=device),
            config,
            priced.model,
            num_best,
            warm_start=warm_start,
            on_event=watch,
            progress=progress,
        )
        # The profile has measured all of them: this only reads what it has found.
        generated = choose_generated(step.mod, target, opened)
    return TunedHere(
        reason=priced.reason,
        measured=measured,
        op_times_us=tuple(profiled.op_times_us.tolist()),
        generated=tuple(sorted(generated)),
    )


def measured_rows(measured: MeasuredTuning) -> list[tuple[str, str]]:
    """What the measurement changed, for people."""
    data = measured.to_json()
    known, new, failed = (data[f"{kind}_groups"] for kind in ("known", "new", "failed"))
    return [
        ("measured on this machine", "value"),
        ("searches", f"{data['rounds']}"),
        ("all groups of the winner measured", "yes" if data["stable"] else "no"),
        ("groups measured now, before, not to be built", f"{new}, {known}, {failed}"),
        ("winner as predicted", f"{data['predicted_us'] / 1e3:.3f} ms"),
        ("winner with measured groups", f"{data['measured_us'] / 1e3:.3f} ms"),
    ]
