"""Which searches the benchmark makes: the quality runs, the paper's own, variations and sweeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from disco_fuse.bench.runs import Run
from disco_fuse.config import ClusterSpec, SearchConfig

# All costs 30% up and down: factors of compute and of AllReduce.
VARIATIONS = ((1.3, 1.0), (0.7, 1.0), (1.0, 1.3), (1.0, 0.7))
# Tables 3 and 4 of the paper, and beyond both ends.
ALPHAS = (1.0, 1.05, 1.1)
BETAS = (1, 5, 10, 30)
ABLATION = {
    "without fuse": ("fuse-duplicate", "merge-buckets"),
    "without fuse-duplicate": ("fuse", "merge-buckets"),
    "without merge-buckets": ("fuse", "fuse-duplicate"),
    "all three": ("fuse", "fuse-duplicate", "merge-buckets"),
}


def paper_run(problem_file: str, cluster: ClusterSpec, seed: int) -> Run:
    """The paper's algorithm at its defaults, from the unfused strategy only."""
    config = SearchConfig.preset("paper", seed=seed)
    return Run(
        label="paper", problem_file=problem_file, cluster=cluster, config=config, warm_start=False
    )


def varied_runs(full: Run) -> list[Run]:
    """``full`` on clusters whose costs are all 30% larger or smaller."""
    return [
        replace(
            full,
            label=f"compute x{compute:g}, AllReduce x{allreduce:g}",
            cluster=full.cluster.scaled(compute=compute, allreduce=allreduce),
        )
        for compute, allreduce in VARIATIONS
    ]


def sweep_runs(paper: Run) -> list[Run]:
    """The paper's search with other alpha, other beta, and fewer methods."""
    changes: dict[str, dict[str, Any]] = {
        **{f"alpha={alpha:g}": {"alpha": alpha} for alpha in ALPHAS},
        **{f"beta={beta}": {"beta": beta} for beta in BETAS},
        **{label: {"methods": methods} for label, methods in ABLATION.items()},
    }
    return [
        replace(paper, label=label, config=replace(paper.config, **change))
        for label, change in changes.items()
    ]
