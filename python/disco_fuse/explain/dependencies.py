"""Which units of a strategy need which others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from disco_fuse.graph import Edge, OpGraph
from disco_fuse.strategy import Strategy, Unit


class Dependencies:
    """The units of a strategy as a graph.

    Attributes
    ----------
    units : dict
        Representative -> unit, in emitted order.
    data_into : mapping
        Op -> edges by which data reaches it.
    before : dict
        Representative -> representatives of the units that must be done before it starts.
    """

    def __init__(self, graph: OpGraph, strategy: Strategy) -> None:
        self.units: dict[int, Unit] = {unit.id: unit for unit in strategy.units(graph)}
        self.data_into: Mapping[int, list[Edge]] = defaultdict(list)
        order_into: Mapping[int, list[Edge]] = defaultdict(list)
        for edge in graph.edges:
            (order_into if edge.order_only else self.data_into)[edge.consumer].append(edge)
        home = strategy.group_of.tolist()
        holders: dict[int, list[int]] = defaultdict(list)
        for unit in self.units.values():
            for op in unit.ops:
                holders[op].append(unit.id)
        self.before: dict[int, set[int]] = {}
        for unit in self.units.values():
            members, needed = set(unit.ops), set[int]()
            for op in unit.ops:
                read = {edge.producer for edge in self.data_into[op]} - members
                needed |= {home[producer] for producer in read}
                if home[op] == unit.id:
                    # A copy overwrites nothing; the op itself waits for all who read what it does.
                    for edge in order_into[op]:
                        needed |= set(holders[edge.producer])
            self.before[unit.id] = needed - {unit.id}

    def ancestors(self, unit: int) -> set[int]:
        """All units that ``unit`` needs, directly or not."""
        found: set[int] = set()
        stack = [unit]
        while stack:
            new = self.before[stack.pop()] - found
            found |= new
            stack += new
        return found

    def chains(self, durations_ns: Mapping[int, int]) -> dict[int, tuple[int, int | None]]:
        """The longest chain of units, each of which needs the one before, that ends in each unit.

        Returns
        -------
        dict
            Unit -> (sum of the durations of its chain, the unit before it, if there is one).
        """
        found: dict[int, tuple[int, int | None]] = {}
        for unit in self.units:  # emitted order is topological
            before = max(
                self.before[unit], key=lambda other: (found[other][0], -other), default=None
            )
            length = 0 if before is None else found[before][0]
            found[unit] = (length + durations_ns[unit], before)
        return found
