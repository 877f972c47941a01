"""The strategies people have today, as rules: what DisCoFuse is measured against.

| name             | op fusion   | tensor fusion                                              |
|------------------|-------------|------------------------------------------------------------|
| none             | none        | one AllReduce per gradient                                 |
| op_fusion        | TVM FuseOps | one per gradient                                           |
| allreduce_fusion | none        | XLA's combiner: in production order, up to 30 MiB          |
| default          | TVM FuseOps | XLA's combiner                                             |
| ddp              | TVM FuseOps | PyTorch DDP's buckets, first 1 MiB, then 25 MiB            |
| horovod          | TVM FuseOps | Horovod: whatever is ready within a 1 ms cycle, 128 MiB    |
| single           | TVM FuseOps | one AllReduce                                              |

All of them get our kernels, library calls and transport, and the better of two orders: the one in
which TVM emits them, and our list schedule. The rules of tensor fusion and their sources stand in
``tensor_fusion.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm

from disco_fuse.config import UNCAPPED, ClusterSpec
from disco_fuse.cost_model import CostModel
from disco_fuse.extract import Extraction
from disco_fuse.fuse_ops import Emission, fuse_ops, in_emitted_order
from disco_fuse.graph import OpGraph, OpKind
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tensor_fusion import (
    Buckets,
    ddp_buckets,
    horovod_buckets,
    per_gradient,
    single_bucket,
    xla_buckets,
)


@dataclass(frozen=True, kw_only=True)
class BaselineResult:
    """One baseline, simulated.

    Attributes
    ----------
    strategy : Strategy
        In the better of both orders.
    list_us, emitted_us : float
        Makespan in our list schedule, and in the order in which TVM emits the kernels.
    """

    name: str
    strategy: Strategy
    list_us: float
    emitted_us: float

    @property
    def makespan_us(self) -> float:
        """Makespan in the better order."""
        return min(self.list_us, self.emitted_us)

    @property
    def order_gain(self) -> float:
        """What our order alone gains over the emitted one: 0.1 for a step 1.1 times as fast."""
        return self.emitted_us / self.list_us - 1 if self.list_us else 0.0


def baseline_names() -> tuple[str, ...]:
    """All baselines."""
    return tuple(_RULES)


def baseline(
    name: str,
    mod: tvm.IRModule,
    extraction: Extraction,
    cost_model: CostModel | None = None,
    cluster: ClusterSpec | None = None,
) -> Strategy:
    """The strategy that the rule ``name`` chooses for a lowered module, in TVM's order.

    Parameters
    ----------
    cost_model, cluster : optional
        Only "horovod" needs them: its buckets depend on when gradients become ready.

    Raises
    ------
    ValueError
        There is no baseline of that name, or it needs a cost model.
    """
    if name not in _RULES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(_RULES)}")
    emission = fuse_ops(mod, extraction)
    return emitted_baseline(name, extraction.graph, emission, cost_model, cluster)


def emitted_baseline(
    name: str,
    graph: OpGraph,
    emission: Emission,
    cost_model: CostModel | None = None,
    cluster: ClusterSpec | None = None,
) -> Strategy:
    """:func:`baseline` from what FuseOps has made of the module, without the module."""
    if name not in _RULES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(_RULES)}")
    fuses, bucket_rule = _RULES[name]
    if bucket_rule is not None:
        buckets = bucket_rule(graph)
    elif cost_model is None or cluster is None:
        raise ValueError(f"baseline {name!r} needs a cost model and a cluster")
    else:
        ready_us = gradients_ready_us(graph, emission, cost_model, cluster)
        buckets = horovod_buckets(graph, ready_us)
    groups = emission.groups if fuses else ()
    # Without FuseOps the program stays in the order of the graph.
    order = emission.order if fuses else range(graph.num_ops)
    return in_emitted_order(graph, _strategy(graph, groups, buckets), tuple(order))


def evaluate_baselines(
    graph: OpGraph, emission: Emission, cost_model: CostModel, cluster: ClusterSpec
) -> dict[str, BaselineResult]:
    """All baselines in both orders, by name."""
    results = {}
    for name in _RULES:
        emitted = emitted_baseline(name, graph, emission, cost_model, cluster)
        emitted_us = simulate(graph, emitted, cost_model, cluster).makespan_us
        listed = schedule(graph, emitted, cost_model, cluster)
        list_us = simulate(graph, listed, cost_model, cluster).makespan_us
        results[name] = BaselineResult(
            name=name,
            strategy=listed if list_us <= emitted_us else emitted,
            list_us=list_us,
            emitted_us=emitted_us,
        )
    return results


def gradients_ready_us(
    graph: OpGraph, emission: Emission, cost_model: CostModel, cluster: ClusterSpec
) -> dict[int, float]:
    """When each gradient exists in the fused step, by AllReduce op, microseconds.

    Read off the simulated timeline of FuseOps' kernels in list-scheduled order, with one AllReduce
    per gradient.
    """
    strategy = _strategy(graph, emission.groups, per_gradient(graph))
    listed = schedule(graph, strategy, cost_model, cluster)
    events = simulate(graph, listed, cost_model, cluster).events
    finish_us = {event.unit: event.finish_ns / 1000 for event in events}
    home = listed.group_of
    return {
        edge.consumer: finish_us[int(home[edge.producer])]
        for edge in graph.edges
        if graph.ops[edge.consumer].kind == OpKind.ALLREDUCE and not edge.order_only
    }


def _strategy(graph: OpGraph, groups: tuple[tuple[int, ...], ...], buckets: Buckets) -> Strategy:
    group_of = list(range(graph.num_ops))
    for members in (*groups, *buckets):
        for op in members:
            group_of[op] = min(members)
    return Strategy.create(graph, group_of, limits=UNCAPPED)


# Whether FuseOps makes the kernels, and the rule of the buckets: None where it needs the timeline.
_RULES: dict[str, tuple[bool, Callable[[OpGraph], Buckets] | None]] = {
    "none": (False, per_gradient),
    "op_fusion": (True, per_gradient),
    "allreduce_fusion": (False, xla_buckets),
    "default": (True, xla_buckets),
    "ddp": (True, ddp_buckets),
    "horovod": (True, None),
    "single": (True, single_bucket),
}
