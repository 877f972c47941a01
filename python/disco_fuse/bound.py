"""The lower bound of all strategies."""

from __future__ import annotations

from disco_fuse import _ffi
from disco_fuse.config import ClusterSpec
from disco_fuse.cost_model.base import CostModel
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import native_cluster


def lower_bound_us(graph: OpGraph, cost_model: CostModel, cluster: ClusterSpec) -> float:
    """A makespan in microseconds that no legal strategy beats, in no order.

    ``src/search/lower_bound.h`` has the proof. Kernels of a cost model written in Python have no
    floors, so that only library calls and AllReduces count.

    Raises
    ------
    ValueError
        If the cost model gives no valid time.
    """
    bound = _ffi.function("search.lower_bound")(
        graph._handle, cost_model._native(graph), native_cluster(cluster)
    )
    return int(bound) / 1000
