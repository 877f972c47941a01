"""Advice from the model alone: its simulated backward pass in place of a measured one.

    model -> unfused kernels in the order of the program, AllReduces for nothing -> ready times
          -> the replay that traces go through, on the cluster's AllReduce line

PyTorch runs a model eagerly, one kernel per operator, so nothing is fused here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from disco_fuse.advise.caps import CapResult, cap_results
from disco_fuse.advise.line import Line
from disco_fuse.advise.replay import Replay
from disco_fuse.advise.verdict import Verdict, present_of_ddp
from disco_fuse.allreduce import AllReduceModel
from disco_fuse.baselines import emitted_baseline
from disco_fuse.config import ClusterSpec
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.graph import OpKind
from disco_fuse.simulate import simulate
from disco_fuse.tensor_fusion import MIB, gradients_in_production_order
from disco_fuse.tuning.problem import Problem


@dataclass(frozen=True, kw_only=True)
class ModelAdvice:
    """Predictions for a model on a cluster; nothing was measured.

    Attributes
    ----------
    name : str
    cluster : ClusterSpec
    replay : Replay
    verdict : Verdict
        The caps, and which to take.
    """

    name: str
    cluster: ClusterSpec
    replay: Replay
    verdict: Verdict

    @property
    def caps(self) -> tuple[CapResult, ...]:
        """Ascending."""
        return self.verdict.caps

    @property
    def notes(self) -> tuple[str, ...]:
        """What a model without a trace cannot tell."""
        return (
            "from the model alone: kernels are priced by the roofline of the cluster's device, and "
            "the host is supposed to keep up; a trace of the job says more",
        )

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        replay, line = self.replay, self.replay.line
        return {
            "name": self.name,
            "cluster": self.cluster.name,
            "world_size": self.cluster.world_size,
            "simulated": True,
            "compute_us": float((replay.backward_us + replay.tail_us)[0, 0]),
            "first_gradient_us": float(replay.ready_us[0, 0, 0]),
            "gradient_mb": float(replay.gradient_bytes.sum() / MIB),
            "latency_us": line.latency_us,
            "us_per_byte": line.us_per_byte,
            "contention": replay.contention,
            "bound_us": replay.bound_us(),
            "caps": [vars(cap) for cap in self.caps],
            **self.verdict.to_json(),
            "notes": list(self.notes),
        }


def advise_model(
    problem: Problem, cluster: ClusterSpec, on_cap: Callable[[float], None] = lambda _: None
) -> ModelAdvice:
    """Predict the step of a model under DDP for twenty bucket caps.

    Raises
    ------
    ValueError
        The model has no gradients.
    """
    replay = replay_of(problem, cluster)
    verdict = Verdict(caps=cap_results(replay, on_cap), present=present_of_ddp(replay))
    return ModelAdvice(name=problem.name, cluster=cluster, replay=replay, verdict=verdict)


def replay_of(problem: Problem, cluster: ClusterSpec) -> Replay:
    """The simulated step of a model without communication; see :func:`advise_model`."""
    graph = problem.graph
    arrival = gradients_in_production_order(graph)
    if not arrival:
        raise ValueError(f"{problem.name} has no gradients")
    alone = replace(
        cluster, contention=1.0, allreduce=AllReduceModel.linear(latency_us=0.0, us_per_byte=0.0)
    )
    strategy = emitted_baseline("none", graph, problem.emission)
    timeline = simulate(graph, strategy, RooflineCostModel(cluster.device), alone)
    finish_us = {event.unit: event.finish_ns / 1000 for event in timeline.events}
    home = strategy.group_of
    producer = {
        edge.consumer: edge.producer
        for edge in graph.edges
        if graph.ops[edge.consumer].kind == OpKind.ALLREDUCE and not edge.order_only
    }
    ready = np.maximum.accumulate([finish_us[int(home[producer[op]])] for op in arrival])
    backward = float(ready[-1])
    return Replay(
        line=_line(cluster.allreduce),
        contention=cluster.contention,
        gradient_bytes=np.array([graph.ops[op].bytes_written for op in arrival], np.float64),
        sent_share=1.0,
        begin_us=np.zeros((1, 1)),
        ready_us=ready[None, None, :],
        backward_us=np.full((1, 1), backward),
        tail_us=np.full((1, 1), timeline.makespan_us - backward),
        call_us=0.0,
        copy_us_per_byte=0.0,
    )


def _line(model: AllReduceModel) -> Line:
    """The cluster's curve: its line for large messages, which carry most of the bytes."""
    return Line(
        latency_us=model.large_latency_us,
        us_per_byte=model.large_us_per_byte,
        sizes_bytes=(),
        error=0.0,
        latency_given=True,
    )
