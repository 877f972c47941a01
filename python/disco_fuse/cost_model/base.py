"""The interface of cost models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse import _ffi
from disco_fuse.graph import OpGraph

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A kernel or library call that is to be priced.

    Attributes
    ----------
    ops : tuple of int
        Members including copies, ascending.
    outputs : tuple of int
        Members whose value leaves the group, ascending.
    """

    ops: tuple[int, ...]
    outputs: tuple[int, ...]


class CostModel(ABC):
    """Predicts how long kernels and library calls take, launch included."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for messages and plans."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hash of everything that predictions depend on."""

    @property
    def thread_safe(self) -> bool:
        """Whether the search may ask from several threads: only models written in C++ say so."""
        return False

    @abstractmethod
    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Times:
        """Times of a batch of groups.

        Must be deterministic. A model that cannot tell a time raises.

        Returns
        -------
        float64[len(groups)]
            Microseconds. Whatever is not finite and >= 0 is rejected by all callers.
        """

    def _native(self, graph: OpGraph) -> Any:
        """The C++ model that the search calls; here one that calls :meth:`predict`."""

        def predict(op_begin: Any, ops: Any, output_begin: Any, outputs: Any) -> Any:
            groups = _unflatten(op_begin, ops, output_begin, outputs)
            return np.array(self.predict(graph, groups), np.float64).reshape(-1)

        return _ffi.function("cost.callback")(self.name, predict)


def predict_checked(model: CostModel, graph: OpGraph, groups: Sequence[Group]) -> Times:
    """Predictions as the search sees them: checked, and rounded to nanoseconds.

    Returns
    -------
    float64[len(groups)]
        Microseconds.

    Raises
    ------
    ValueError
        Naming model and group, if there is not one finite time >= 0 per group.
    """
    check_groups(graph, groups)
    times = _ffi.function("cost.predict_us")(model._native(graph), graph._handle, *flatten(groups))
    times_us: Times = _ffi.array(times)
    return times_us


def check_groups(graph: OpGraph, groups: Sequence[Group]) -> None:
    """ValueError naming the first op of a group that is none of the graph's."""
    for group in groups:
        for op in (*group.ops, *group.outputs):
            if not 0 <= op < graph.num_ops:
                raise ValueError(
                    f"{group} holds op {op}; the graph has ops 0 to {graph.num_ops - 1}"
                )


def flatten(groups: Sequence[Group]) -> tuple[npt.NDArray[np.int32], ...]:
    """Four int32 arrays: offsets and values of the ops, offsets and values of the outputs."""
    ops = [op for group in groups for op in group.ops]
    outputs = [op for group in groups for op in group.outputs]
    op_begin = list(accumulate((len(group.ops) for group in groups), initial=0))
    output_begin = list(accumulate((len(group.outputs) for group in groups), initial=0))
    return tuple(np.array(part, np.int32) for part in (op_begin, ops, output_begin, outputs))


def _unflatten(*parts: Any) -> list[Group]:
    op_begin, ops, output_begin, outputs = (_ffi.array(part).tolist() for part in parts)
    return [
        Group(
            ops=tuple(ops[op_begin[i] : op_begin[i + 1]]),
            outputs=tuple(outputs[output_begin[i] : output_begin[i + 1]]),
        )
        for i in range(len(op_begin) - 1)
    ]
