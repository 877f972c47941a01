"""The cost model of graph attention, computed from flat weights in C++ (src/cost/gnn_inference).

Prediction needs neither torch nor DGL; training does (``gnn_training.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse import _ffi
from disco_fuse.cost_model.base import Group, Times, predict_checked
from disco_fuse.cost_model.features import GroupFeatures
from disco_fuse.cost_model.learned import LearnedCostModel
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.graph import OpGraph

KIND = "gnn"


class GnnCostModel(LearnedCostModel):
    """Runs in the threads of the search, without Python."""

    def __init__(
        self, file: ModelFile, launch_us: float | None = None, op_times_us: Times | None = None
    ) -> None:
        super().__init__(file, launch_us, op_times_us)
        self._shape = np.array(file.arrays["shape"], np.int32)
        self._weights = np.array(file.arrays["weights"], np.float32)

    @classmethod
    def load(
        cls, path: Path, launch_us: float | None = None, op_times_us: Times | None = None
    ) -> GnnCostModel:
        """Read a model file.

        Raises
        ------
        FileNotFoundError, ValueError
            See :meth:`disco_fuse.cost_model.model_file.ModelFile.load`.
        """
        try:
            return cls(ModelFile.load(path, KIND), launch_us, op_times_us)
        except KeyError as error:
            raise ValueError(f"{path} is not the file of a cost model: no {error}") from error

    @property
    def thread_safe(self) -> bool:
        return True

    def log_ratios(self, features: Sequence[GroupFeatures]) -> npt.NDArray[np.float64]:
        return run_network(self._shape, self._weights, features)

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Times:
        return predict_checked(self, graph, groups)

    def _native(self, graph: OpGraph) -> Any:
        device = self.device
        numbers = [device.peak_gflops, device.bandwidth_gbps, device.launch_us, device.nest_us]
        shares = [[item.flops, item.bandwidth] for item in device.efficiency]
        return _ffi.function("cost.gnn")(
            graph._handle,
            device.name,
            np.array(numbers, np.float64),
            [str(item.op_class) for item in device.efficiency],
            np.array(shares, np.float64).reshape(-1),
            np.array([] if self._op_times_us is None else self._op_times_us, np.float64),
            self._shape,
            self._weights,
            np.array([self._least, self._most], np.float64),
        )


def run_network(
    shape: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    features: Sequence[GroupFeatures],
) -> npt.NDArray[np.float64]:
    """Outputs of a network from flat weights, group by group.

    Parameters
    ----------
    shape : int32[4]
        Attention layers, width of a node, heads, width of the dense layers.
    weights : float32[number that the shape asks for, or a multiple]
        Of one network, or of several whose outputs are averaged, each in the order that
        ``GnnNetwork`` of src/cost/gnn_inference.h states.

    Returns
    -------
    float64[len(features)]

    Raises
    ------
    ValueError
        Shape and weights do not fit.
    """
    run = _ffi.function("cost.run_gnn")
    outputs = [
        run(
            shape,
            weights,
            np.ascontiguousarray(item.nodes).reshape(-1),
            np.ascontiguousarray(item.producer),
            np.ascontiguousarray(item.consumer),
            np.ascontiguousarray(item.globals),
        )
        for item in features
    ]
    return np.array(outputs, np.float64)
