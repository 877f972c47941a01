"""Starts the ranks of a comparison and reads what they measured."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco_fuse.compare.report import StrategyResult
from disco_fuse.launch import run
from disco_fuse.plan import Plan, load_plan


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """What every rank of a comparison is told, in one JSON file.

    Attributes
    ----------
    workload : str
        As :func:`disco_fuse.workload.load_workload` takes it.
    plans : mapping of str to str
        Strategy -> plan folder, in the order of the report.
    values, results, rendezvous : str
        Files: initial state (npz), where rank 0 writes, where DDP's ranks meet.
    num_ranks, num_warmup, num_steps : int
    with_ddp : bool
        Run PyTorch DDP as well.
    """

    workload: str
    plans: Mapping[str, str]
    values: str
    results: str
    rendezvous: str
    num_ranks: int
    num_warmup: int
    num_steps: int
    with_ddp: bool

    @staticmethod
    def read(path: Path) -> ComparisonSpec:
        """The spec in file ``path``."""
        return ComparisonSpec(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results in the order of the plans, and the measured timelines of every rank.

    ``timelines[strategy][rank]`` holds ``rows`` (kind, id, start_ns, finish_ns) and
    ``kernel_names`` of one step with kernels recorded.
    """

    results: tuple[StrategyResult, ...]
    timelines: Mapping[str, list[dict[str, Any]]]


def compare(
    workload: str,
    plans: Mapping[str, Path],
    values: Mapping[str, NDArray[Any]],
    *,
    num_ranks: int,
    num_steps: int,
    num_warmup: int = 5,
    with_ddp: bool = True,
    timeout_s: float = 600.0,
) -> Comparison:
    """Run all plans (and PyTorch DDP) in the same processes, one step of each in turn.

    A noisy moment of the machine so hits all alike. Every strategy trains its own copy of the
    state on the same batches.

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
            with_ddp=with_ddp,
        )
        np.savez(spec.values, **dict(values))  # type: ignore[arg-type]
        file = folder / "spec.json"
        file.write_text(json.dumps(asdict(spec)), encoding="utf-8")
        program = ["-m", "disco_fuse.compare.worker", str(file)]
        finished = run(program, num_ranks, timeout_s=timeout_s)
        if finished.returncode != 0 or not Path(spec.results).is_file():
            raise RuntimeError(f"the ranks ended with exit status {finished.returncode}")
        measured = json.loads(Path(spec.results).read_text(encoding="utf-8"))
    return Comparison(
        results=tuple(_result(name, m, loaded.get(name)) for name, m in measured.items()),
        timelines={name: m["timelines"] for name, m in measured.items() if m["timelines"]},
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
    )
