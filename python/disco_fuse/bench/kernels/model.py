"""The benchmark of one model, task by task; each is run in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disco_fuse.apply import apply
from disco_fuse.bench.kernels.groups import time_groups, time_kernels
from disco_fuse.bench.kernels.plans import DISCO_FUSE, plan_model, write_plans
from disco_fuse.bench.kernels.steps import SIDES, TORCH_COMPILE, wrong_losses
from disco_fuse.bench.kernels.synthetic import synthetic_kernels
from disco_fuse.build import step_arena
from disco_fuse.profile import measure_device
from disco_fuse.target import host_target

_GROUP_REPEATS = 9
SYNTHETIC = "synthetic"


def build_model(
    name: str, reference: str, folder: str, database_file: str, with_groups: bool
) -> dict[str, Any]:
    """Write the plans of a model into ``folder`` and time the groups of DisCoFuse's.

    Returns
    -------
    dict
        ``kernels`` (strategy -> calls of a step), ``ops``, ``groups``, and of DisCoFuse's step
        ``arena_bytes`` and ``live_bytes`` (see :class:`disco_fuse.arena.Arena`).
    """
    plans = plan_model(reference, Path(database_file))
    kernels = write_plans(plans, name, Path(folder))
    groups = time_groups(plans, name, _GROUP_REPEATS) if with_groups else []
    fused = apply(plans.mod, plans.extraction, plans.strategies[DISCO_FUSE])
    arena = step_arena(fused, plans.target)
    return {
        "arena_bytes": arena.num_bytes,
        "live_bytes": arena.live_bytes,
        "kernels": kernels,
        "ops": plans.extraction.graph.num_ops,
        "groups": [group.to_json() for group in groups],
    }


def time_synthetic(scale: int = 1) -> list[dict[str, Any]]:
    """Times of the groups that belong to no model; ``scale`` divides their first extents."""
    target = host_target()
    peak_gflops = measure_device(target).peak_gflops
    kernels = synthetic_kernels(target, scale)
    groups = time_kernels(kernels, target, peak_gflops, SYNTHETIC, _GROUP_REPEATS)
    return [group.to_json() for group in groups]


def model_row(
    name: str,
    built: Mapping[str, Any],
    measured: Mapping[str, Any],
    peak_bytes: Mapping[str, int],
) -> dict[str, Any]:
    """A row of the JSON file.

    ``<side>_ms`` are medians, None for a ``torch.compile`` that was not measured; ``peak_mb`` is
    in 10**6 bytes, as are ``arena_mb``, the part of it that was planned, and ``live_mb``, the least
    that any placement needs in this order of kernels. ``problems`` says which losses are wrong.
    """
    times = measured["times_ms"]
    row: dict[str, Any] = {"name": name}
    for side in SIDES:
        row[f"{side}_ms"] = float(np.median(times[side])) if side in times else None
    row["peak_mb"] = peak_bytes["disco_fuse"] / 1e6
    row["torch_peak_mb"] = peak_bytes["torch_eager"] / 1e6
    row["arena_mb"] = built["arena_bytes"] / 1e6
    row["live_mb"] = built["live_bytes"] / 1e6
    row["best_ms"] = {side: min(values) for side, values in times.items()}
    row["spread_ms"] = {
        side: [float(p) for p in np.percentile(values, [10, 90])] for side, values in times.items()
    }
    row["cpu_ms"] = {side: float(np.median(v)) for side, v in measured["cpu_ms"].items()}
    row["rounds"] = min(len(values) for values in times.values())
    row["ops"], row["kernels"] = built["ops"], built["kernels"]
    row["torch_compile_failure"] = measured["failed"].get(TORCH_COMPILE)
    row["losses"] = {side: values[-1] for side, values in measured["losses"].items()}
    row["problems"] = wrong_losses(measured["losses"])
    return row
