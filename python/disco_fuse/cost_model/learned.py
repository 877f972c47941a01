"""What the learned cost models share: they correct the roofline, and say when they cannot know.

    time = launch + roofline without launch * exp(y)      y learned, cut off at what training saw

A ratio depends less on sizes than a time, so it should carry over better to models and sizes that
training did not see. An op alone costs what was measured for it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse.cost_model.base import CostModel, Group, Times
from disco_fuse.cost_model.familiarity import Familiarity
from disco_fuse.cost_model.features import GroupFeatures, kernel_times_us, read_features
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.device import DeviceSpec
from disco_fuse.graph import OpGraph

HUBER_DELTA = 0.1
"""Errors of logarithms count squared up to here and linearly above (P. J. Huber, "Robust Estimation
of a Location Parameter", Ann. Math. Statist. 35, 1964): a few kernels are slower for reasons that
no feature tells, and squared they would outweigh the rest."""

_LEAST_SHARE = 0.02  # of the kernel in what a step pays, so that no group counts nothing


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingGroup:
    """One measured group for training and evaluation.

    Attributes
    ----------
    features : GroupFeatures
    roofline_us : float
        The roofline's answer without launch, which is to be corrected.
    measured_us : float
        The measured time without launch.
    """

    features: GroupFeatures
    roofline_us: float
    measured_us: float

    @property
    def log_ratio(self) -> float:
        """What models predict."""
        return float(np.log(self.measured_us / self.roofline_us))


def log_ratios(groups: Sequence[TrainingGroup]) -> npt.NDArray[np.float64]:
    """Targets of training, float64[len(groups)].

    Raises
    ------
    ValueError
        There is no group, or a time is no positive number.
    """
    if not groups:
        raise ValueError("a cost model needs at least one measured group to learn from")
    for item in groups:
        if not (0 < item.measured_us < np.inf and 0 < item.roofline_us < np.inf):
            raise ValueError(
                f"measured {item.measured_us} us, roofline {item.roofline_us} us: times to learn "
                "from must be finite and > 0"
            )
    return np.array([item.log_ratio for item in groups])


def weights(groups: Sequence[TrainingGroup], launch_us: float) -> npt.NDArray[np.float64]:
    """What an error of each group counts in training, float64[len(groups)], 1 at most.

    The root of the kernel's share in what a step pays for it: the largest part of a kernel of some
    nanoseconds is its launch, which no model has to predict.

    Parameters
    ----------
    launch_us : float
        What every kernel costs more.
    """
    measured = np.array([item.measured_us for item in groups])
    return np.sqrt(np.maximum(measured / (measured + launch_us), _LEAST_SHARE))


class LearnedCostModel(CostModel):
    """Base of the models that are read from files.

    Parameters
    ----------
    file : ModelFile
    launch_us : float, optional
        Fixed time of a kernel on this machine; default: that of the file's device.
    op_times_us : float64[num_ops], optional
        Measured time of each op alone, launch not included.
    """

    def __init__(
        self, file: ModelFile, launch_us: float | None = None, op_times_us: Times | None = None
    ) -> None:
        self._file = file
        launch = file.device.launch_us if launch_us is None else launch_us
        self.device = replace(file.device, launch_us=launch)
        self._op_times_us = None if op_times_us is None else np.array(op_times_us, np.float64)
        self.familiarity = Familiarity.from_arrays(file.arrays)
        self._least, self._most = (float(limit) for limit in file.arrays["limits"])

    @property
    def name(self) -> str:
        return self._file.kind

    @property
    def environment(self) -> str:
        """What the training data was measured on."""
        return self._file.environment

    @property
    def digest(self) -> str:
        text = hashlib.sha256(repr((self.name, self.device)).encode())
        for name, values in sorted(self._file.arrays.items()):
            text.update(name.encode() + values.tobytes())
        if self._op_times_us is not None:
            text.update(self._op_times_us.tobytes())
        return text.hexdigest()

    @abstractmethod
    def log_ratios(self, features: Sequence[GroupFeatures]) -> npt.NDArray[np.float64]:
        """What is learned, as the model itself says, without limits; float64[len(features)]."""

    def corrections(self, features: Sequence[GroupFeatures]) -> npt.NDArray[np.float64]:
        """Factors on the roofline's times, float64[len(features)]."""
        limited = np.clip(self.log_ratios(features), self._least, self._most)
        factors: npt.NDArray[np.float64] = np.exp(limited)
        return factors

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Times:
        times_us = kernel_times_us(graph, groups, self.device, self._op_times_us)
        fused = [i for i, group in enumerate(groups) if len(group.ops) > 1]
        if fused:
            times_us[fused] *= self.corrections(self._features(graph, [groups[i] for i in fused]))
        return times_us + self.device.launch_us

    def unfamiliarity(self, graph: OpGraph, groups: Sequence[Group]) -> npt.NDArray[np.float64]:
        """How far groups are from the training groups; above 1 a prediction is a guess.

        Ops alone, whose time is measured, are at 0.

        Returns
        -------
        float64[len(groups)]
        """
        result = np.zeros(len(groups))
        fused = [i for i, group in enumerate(groups) if len(group.ops) > 1]
        if fused:
            features = self._features(graph, [groups[i] for i in fused])
            result[fused] = self.familiarity.distances(features)
        return result

    def worth_measuring(
        self, graph: OpGraph, groups: Sequence[Group], num_groups: int
    ) -> tuple[int, ...]:
        """Indices of the groups to measure for real, the most doubtful time first.

        The time in doubt is the predicted one times :meth:`unfamiliarity`; ops alone are left out,
        and of groups in equal doubt the first counts.
        """
        doubt = self.unfamiliarity(graph, groups) * self.predict(graph, groups)
        order = np.argsort(-doubt, kind="stable")[:num_groups]
        return tuple(int(i) for i in order if doubt[i] > 0)

    def _features(self, graph: OpGraph, groups: Sequence[Group]) -> list[GroupFeatures]:
        return read_features(graph, groups, self.device, self._op_times_us)


def file_of(
    kind: str,
    groups: Sequence[TrainingGroup],
    arrays: dict[str, npt.NDArray[Any]],
    *,
    device: DeviceSpec,
    environment: str,
    training: dict[str, Any],
) -> ModelFile:
    """The file of a model trained on ``groups``: its own arrays, and those of this base."""
    targets = log_ratios(groups)
    limits = np.array([targets.min(), targets.max()])
    familiar = Familiarity.of([item.features for item in groups]).arrays()
    return ModelFile(
        kind=kind,
        device=device,
        environment=environment,
        training={"num_groups": len(groups), **training},
        arrays={**arrays, **familiar, "limits": limits},
    )
