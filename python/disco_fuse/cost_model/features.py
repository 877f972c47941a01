"""What learned cost models see of a fusion group; the columns are made in src/cost/group_features.

The same C++ code serves training and search, so that a model sees in both what it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from disco_fuse import _ffi
from disco_fuse.cost_model.base import Group, Times, check_groups, flatten
from disco_fuse.cost_model.roofline import RooflineCostModel
from disco_fuse.device import DeviceSpec
from disco_fuse.graph import OpGraph

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

FEATURE_VERSION = int(_ffi.function("cost.feature_version")())
"""Stands in every model file; a model of another version is refused."""
NODE_FEATURES = tuple(str(name) for name in _ffi.function("cost.node_feature_names")())
GLOBAL_FEATURES = tuple(str(name) for name in _ffi.function("cost.global_feature_names")())
NUM_AGGREGATED = next(i for i, name in enumerate(NODE_FEATURES) if name.startswith("type_"))
"""Node features before the types of operators, which the globals count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupFeatures:
    """Features of one group of several ops; sizes and times are logarithms.

    Attributes
    ----------
    nodes : float32[num_members, len(NODE_FEATURES)]
    producer, consumer : int32[num_edges]
        Ends of the data edges inside the group, as indices of members.
    globals : float32[len(GLOBAL_FEATURES)]
    """

    nodes: Floats
    producer: Ints
    consumer: Ints
    globals: Floats

    def aggregated(self) -> Floats:
        """The globals, then mean, maximum and minimum of ``NUM_AGGREGATED`` node features.

        Returns
        -------
        float32[len(GLOBAL_FEATURES) + 3 * NUM_AGGREGATED]
        """
        nodes = self.nodes[:, :NUM_AGGREGATED]
        return np.concatenate([self.globals, nodes.mean(0), nodes.max(0), nodes.min(0)])


def read_features(
    graph: OpGraph,
    groups: Sequence[Group],
    device: DeviceSpec,
    op_times_us: Times | None = None,
) -> list[GroupFeatures]:
    """Features of a batch of groups.

    Parameters
    ----------
    device : DeviceSpec
        Of the roofline whose answer is one of the features.
    op_times_us : float64[num_ops], optional
        Measured time of each op alone, launch not included; default: the roofline's.
    """
    check_groups(graph, groups)
    roofline = RooflineCostModel(replace(device, launch_us=0.0), op_times_us)
    read = _ffi.function("cost.read_features")
    parts = read(roofline._native(graph), graph._handle, *flatten(groups))
    nodes, node_begin, producer, consumer, edge_begin, of_groups = map(_ffi.array, parts)
    nodes = nodes.reshape(-1, len(NODE_FEATURES))
    of_groups = of_groups.reshape(-1, len(GLOBAL_FEATURES))
    return [
        GroupFeatures(
            nodes=nodes[node_begin[i] : node_begin[i + 1]],
            producer=producer[edge_begin[i] : edge_begin[i + 1]],
            consumer=consumer[edge_begin[i] : edge_begin[i + 1]],
            globals=of_groups[i],
        )
        for i in range(len(groups))
    ]


def kernel_times_us(
    graph: OpGraph,
    groups: Sequence[Group],
    device: DeviceSpec,
    op_times_us: Times | None = None,
) -> Times:
    """The roofline's times without launch: what learned models correct.

    Returns
    -------
    float64[len(groups)]
        Microseconds.
    """
    return RooflineCostModel(replace(device, launch_us=0.0), op_times_us).predict(graph, groups)
