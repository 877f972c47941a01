"""What a user points at: a plan folder, a plan.json, or a strategy.json."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_fuse.config import ClusterSpec
from disco_fuse.errors import MissingInputError
from disco_fuse.plan import PLAN_FILE, read_plan
from disco_fuse.tuning.choice import STRATEGY_FILE, Choice, load_choice, read_json


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What a plan.json says that can be shown without the graph.

    Attributes
    ----------
    name, model, target : str
    world_size, num_kernels, num_allreduces : int
    graph_digest : str
    predicted : dict
        Figures of the simulation, microseconds.
    group_sizes : tuple of int
        Ops of each kernel or bucket, copies not counted, descending.
    """

    name: str
    model: str
    target: str
    world_size: int
    num_kernels: int
    num_allreduces: int
    graph_digest: str
    predicted: dict[str, float]
    group_sizes: tuple[int, ...]


def find_file(path: Path) -> Path:
    """The strategy.json or plan.json that ``path`` is, or that lies in the folder ``path``.

    Raises
    ------
    MissingInputError
        There is none.
    """
    if path.is_file():
        return path
    for name in (STRATEGY_FILE, PLAN_FILE):
        if (path / name).is_file():
            return path / name
    what = "holds neither strategy.json nor plan.json" if path.is_dir() else "is not there"
    raise MissingInputError(f"{path} {what}")


def open_choice(
    path: Path, *, problem_file: Path | None = None, cluster: ClusterSpec | None = None
) -> Choice:
    """The choice that ``path`` names; see :func:`~disco_fuse.tuning.choice.load_choice`.

    Raises
    ------
    MissingInputError
        There is nothing at ``path``, or a plan without the strategy.json that 'disco-fuse build'
        writes beside it.
    """
    file = find_file(path)
    if is_plan(read_json(file)):
        beside = file.parent / STRATEGY_FILE
        if not beside.is_file():
            raise MissingInputError(
                f"{file} says neither which ops it fuses nor on which cluster it was simulated, "
                f"and there is no {beside}: 'disco-fuse build' writes both"
            )
        file = beside
    return load_choice(file, problem_file=problem_file, cluster=cluster)


def is_plan(data: dict[str, Any]) -> bool:
    """Whether the JSON is that of a plan."""
    return "schema_version" in data


def plan_facts(path: Path) -> PlanFacts | None:
    """What the plan.json says that ``path`` is, or that lies there or beside it, if there is one.

    Raises
    ------
    ValueError
        It cannot be read, or was changed; see :func:`~disco_fuse.plan.load_plan`.
    """
    file = (path if path.is_dir() else path.parent) / PLAN_FILE
    if path.is_file() and is_plan(read_json(path)):
        file = path
    if not file.is_file():
        return None
    plan = read_plan(file)
    try:
        sizes = Counter(int(group) for group in plan.strategy["group_of"]).values()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} has no strategy: {error!r}") from error
    return PlanFacts(
        name=plan.name,
        model=plan.model,
        target=plan.target,
        world_size=plan.world_size,
        num_kernels=plan.num_kernels,
        num_allreduces=plan.num_allreduces,
        graph_digest=plan.graph_digest,
        predicted=dict(plan.predicted),
        group_sizes=tuple(sorted(sizes, reverse=True)),
    )
