"""A choice as figures: its kernels, buckets, order, and how far it is from the bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from disco_fuse.bound import lower_bound_us
from disco_fuse.cost_model import Group, predict_checked
from disco_fuse.explain.exposure import BucketExposure, bucket_exposures
from disco_fuse.explain.names import op_name, unit_name, unit_text, units_name
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Timeline, simulate
from disco_fuse.strategy import Unit
from disco_fuse.tuning.choice import Choice


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel or library call of a step.

    Attributes
    ----------
    unit : Unit
    time_us : float
        Alone, without contention.
    unfused_us : float
        Its ops, each as a kernel of its own.
    start_us : float
    """

    unit: Unit
    time_us: float
    unfused_us: float
    start_us: float

    @property
    def saved_us(self) -> float:
        """What fusing its ops saves of compute; copies are not free."""
        return self.unfused_us - self.time_us


@dataclass(frozen=True, kw_only=True)
class EqualKernels:
    """Kernels or library calls that do the same in the same time.

    Attributes
    ----------
    kernels : tuple of Kernel
        In emitted order.
    name : str
        Of the first one, with the parameters that all are about.
    """

    kernels: tuple[Kernel, ...]
    name: str

    @property
    def times_text(self) -> str:
        """``24 x 4.673 ms``, or the time alone."""
        each = f"{self.kernels[0].time_us / 1e3:.3f} ms"
        return each if len(self.kernels) == 1 else f"{len(self.kernels)} x {each}"

    @property
    def time_us(self) -> float:
        """Of all together."""
        return sum(kernel.time_us for kernel in self.kernels)

    @property
    def saved_us(self) -> float:
        """What fusing saves of compute, of all together."""
        return sum(kernel.saved_us for kernel in self.kernels)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a step of a choice consists of.

    Attributes
    ----------
    choice : Choice
    timeline : Timeline
    lower_bound_us : float
        No strategy is faster.
    kernels : tuple of Kernel
        In emitted order.
    buckets : tuple of BucketExposure
        In the order in which they are sent.
    """

    choice: Choice
    timeline: Timeline
    lower_bound_us: float
    kernels: tuple[Kernel, ...]
    buckets: tuple[BucketExposure, ...]

    @property
    def exposed_us(self) -> float:
        """Time during which compute waits."""
        return sum(bucket.exposed_us for bucket in self.buckets)

    @property
    def gap(self) -> float:
        """0.1 if the step takes 1.1 times the bound."""
        return self.timeline.makespan_us / self.lower_bound_us - 1 if self.lower_bound_us else 0.0

    @property
    def num_fused(self) -> int:
        """Kernels of more than one op."""
        return sum(len(kernel.unit.ops) > 1 for kernel in self.kernels)

    def longest(self, number: int) -> list[EqualKernels]:
        """The ``number`` groups of equal kernels that take most time together."""
        graph = self.choice.problem.graph
        groups: dict[tuple[str, int], list[Kernel]] = {}
        for kernel in self.kernels:
            key = (unit_text(graph, kernel.unit, len(kernel.unit.ops)), round(kernel.time_us * 1e3))
            groups.setdefault(key, []).append(kernel)
        # Sorting is stable: of equal sums the one that is emitted first.
        longest = sorted(groups.values(), key=lambda group: -sum(k.time_us for k in group))
        return [
            EqualKernels(
                kernels=tuple(group), name=units_name(graph, [kernel.unit for kernel in group])
            )
            for group in longest[:number]
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, for JSON; times in microseconds."""
        choice, timeline = self.choice, self.timeline
        graph = choice.problem.graph
        return {
            "model": choice.problem.name,
            "graph_digest": graph.digest,
            "hash": choice.strategy.hash,
            "cluster": choice.cluster.name,
            "world_size": choice.cluster.world_size,
            "ops": graph.num_ops,
            "makespan_us": timeline.makespan_us,
            "recorded_us": choice.simulated_us,
            "lower_bound_us": self.lower_bound_us,
            "gap": self.gap,
            "compute_us": timeline.compute_us,
            "allreduce_us": timeline.allreduce_us,
            "exposed_us": self.exposed_us,
            "overlap": timeline.overlap,
            "peak_bytes": timeline.memory.peak_bytes,
            "kernels": [_kernel_json(graph, kernel) for kernel in self.kernels],
            "buckets": [bucket_json(graph, bucket) for bucket in self.buckets],
            "order": list(choice.strategy.order),
            "duplicated": [list(pair) for pair in choice.strategy.duplicated],
        }


def summarise(choice: Choice) -> Summary:
    """Simulate ``choice`` in its own order and look at every unit.

    Raises
    ------
    ValueError
        If the cost model gives no valid time.
    """
    graph, model = choice.problem.graph, choice.cost_model
    timeline = simulate(graph, choice.strategy, model, choice.cluster)
    start_us = {event.unit: event.start_ns / 1000 for event in timeline.events}
    units = [unit for unit in choice.strategy.units(graph) if unit.kind != "bucket"]
    fused = predict_checked(model, graph, [Group(ops=u.ops, outputs=u.outputs) for u in units])
    alone = sorted({op for unit in units for op in unit.ops})
    times = predict_checked(model, graph, [Group(ops=(op,), outputs=(op,)) for op in alone])
    alone_us = dict(zip(alone, times.tolist(), strict=True))
    home = choice.strategy.group_of
    return Summary(
        choice=choice,
        timeline=timeline,
        lower_bound_us=lower_bound_us(graph, model, choice.cluster),
        kernels=tuple(
            Kernel(
                unit=unit,
                time_us=time_us,
                unfused_us=sum(alone_us[op] for op in unit.ops if home[op] == unit.id),
                start_us=start_us[unit.id],
            )
            for unit, time_us in zip(units, fused.tolist(), strict=True)
        ),
        buckets=tuple(bucket_exposures(graph, choice.strategy, timeline)),
    )


def bucket_json(graph: OpGraph, bucket: BucketExposure) -> dict[str, Any]:
    """All of a bucket, with names."""
    return {
        "id": bucket.unit.id,
        "name": unit_name(graph, bucket.unit),
        "gradients": [graph.ops[op].name for op in bucket.unit.ops],
        "bytes": bucket.num_bytes,
        "ready_us": bucket.ready_us,
        "start_us": bucket.start_us,
        "finish_us": bucket.finish_us,
        "queued_us": bucket.queued_us,
        "exposed_us": bucket.exposed_us,
        "last_gradient": op_name(graph, bucket.last_gradient),
        "needed_us": bucket.needed_us,
        "not_needed_us": bucket.not_needed_us,
        "chain": list(bucket.chain),
        "chain_us": bucket.chain_us,
    }


def _kernel_json(graph: OpGraph, kernel: Kernel) -> dict[str, Any]:
    return {
        "id": kernel.unit.id,
        "kind": kernel.unit.kind,
        "name": unit_name(graph, kernel.unit),
        "ops": list(kernel.unit.ops),
        "start_us": kernel.start_us,
        "time_us": kernel.time_us,
        "saved_us": kernel.saved_us,
    }
