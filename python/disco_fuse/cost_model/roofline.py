"""The roofline model: bytes against bandwidth, operations against peak, less what fusion saves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_fuse import _ffi
from disco_fuse.config import DeviceSpec
from disco_fuse.cost_model.base import (
    CostModel,
    Group,
    Times,
    check_groups,
    flatten,
    predict_checked,
)
from disco_fuse.graph import OpGraph


class RooflineCostModel(CostModel):
    """Traffic and operations of each member, less the traffic that fusing removes.

    With ``peak`` and ``u = 1 / bandwidth`` at the rates that the op's class reaches
    (``device.efficiency``), ``t = op_times_us`` or ``max(flops / peak, bytes * u)``, and ``s`` the
    bytes of a member's reads and writes that vanish inside the group, a member costs
    ``max(flops / peak, t - min(s * u, t * s / bytes))`` and a group
    ``launch_us + (num_nests - 1) * nest_us`` plus its members. See ``src/cost/roofline.h``.

    Parameters
    ----------
    device : DeviceSpec
    op_times_us : float64[num_ops], optional
        Measured time of each op alone, launch not included; entries of allreduce ops are ignored.
    """

    def __init__(self, device: DeviceSpec, op_times_us: Times | None = None) -> None:
        self.device = device
        self._op_times_us = None if op_times_us is None else np.array(op_times_us, np.float64)

    @property
    def name(self) -> str:
        return "roofline"

    @property
    def thread_safe(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        text = hashlib.sha256(repr(self.device).encode())
        if self._op_times_us is not None:
            text.update(self._op_times_us.tobytes())
        return text.hexdigest()

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Times:
        return predict_checked(self, graph, groups)

    def _native(self, graph: OpGraph) -> Any:
        device = self.device
        numbers = [device.peak_gflops, device.bandwidth_gbps, device.launch_us, device.nest_us]
        times = np.array([] if self._op_times_us is None else self._op_times_us, np.float64)
        shares = [[item.flops, item.bandwidth] for item in device.efficiency]
        return _ffi.function("cost.roofline")(
            graph._handle,
            device.name,
            np.array(numbers, np.float64),
            [str(item.op_class) for item in device.efficiency],
            np.array(shares, np.float64).reshape(-1),
            times,
        )


def num_nests(graph: OpGraph, group: Group) -> int:
    """Number of loop nests that a kernel of these members has."""
    check_groups(graph, [group])
    counts = _ffi.function("cost.count_nests")(graph._handle, *flatten([group]))
    return int(_ffi.array(counts)[0])
