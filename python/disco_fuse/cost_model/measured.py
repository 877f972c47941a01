"""Measured times of fusion groups in place of another model's predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_fuse import _ffi
from disco_fuse.cost_model.base import (
    CostModel,
    Group,
    Times,
    check_groups,
    flatten,
    predict_checked,
)
from disco_fuse.graph import OpGraph


class MeasuredCostModel(CostModel):
    """What was measured counts; all else costs what ``base`` says.

    A measured group stands for every group that is the same kernel, wherever in a graph it is (see
    ``src/cost/measured_cost_model.h``).

    Parameters
    ----------
    base : CostModel
    graph : OpGraph
        Of the groups.
    groups : sequence of Group
    times_us : float64[len(groups)]
        Measured, launch included.

    Raises
    ------
    ValueError
        A group holds an op that the graph has not.
    """

    def __init__(
        self, base: CostModel, graph: OpGraph, groups: Sequence[Group], times_us: Times
    ) -> None:
        check_groups(graph, groups)
        self.base = base
        self._graph = graph
        self._groups = tuple(groups)
        self._times_us = np.array(times_us, np.float64)

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def thread_safe(self) -> bool:
        return self.base.thread_safe

    @property
    def digest(self) -> str:
        text = hashlib.sha256((self.base.digest + self._graph.digest).encode())
        text.update(repr(self._groups).encode())
        text.update(self._times_us.tobytes())
        return text.hexdigest()

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Times:
        return predict_checked(self, graph, groups)

    def _native(self, graph: OpGraph) -> Any:
        return _ffi.function("cost.measured")(
            self.base._native(graph), self._graph._handle, *flatten(self._groups), self._times_us
        )
