"""Starts the ranks of a comparison and reads what they measured."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco_fuse.compare.report import PYTORCH_DDP, Breakdown, StrategyResult, UnitTimes
from disco_fuse.compare.spec import ComparisonSpec, DdpOptions
from disco_fuse.launch import run
from disco_fuse.plan import Plan, load_plan
from disco_fuse.profile.allreduce import RunRanks


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results in the order of the plans, and the measured timelines of every rank.

    ``timelines[strategy][rank]`` is a :func:`disco_fuse.compare.trace.rank_timeline` of one step.
    ``limits`` is what
    :func:`disco_fuse.compare.limits.measure_limits` returned, if it was asked for. ``failed`` tells
    why strategies that are not in the results did not run.
    """

    results: tuple[StrategyResult, ...]
    timelines: Mapping[str, list[dict[str, Any]]]
    limits: Mapping[str, float] | None
    failed: Mapping[str, str]


_DEFAULT_DDP: Mapping[str, DdpOptions] = {PYTORCH_DDP: DdpOptions()}


def compare(
    workload: str,
    plans: Mapping[str, Path],
    values: Mapping[str, NDArray[Any]],
    *,
    num_ranks: int,
    num_steps: int,
    num_warmup: int = 5,
    ddp: Mapping[str, DdpOptions] = _DEFAULT_DDP,
    limits_of: str | None = None,
    gradient_bytes: int = 0,
    timeout_s: float = 600.0,
    run_ranks: RunRanks = run,
) -> Comparison:
    """Run all plans (and PyTorch DDP) in the same processes, one step of each in turn.

    A noisy moment of the machine so hits all alike. Every strategy trains its own copy of the
    state on the same batches.

    Parameters
    ----------
    ddp : mapping of str to DdpOptions
        Ways to run PyTorch DDP, by name.
    limits_of : str, optional
        A plan whose limits are measured as well.
    gradient_bytes : int
        Of all gradients; needed with ``limits_of``.
    run_ranks : callable
        Starts the ranks: :func:`disco_fuse.launch.run` or something with its signature.

    Raises
    ------
    ValueError
        More ranks than slots, or fewer than one; no steps; a damaged plan.
    RuntimeError
        The ranks failed; what they printed went to this process's output.
    """
    if num_steps < 1 or num_warmup < 0:
        raise ValueError(f"num_steps is {num_steps} (allowed: from 1), num_warmup {num_warmup} (0)")
    loaded = {name: load_plan(folder) for name, folder in plans.items()}
    with tempfile.TemporaryDirectory(prefix="df-") as temporary:
        folder = Path(temporary)
        spec = ComparisonSpec(
            workload=workload,
            plans={name: str(path.absolute()) for name, path in plans.items()},
            values=str(folder / "values.npz"),
            results=str(folder / "results.json"),
            rendezvous=str(folder / "rendezvous"),
            num_ranks=num_ranks,
            num_warmup=num_warmup,
            num_steps=num_steps,
            ddp=ddp,
            limits_of=limits_of,
            gradient_bytes=gradient_bytes,
        )
        np.savez(spec.values, **dict(values))  # type: ignore[arg-type]
        file = folder / "spec.json"
        spec.write(file)
        program = ["-m", "disco_fuse.compare.worker", str(file)]
        finished = run_ranks(program, num_ranks, timeout_s=timeout_s)
        if finished.returncode != 0 or not Path(spec.results).is_file():
            raise RuntimeError(f"the ranks ended with exit status {finished.returncode}")
        measured = json.loads(Path(spec.results).read_text(encoding="utf-8"))
    rows = measured["strategies"]
    return Comparison(
        results=tuple(_result(name, row, loaded.get(name)) for name, row in rows.items()),
        timelines={name: row["timelines"] for name, row in rows.items() if row["timelines"]},
        limits=measured["limits"],
        failed=measured["failed"],
    )


def _result(name: str, measured: Mapping[str, Any], plan: Plan | None) -> StrategyResult:
    return StrategyResult(
        name=name,
        kernels=None if plan is None else plan.num_kernels,
        allreduces=None if plan is None else plan.num_allreduces,
        makespan_us=None if plan is None else plan.predicted["makespan_us"],
        step_times_us=tuple(measured["step_times_us"]),
        overlap=measured["overlap"],
        losses=tuple(measured["losses"]),
        breakdown=measured["breakdown"] and Breakdown(**measured["breakdown"]),
        unit_times=measured["unit_times"] and UnitTimes(**measured["unit_times"]),
    )
