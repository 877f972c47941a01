"""How the time of one candidate grows with the graph."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from disco_fuse.bench.memory import peak_rss_bytes
from disco_fuse.bench.repeat import repeat_to
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.search import search
from disco_fuse.tuning import Problem

# GPT-2 small as it is, and with its layer repeated: what the table is to reach.
SCALING_OPS = (2_300, 28_000, 100_000)
_FEW, _MANY = 200, 1200


def time_per_candidate(
    problem_file: str, num_ops: int, cluster: ClusterSpec, config: SearchConfig
) -> dict[str, Any]:
    """Time of one candidate, from two searches of different length, so that starting up cancels.

    Returns
    -------
    dict
        ``ops``, ``us_per_candidate``, ``peak_rss_mb`` of this process.
    """
    graph = repeat_to(Problem.load(problem_file).graph, num_ops)
    model = RooflineCostModel(cluster.device)
    seconds, candidates = [], []
    for max_steps in (_FEW, _MANY):
        limited = replace(
            config, max_steps=max_steps, patience=2 * _MANY, time_limit_s=None, num_starts=1
        )
        begin = time.perf_counter()
        result = search(graph, model, cluster, limited)
        seconds.append(time.perf_counter() - begin)
        candidates.append(result.num_candidates)
    per_candidate = (seconds[1] - seconds[0]) / max(candidates[1] - candidates[0], 1)
    return {
        "ops": graph.num_ops,
        "us_per_candidate": per_candidate * 1e6,
        "peak_rss_mb": peak_rss_bytes() / 1e6,
    }
