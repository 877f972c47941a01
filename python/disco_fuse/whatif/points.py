"""Points at which a model is tuned, and the tuning, each with a start from its neighbour's winner.

(batch, convolutions) --import once--> problem
world size   2 ----> 8 ----> 64 ----> 512     every search starts from the unfused graph, from
              winner  winner   winner         the baselines, and from what the last one found
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.search import SearchEvent
from disco_fuse.strategy import Strategy
from disco_fuse.tuning import Problem, TuningResult, tune

LARGEST_WORLD_SIZE = 4096
_LARGEST_BATCH = 2**20
AXES = ("world_size", "bandwidth_gbps", "batch", "device")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where the model is tuned.

    Attributes
    ----------
    cluster : ClusterSpec
        With the world size, network and device of the point.
    world_size : int
    bandwidth_gbps : float, optional
        Of the network between hosts, 1e9 bytes a second; None where the cluster has no links.
    batch : int, optional
        Samples of one rank; None: as the model says.
    device : str
        Its name.
    """

    cluster: ClusterSpec
    world_size: int
    bandwidth_gbps: float | None
    batch: int | None
    device: str

    def labels(self) -> dict[str, Any]:
        """Values by axis."""
        return {axis: getattr(self, axis) for axis in AXES}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A point, and what tuning found there."""

    point: Point
    result: TuningResult

    @property
    def ratio(self) -> float:
        """Total AllReduce by total compute of the strategy found: above 1 communication rules."""
        timeline = self.result.timeline
        return timeline.allreduce_us / timeline.compute_us

    def to_json(self) -> dict[str, Any]:
        """The figures, times in microseconds."""
        timeline = self.result.timeline
        return {
            **self.point.labels(),
            "step_us": self.result.makespan_us,
            "compute_us": timeline.compute_us,
            "allreduce_us": timeline.allreduce_us,
            "ratio": self.ratio,
            "overlap": timeline.overlap,
            "exposed_us": timeline.allreduce_us * (1 - timeline.overlap),
            "lower_bound_us": self.result.lower_bound_us,
            "best_baseline": self.result.best_baseline.name,
            "best_baseline_us": self.result.best_baseline.makespan_us,
            "buckets": _num_buckets(self.result),
            "search_s": self.result.search_s,
            "stop_reason": self.result.search.stop_reason,
        }


def points_of(
    cluster: ClusterSpec,
    *,
    world_sizes: Sequence[int] = (),
    bandwidths_gbps: Sequence[float] = (),
    batches: Sequence[int] = (),
    devices: Sequence[DeviceSpec] = (),
) -> list[Point]:
    """Every combination; an axis without values stays as ``cluster`` and the model have it.

    Raises
    ------
    ValueError
        A value is out of its range or named twice, or the AllReduce of the cluster was measured, so
        that nothing tells it for another world size or bandwidth.
    """
    for size in world_sizes:
        if not 2 <= size <= LARGEST_WORLD_SIZE:
            raise ValueError(f"world size {size}; allowed: 2 to {LARGEST_WORLD_SIZE}")
    for batch in batches:
        if not 1 <= batch <= _LARGEST_BATCH:
            raise ValueError(f"batch {batch}; allowed: 1 to {_LARGEST_BATCH}")
    names = [device.name for device in devices]
    for values in (world_sizes, bandwidths_gbps, batches, names):
        if len(set(values)) != len(values):
            raise ValueError(f"a value is given twice in {list(values)}")
    found = []
    no_batch: Sequence[int | None] = [None]
    no_bandwidth: Sequence[float | None] = [None]
    for device, some, bandwidth, size in itertools.product(
        devices or [cluster.device],
        batches or no_batch,
        bandwidths_gbps or no_bandwidth,
        world_sizes or [cluster.world_size],
    ):
        here = replace(cluster, device=device)
        if bandwidth is not None:
            here = _with_bandwidth(here, bandwidth)
        here = here.with_world_size(size)
        found.append(
            Point(
                cluster=here,
                world_size=size,
                bandwidth_gbps=None if here.links is None else here.links.network.bandwidth_gbps,
                batch=some,
                device=device.name,
            )
        )
    return found


def run_points(
    points: Sequence[Point],
    load: Callable[[int | None, bool], Problem],
    config: SearchConfig,
    on_event: Callable[[SearchEvent], None] | None = None,
) -> Iterator[Outcome]:
    """Tune at every point, one after the other.

    Parameters
    ----------
    load : callable
        From batch and whether convolutions are library calls to the problem; called once for each
        combination.
    on_event : callable, optional
        See :func:`disco_fuse.search.search`.

    Raises
    ------
    ValueError
        Two batches make the same graph.
    """
    problems: dict[tuple[int | None, bool], Problem] = {}
    winners: dict[tuple[int | None, bool], Strategy] = {}
    for point in points:
        key = (point.batch, point.cluster.device.library_convolutions)
        if key not in problems:
            problems[key] = load(*key)
            _check_batch(problems, key)
        starts = [winners[key]] if key in winners else []
        result = tune(problems[key], point.cluster, config, starts=starts, on_event=on_event)
        winners[key] = result.strategy
        yield Outcome(point=point, result=result)


def _check_batch(
    problems: Mapping[tuple[int | None, bool], Problem], new: tuple[int | None, bool]
) -> None:
    batch, convolutions = new
    digest = problems[new].graph.digest
    for (other, same), problem in problems.items():
        if other != batch and same == convolutions and problem.graph.digest == digest:
            raise ValueError(
                f"batches {other} and {batch} make the same graph: the model does not depend on "
                "the batch of its inputs"
            )


def _with_bandwidth(cluster: ClusterSpec, bandwidth_gbps: float) -> ClusterSpec:
    if cluster.links is None:
        raise ValueError(
            f"cluster {cluster.name!r} has a measured AllReduce curve and no links, so that "
            "nothing tells it for another bandwidth"
        )
    network = replace(cluster.links.network, bandwidth_gbps=bandwidth_gbps)
    links = replace(cluster.links, network=network)
    return replace(cluster, links=links, allreduce=links.allreduce(cluster.world_size))


def _num_buckets(result: TuningResult) -> int:
    return sum(event.stream == "communication" for event in result.timeline.events)
