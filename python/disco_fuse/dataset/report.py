"""What a file of samples holds, and how noisy its measurements are."""

from __future__ import annotations

from typing import Any

import numpy as np

from disco_fuse.dataset.store import MeasuredGroup, SampleFile

WITHIN = (0.10, 0.14)
"""Errors that shares are stated for; 14% is the paper's (section 6.5), 10% our goal."""


def noise_floor(groups: list[MeasuredGroup]) -> dict[str, float]:
    """How far the second of two measurements of a kernel lies from the first, as an error.

    Returns
    -------
    dict
        ``within_10``, ``within_14``: shares of groups; ``mape``: mean of ``|again / median - 1|``.
    """
    return error_shares([item.again_us for item in groups], [item.first_us for item in groups])


def error_shares(predicted_us: Any, measured_us: Any) -> dict[str, float]:
    """Shares of ``|predicted / measured - 1|`` within 10% and 14%, and its mean."""
    errors = np.abs(np.asarray(predicted_us) / np.asarray(measured_us) - 1.0)
    shares = {f"within_{round(100 * w)}": float(np.mean(errors <= w)) for w in WITHIN}
    return {**shares, "mape": float(np.mean(errors))}


def describe(file: SampleFile) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """A table and the same as data: groups, families, noise and disturbances per model."""
    groups = file.groups()
    models = sorted({item.model for item in groups})
    rows: list[tuple[str, ...]] = [
        ("model", "groups", "families", "median ops", "disturbed", "noise %", "noise within 10%")
    ]
    data: dict[str, Any] = {"environment": file.header.environment, "models": {}}
    for model in [*models, ""] if groups else []:
        chosen = [item for item in groups if not model or item.model == model]
        noise = noise_floor(chosen)
        facts = {
            "num_groups": len(chosen),
            "num_families": len({item.family for item in chosen}),
            "median_ops": float(np.median([len(item.group.ops) for item in chosen])),
            "num_disturbed": sum(item.disturbed for item in chosen),
            "noise": noise,
        }
        if model:
            data["models"][model] = facts
        else:
            data |= facts
        rows.append(
            (
                model or "all",
                str(facts["num_groups"]),
                str(facts["num_families"]),
                f"{facts['median_ops']:.0f}",
                str(facts["num_disturbed"]),
                f"{100 * noise['mape']:.1f}",
                f"{noise['within_10']:.2f}",
            )
        )
    data["num_failures"] = len(file.failures())
    return rows, data
