"""A search whose winner does not depend on how much exactly kernels lose beside an AllReduce.

    contention     1        c      higher
    search 1       x                           a winner for each
    search 2                x
    search 3                         x
    judged         +        +        +         every winner and every start: the mean of all three

One number stands for the contention of all kernels and all moments of a step, and the search makes
use of every microsecond that it leaves: a bucket that is ready just when the one before it has been
sent is late as soon as kernels lose a little more, and the link idles (measured: 27 of 468 ms).
Where plans are level at the measured contention, the one that stays fast around it is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import CostModel
from disco_fuse.graph import OpGraph
from disco_fuse.search import search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy

SHARES = (0.5, 1.0, 1.5)
"""Of what is measured: single kernels lose from half to one and a half times as much (see
``disco-fuse profile``, contention by pattern)."""


def contentions_around(cluster: ClusterSpec) -> list[float]:
    """The contention of ``cluster`` and those around it; one alone where there is none."""
    lost = cluster.contention - 1
    return [1 + lost * share for share in SHARES] if lost > 0 else [1.0]


def search_contentions(
    graph: OpGraph,
    cost_model: CostModel,
    cluster: ClusterSpec,
    config: SearchConfig,
    initial: Sequence[Strategy],
) -> Strategy:
    """The strategy with the least mean makespan over :func:`contentions_around`.

    Parameters
    ----------
    initial : sequence of Strategy
        Every search starts from them too, and they are judged like the winners: the result is not
        worse than any of them by that mean.
    """
    clusters = [replace(cluster, contention=value) for value in contentions_around(cluster)]
    found = [search(graph, cost_model, one, config, initial).best for one in clusters]

    def mean_us(strategy: Strategy) -> float:
        times = [simulate(graph, strategy, cost_model, one).makespan_us for one in clusters]
        return float(np.mean(times))

    return min([*found, *initial], key=mean_us)
