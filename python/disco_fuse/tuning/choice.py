"""A chosen strategy on disk, with all that is needed to look at it again.

strategy.json      what was chosen, on which cluster, at which prices
problem.json.gz    the graph that the ids of the strategy mean
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from disco_fuse.checks import from_table
from disco_fuse.cluster import Link, Links
from disco_fuse.config import UNCAPPED, AllReduceModel, ClusterSpec, DeviceSpec
from disco_fuse.cost_model import CostModel, Group, RooflineCostModel
from disco_fuse.cost_model.base import check_groups
from disco_fuse.cost_model.measured import MeasuredCostModel
from disco_fuse.device import Efficiency
from disco_fuse.errors import MissingInputError
from disco_fuse.files import write_text
from disco_fuse.strategy import Strategy
from disco_fuse.tuning.problem import Problem

STRATEGY_FILE = "strategy.json"
PROBLEM_FILE = "problem.json.gz"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy, the graph it is for, and the cluster on which it was chosen.

    Attributes
    ----------
    problem : Problem
    strategy : Strategy
    cluster : ClusterSpec
    simulated_us : float
        Makespan when it was chosen.
    op_times_us : tuple of float, optional
        Measured times of the ops, by which the roofline prices kernels; see
        :class:`~disco_fuse.cost_model.RooflineCostModel`.
    kernels_us : tuple of (Group, float)
        Kernels that cost what was measured of them (or predicted by another model), launch
        included, in place of what the roofline says.
    generated : tuple of str
        Signatures of the library calls in whose place the graph has generated kernels; see
        :func:`~disco_fuse.kernels.generate.GenerateKernels`.
    priced_by : CostModel, optional
        Prices kernels instead of the roofline; no file keeps it.
    """

    problem: Problem
    strategy: Strategy
    cluster: ClusterSpec
    simulated_us: float
    op_times_us: tuple[float, ...] | None = None
    kernels_us: tuple[tuple[Group, float], ...] = ()
    generated: tuple[str, ...] = ()
    priced_by: CostModel | None = None

    @property
    def cost_model(self) -> CostModel:
        """The prices of kernels."""
        if self.priced_by is not None:
            return self.priced_by
        times = self.op_times_us
        roofline = RooflineCostModel(
            self.cluster.device, None if times is None else np.array(times, np.float64)
        )
        if not self.kernels_us:
            return roofline
        groups, kernels_us = zip(*self.kernels_us, strict=True)
        return MeasuredCostModel(
            roofline, self.problem.graph, groups, np.array(kernels_us, np.float64)
        )

    def save(self, folder: Path, more: Mapping[str, Any]) -> None:
        """Write both files; ``more`` are further entries of strategy.json."""
        folder.mkdir(parents=True, exist_ok=True)
        graph = self.problem.graph
        data = {
            "model": self.problem.name,
            "graph_digest": graph.digest,
            "cluster": self.cluster.name,
            "cluster_spec": asdict(self.cluster),
            "op_times_us": self.op_times_us,
            "kernels_us": [[group.ops, group.outputs, time] for group, time in self.kernels_us],
            "generated": self.generated,
            "simulated_us": self.simulated_us,
            "hash": self.strategy.hash,
            "strategy": json.loads(self.strategy.to_json()),
            **more,
        }
        self.problem.save(folder / PROBLEM_FILE)
        write_text(folder / STRATEGY_FILE, json.dumps(data) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises
    ------
    ValueError
        Naming the file, if it cannot be read or holds no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


def problem_beside(path: Path, problem_file: Path | None) -> Problem:
    """The problem in ``problem_file``, or else in the folder of ``path``.

    Raises
    ------
    MissingInputError
        There is none, saying how to make one.
    """
    beside = path.parent / PROBLEM_FILE
    if problem_file is None and not beside.is_file():
        raise MissingInputError(
            f"{path} says nothing of the graph it is for, and there is no {beside}: make it with "
            f"'disco-fuse extract MODEL -o {beside}', or give one with --problem"
        )
    return Problem.load(problem_file or beside)


def load_choice(
    path: Path, *, problem_file: Path | None = None, cluster: ClusterSpec | None = None
) -> Choice:
    """Read a strategy.json.

    Parameters
    ----------
    problem_file : Path, optional
        Default: ``problem.json.gz`` in the same folder.
    cluster : ClusterSpec, optional
        Instead of the one in the file.

    Raises
    ------
    ValueError
        A file is missing or wrong, or the two are for different graphs.
    """
    data = read_json(path)
    problem = problem_beside(path, problem_file)
    check_digest(path, data.get("graph_digest"), problem)
    try:
        times = data.get("op_times_us")
        choice = Choice(
            problem=problem,
            strategy=Strategy.from_json(
                problem.graph, json.dumps(data["strategy"]), limits=UNCAPPED
            ),
            cluster=cluster or cluster_of(data["cluster_spec"]),
            simulated_us=float(data["simulated_us"]),
            op_times_us=None if times is None else tuple(float(time) for time in times),
            kernels_us=tuple(_kernel(row) for row in data.get("kernels_us", ())),
            generated=tuple(str(name) for name in data.get("generated", ())),
        )
    except KeyError as error:
        raise ValueError(f"{path} is no file of 'disco-fuse tune -O': {error} is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from error
    num_times = len(choice.op_times_us or ())
    if num_times not in (0, problem.graph.num_ops):
        raise ValueError(f"{path} has {num_times} times for {problem.graph.num_ops} ops")
    try:
        check_groups(problem.graph, [group for group, _ in choice.kernels_us])
    except ValueError as error:
        raise ValueError(f"{path}: kernels_us: {error}") from error
    return choice


def _kernel(row: Any) -> tuple[Group, float]:
    """A kernel and its time, as :meth:`Choice.save` has written them.

    Raises
    ------
    ValueError
        The time is none.
    """
    ops, outputs, time_us = row
    if not 0 < float(time_us) < float("inf"):
        raise ValueError(f"kernels_us has the time {time_us}; allowed: above 0, finite")
    group = Group(ops=tuple(map(int, ops)), outputs=tuple(map(int, outputs)))
    return group, float(time_us)


def check_digest(path: Path, digest: Any, problem: Problem) -> None:
    """ValueError unless ``problem`` has the graph of that digest, which is the one of ``path``."""
    if digest != problem.graph.digest:
        raise ValueError(
            f"{path} is for another graph than the problem {problem.name!r}: its digest is "
            f"{str(digest)[:8]}, the problem's is {problem.graph.digest[:8]}"
        )


def cluster_of(data: Any) -> ClusterSpec:
    """The cluster that ``dataclasses.asdict`` has written.

    Raises
    ------
    ValueError
        A field is missing, unknown or wrong.
    """
    if not isinstance(data, dict) or not isinstance(data.get("device"), dict):
        raise ValueError("cluster_spec must be a cluster with its device")
    rows = data["device"].get("efficiency", ())
    efficiency = tuple(from_table(Efficiency, row, "efficiency") for row in rows)
    device = from_table(DeviceSpec, {**data["device"], "efficiency": efficiency}, "device")
    links = data.get("links")
    if links is not None:
        parts = {
            name: links[name] and from_table(Link, links[name], f"links.{name}")
            for name in ("inside", "network")
        }
        links = from_table(Links, {**links, **parts}, "links")
    allreduce = from_table(AllReduceModel, data.get("allreduce"), "allreduce")
    fields = {**data, "device": device, "allreduce": allreduce, "links": links}
    return from_table(ClusterSpec, fields, "cluster_spec")
