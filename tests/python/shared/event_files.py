"""Files of events as searches and trainings write them, for the tests of the live page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LANES = {
    "streams": ["compute", "communication"],
    "makespan_us": 100.0,
    "spans": [
        [0, 0.0, 60.0, 1, "matmul", "library"],
        [1, 60.0, 40.0, 2, "allreduce", "bucket"],
    ],
}
SEARCH_START = {
    "event": "start",
    "version": 1,
    "model": "bert",
    "num_ops": 7,
    "cluster": "cluster-a",
    "world_size": 12,
    "device": "GTX 1080 Ti",
    "preset": "full",
    "seed": 3,
    "num_starts": 1,
    "versions": {"disco-fuse": "0.1.0"},
}


def progress(candidates: int, makespan_us: float, **more: Any) -> dict[str, Any]:
    """A search's event after as many milliseconds as candidates."""
    return {
        "event": "progress",
        "elapsed_s": candidates / 1e3,
        "candidates": candidates,
        "candidates_per_s": 1000.0,
        "queued": 5,
        "makespan_us": makespan_us,
        **more,
    }


def limits(**more: Any) -> dict[str, Any]:
    return {
        "event": "limits",
        "best_baseline": "horovod",
        "best_baseline_us": 10500.0,
        "lower_bound_us": 6000.0,
        **more,
    }


def search_end(**more: Any) -> dict[str, Any]:
    return {
        "event": "end",
        "reason": "patience",
        "elapsed_s": 9.0,
        "candidates": 9000,
        "makespan_us": 80.0,
        "initial_us": 120.0,
        "lower_bound_us": 75.0,
        "best_baseline": "horovod",
        "best_baseline_us": 100.0,
        "lanes": LANES,
        **more,
    }


def job_start(rank: int, world_size: int = 2, **more: Any) -> dict[str, Any]:
    start = {"event": "start", "step": 0, "rank": rank, "world_size": world_size, "plan": "ours"}
    return {**start, "restored": None, **more}


def step(number: int, busy_us: float = 9000.0, exposed_us: float = 1000.0) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "loss": 4.0 / number,
        "losses": [4.0 / number],
        "seconds": (busy_us + exposed_us) / 1e6,
        "busy_us": busy_us,
        "exposed_us": exposed_us,
    }


def append(path: Path, *events: dict[str, Any] | str) -> None:
    """Add lines: events, or texts as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for event in events:
            file.write(event if isinstance(event, str) else json.dumps(event) + "\n")
