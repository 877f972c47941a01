"""Strategies (which ops form a kernel, which gradients a bucket, in which order) and edits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse import _ffi
from disco_fuse.config import BUCKET_NEIGHBOURS, EDIT_KINDS, FusionLimits
from disco_fuse.graph import OpGraph

_UNIT_KINDS = ("kernel", "library", "bucket")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One legal change, told by two ops; their groups at that time are meant.

    Attributes
    ----------
    kind : str
        "fuse": the groups of both ops become one kernel. "fuse-duplicate": ``producer`` is
        recomputed in the group of ``consumer`` and kept for others. "merge-buckets": the buckets
        of two allreduce ops become one message. Beyond the paper: "split-bucket": the bucket of
        both is cut in front of ``consumer``, in the order in which gradients are produced.
        "move-gradient": ``producer`` goes into the neighbouring bucket of ``consumer``. "take-out":
        ``producer``, with what only serves it, leaves the group that is home of ``consumer``; a
        copy goes back to its home. "reorder": the unit of ``producer`` gets the urgency of
        ``consumer`` in the list schedule, or, if that is -1, its own again; a consumer that leads
        to no gradient puts it behind all that lead to one.
    producer, consumer : int
        Op ids.
    """

    kind: str
    producer: int
    consumer: int

    def __post_init__(self) -> None:
        if self.kind not in EDIT_KINDS:
            raise ValueError(f"Edit.kind must be one of {EDIT_KINDS}, got {self.kind!r}")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What runs as one piece: a kernel, a library call, or a bucket.

    Attributes
    ----------
    id : int
        Representative: the smallest op whose home the unit is.
    kind : str
        "kernel", "library" or "bucket".
    ops : tuple of int
        All members including copies, ascending, which is topological.
    outputs : tuple of int
        Members whose value is read outside the unit or returned by the step.
    """

    id: int
    kind: str
    ops: tuple[int, ...]
    outputs: tuple[int, ...]


class Strategy:
    """An immutable, canonical choice.

    Attributes
    ----------
    group_of : int32[num_ops]
        Representative (smallest home op) of the group or bucket of each op.
    duplicated : tuple of (op, group)
        Ops that are computed once more in another group.
    order : tuple of int
        Representatives of all units in emitted order.
    priorities : tuple of (op, rank)
        Units, by representative, with a given urgency in the list schedule instead of the derived
        one. Ranks are ids of the ops that produce gradients last; smaller is more urgent, and
        the last op of the graph stands behind them all.
    hash : str
        Hexadecimal hash of grouping and priorities. The order is not part of it: it follows from
        them and from the costs.
    """

    def __init__(self, handle: Any, graph: OpGraph) -> None:
        self._handle = handle
        self._graph_digest = graph.digest

    @classmethod
    def unfused(cls, graph: OpGraph) -> Strategy:
        """Every op alone, in the order of ``graph``."""
        return cls(_ffi.function("strategy.unfused")(graph._handle), graph)

    @classmethod
    def create(
        cls,
        graph: OpGraph,
        group_of: Sequence[int] | npt.NDArray[np.integer[Any]],
        duplicated: Iterable[tuple[int, int]] = (),
        order: Sequence[int] | None = None,
        priorities: Iterable[tuple[int, int]] = (),
        *,
        limits: FusionLimits | None = None,
    ) -> Strategy:
        """Check and canonicalise a choice made elsewhere.

        Parameters
        ----------
        group_of : int[num_ops]
            Any labels; ops of equal label share a group (allreduce ops: a bucket).
        duplicated : iterable of (op, label)
            Ops to be computed once more in the group of that label.
        order : sequence of int, optional
            Canonical representatives; default: a topological order, see
            :func:`disco_fuse.simulate.schedule`.
        priorities : iterable of (op, rank)
            Of any ops; of several for one unit the most urgent counts.
        limits : FusionLimits, optional
            Caps on kernels; buckets are not capped and need not be neighbours.

        Raises
        ------
        ValueError
            With the reason of the rule that is violated.
        """
        pairs = [[op, group] for op, group in duplicated]
        ranks = [[op, rank] for op, rank in priorities]
        return cls(
            _ffi.function("strategy.create")(
                graph._handle,
                native_limits(limits),
                np.array(group_of, np.int32).reshape(-1),
                np.array(pairs, np.int32).reshape(-1),
                np.array([] if order is None else order, np.int32).reshape(-1),
                np.array(ranks, np.int32).reshape(-1),
            ),
            graph,
        )

    def handle_for(self, graph: OpGraph) -> Any:
        """The C++ strategy; ValueError unless it is one of ``graph``."""
        if graph.digest != self._graph_digest:
            raise ValueError(
                f"the strategy is one of graph {self._graph_digest[:8]}, not of {graph.digest[:8]}"
            )
        return self._handle

    @cached_property
    def group_of(self) -> npt.NDArray[np.int32]:
        array: npt.NDArray[np.int32] = _ffi.array(_ffi.function("strategy.group_of")(self._handle))
        array.setflags(write=False)
        return array

    @cached_property
    def duplicated(self) -> tuple[tuple[int, int], ...]:
        flat = _ffi.array(_ffi.function("strategy.duplicated")(self._handle)).reshape(-1, 2)
        return tuple((int(op), int(group)) for op, group in flat)

    @cached_property
    def order(self) -> tuple[int, ...]:
        return tuple(_ffi.array(_ffi.function("strategy.order")(self._handle)).tolist())

    @cached_property
    def priorities(self) -> tuple[tuple[int, int], ...]:
        flat = _ffi.array(_ffi.function("strategy.priorities")(self._handle)).reshape(-1, 2)
        return tuple((int(op), int(rank)) for op, rank in flat)

    @cached_property
    def hash(self) -> str:
        return str(_ffi.function("strategy.hash")(self._handle))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strategy) and self.hash == other.hash and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Strategy({len(self.order)} units, hash {self.hash[:8]})"

    def units(self, graph: OpGraph) -> list[Unit]:
        """Kernels, library calls and buckets in emitted order."""
        parts = _ffi.function("strategy.units")(graph._handle, self.handle_for(graph))
        ids, kinds, op_begin, ops, output_begin, outputs = (
            _ffi.array(part).tolist() for part in parts
        )
        return [
            Unit(
                id=ids[i],
                kind=_UNIT_KINDS[kinds[i]],
                ops=tuple(ops[op_begin[i] : op_begin[i + 1]]),
                outputs=tuple(outputs[output_begin[i] : output_begin[i + 1]]),
            )
            for i in range(len(ids))
        ]

    def to_json(self) -> str:
        """Grouping, order and priorities as JSON text."""
        return json.dumps(
            {
                "group_of": self.group_of.tolist(),
                "duplicated": [list(pair) for pair in self.duplicated],
                "order": list(self.order),
                "priorities": [list(pair) for pair in self.priorities],
            }
        )

    @classmethod
    def from_json(
        cls, graph: OpGraph, text: str, *, limits: FusionLimits | None = None
    ) -> Strategy:
        """Inverse of :meth:`to_json`; checks legality like :meth:`create`."""
        data = json.loads(text)
        try:
            pairs = [(op, group) for op, group in data["duplicated"]]
            ranks = [(op, rank) for op, rank in data["priorities"]]
            return cls.create(graph, data["group_of"], pairs, data["order"], ranks, limits=limits)
        except KeyError as error:
            raise ValueError(f"not the JSON of a Strategy: {error} is missing") from error
        except TypeError as error:
            raise ValueError(f"not the JSON of a Strategy: {error}") from error


def check(
    graph: OpGraph, strategy: Strategy, edit: Edit, *, limits: FusionLimits | None = None
) -> str:
    """Why ``edit`` is illegal for ``strategy``, or ``""`` if it is allowed."""
    row = np.array(_row(edit), np.int32)
    return str(
        _ffi.function("strategy.check")(
            graph._handle, native_limits(limits), strategy.handle_for(graph), row
        )
    )


def replay(
    graph: OpGraph,
    edits: Iterable[Edit],
    start: Strategy | None = None,
    *,
    limits: FusionLimits | None = None,
) -> Strategy:
    """Apply edits one after the other to ``start`` (default: unfused).

    Raises
    ------
    ValueError
        Naming the index of the first illegal edit and the reason.
    """
    start = Strategy.unfused(graph) if start is None else start
    rows = np.array([_row(edit) for edit in edits], np.int32).reshape(-1)
    return Strategy(
        _ffi.function("strategy.replay")(
            graph._handle, native_limits(limits), start.handle_for(graph), rows
        ),
        graph,
    )


def _row(edit: Edit) -> list[int]:
    return [EDIT_KINDS.index(edit.kind), edit.producer, edit.consumer]


def native_limits(limits: FusionLimits | None) -> dict[str, int]:
    """The fields as the C++ side reads them."""
    limits = FusionLimits() if limits is None else limits
    return {
        "max_group_ops": limits.max_group_ops,
        "max_group_args": limits.max_group_args,
        "bucket_neighbours": BUCKET_NEIGHBOURS.index(limits.bucket_neighbours),
    }
