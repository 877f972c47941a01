"""How two choices for one graph differ: kernels, buckets, order, and times on one cluster."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.explain.names import unit_name
from disco_fuse.explain.summary import Summary
from disco_fuse.strategy import Unit


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What only one of two choices has.

    Attributes
    ----------
    only_first, only_second : tuple of Unit
        Kernels and buckets of several ops that the other one lacks, copies included.
    num_common : int
        Kernels and buckets of several ops that both have.
    num_moved : int
        Least number of common units that have to be moved to get from one order to the other.
    num_common_units : int
        Kernels, library calls and buckets that both have, those of single ops included.
    """

    only_first: tuple[Unit, ...]
    only_second: tuple[Unit, ...]
    num_common: int
    num_moved: int
    num_common_units: int

    @property
    def is_empty(self) -> bool:
        """Whether both are the same."""
        return not (self.only_first or self.only_second or self.num_moved)


def difference(first: Summary, second: Summary) -> Difference:
    """Compare two choices for the same graph.

    Raises
    ------
    ValueError
        They are for different graphs.
    """
    graph, other = first.choice.problem.graph, second.choice.problem.graph
    if graph != other:
        raise ValueError(
            f"the two are for different graphs: {first.choice.problem.name!r}, digest "
            f"{graph.digest[:8]}, and {second.choice.problem.name!r}, digest {other.digest[:8]}"
        )
    units = [summary.choice.strategy.units(graph) for summary in (first, second)]
    contents = [{unit.ops: unit for unit in part} for part in units]
    common = [unit.ops for unit in units[0] if unit.ops in contents[1]]
    place = {ops: i for i, ops in enumerate(ops for ops in contents[1])}
    return Difference(
        only_first=_lacking(units[0], contents[1]),
        only_second=_lacking(units[1], contents[0]),
        num_common=sum(len(ops) > 1 for ops in common),
        num_moved=len(common) - _longest_rising([place[ops] for ops in common]),
        num_common_units=len(common),
    )


def difference_json(first: Summary, second: Summary, found: Difference) -> dict[str, Any]:
    """Both choices and how they differ, for JSON."""
    graph = first.choice.problem.graph

    def units(part: Sequence[Unit], kind: str) -> list[dict[str, Any]]:
        return [
            {"id": unit.id, "name": unit_name(graph, unit), "ops": list(unit.ops)}
            for unit in part
            if unit.kind == kind
        ]

    return {
        "model": first.choice.problem.name,
        "cluster": first.choice.cluster.name,
        "first": first.to_json(),
        "second": second.to_json(),
        "kernels_only_first": units(found.only_first, "kernel"),
        "kernels_only_second": units(found.only_second, "kernel"),
        "buckets_only_first": units(found.only_first, "bucket"),
        "buckets_only_second": units(found.only_second, "bucket"),
        "common": found.num_common,
        "moved": found.num_moved,
        "common_units": found.num_common_units,
    }


def _lacking(units: Sequence[Unit], other: dict[tuple[int, ...], Unit]) -> tuple[Unit, ...]:
    return tuple(unit for unit in units if len(unit.ops) > 1 and unit.ops not in other)


def _longest_rising(values: Sequence[int]) -> int:
    """Length of the longest rising subsequence of distinct values.

    Fredman, "On computing the length of longest increasing subsequences", Discrete Mathematics 11,
    1975: the smallest last value of a rising subsequence of each length.
    """
    ends: list[int] = []
    for value in values:
        at = bisect_left(ends, value)
        ends[at : at + 1] = [value]
    return len(ends)
