"""The cost model of gradient-boosted trees (XGBoost, Chen and Guestrin, KDD 2016).

The one file that imports xgboost. It sees a group as one row: the global features, and mean,
maximum and minimum of the features of its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from disco_fuse.cost_model.base import Times
from disco_fuse.cost_model.features import GroupFeatures
from disco_fuse.cost_model.learned import (
    HUBER_DELTA,
    LearnedCostModel,
    TrainingGroup,
    file_of,
    log_ratios,
    weights,
)
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.device import DeviceSpec

KIND = "xgboost"


@dataclass(frozen=True, kw_only=True)
class BoostedConfig:
    """Hyperparameters, named as in xgboost; all of an ensemble differ in their seeds.

    Attributes
    ----------
    num_rounds : int
    max_depth : int
    eta : float
        Learning rate.
    subsample, colsample : float
        Shares of groups and of columns that a tree sees.
    seed : int
    """

    num_rounds: int = 900
    max_depth: int = 6
    eta: float = 0.06
    subsample: float = 0.7
    colsample: float = 0.5
    seed: int = 0


class BoostedCostModel(LearnedCostModel):
    """Predicts in Python, in batches; the search asks once for every batch of new groups."""

    def __init__(
        self, file: ModelFile, launch_us: float | None = None, op_times_us: Times | None = None
    ) -> None:
        super().__init__(file, launch_us, op_times_us)
        self._booster = xgboost.Booster({"nthread": 1})
        self._booster.load_model(bytearray(file.arrays["booster"].tobytes()))

    @classmethod
    def load(
        cls, path: Path, launch_us: float | None = None, op_times_us: Times | None = None
    ) -> BoostedCostModel:
        """Read a model file.

        Raises
        ------
        FileNotFoundError, ValueError
            See :meth:`disco_fuse.cost_model.model_file.ModelFile.load`.
        """
        file = ModelFile.load(path, KIND)
        try:
            return cls(file, launch_us, op_times_us)
        except (KeyError, xgboost.core.XGBoostError) as error:
            raise ValueError(f"{path} is not the file of a cost model: {error}") from error

    def log_ratios(self, features: Sequence[GroupFeatures]) -> npt.NDArray[np.float64]:
        rows = np.stack([item.aggregated() for item in features])
        result: npt.NDArray[np.float64] = self._booster.inplace_predict(rows).astype(np.float64)
        return result


def train_boosted(
    groups: Sequence[TrainingGroup],
    *,
    device: DeviceSpec,
    environment: str,
    config: BoostedConfig | None = None,
) -> ModelFile:
    """Fit trees to the logarithm of measured time over roofline.

    Parameters
    ----------
    groups : sequence of TrainingGroup
        All are used for training.
    device : DeviceSpec
        Of the roofline in ``groups``.

    Raises
    ------
    ValueError
        See :func:`disco_fuse.cost_model.learned.log_ratios`.
    """
    config = BoostedConfig() if config is None else config
    targets = log_ratios(groups)
    rows = np.stack([item.features.aggregated() for item in groups])
    parameters: dict[str, Any] = {
        "objective": "reg:pseudohubererror",
        "huber_slope": HUBER_DELTA,
        "max_depth": config.max_depth,
        "eta": config.eta,
        "subsample": config.subsample,
        "colsample_bytree": config.colsample,
        "min_child_weight": 1,
        "seed": config.seed,
        "nthread": 1,
    }
    counts = weights(groups, device.launch_us)
    data = xgboost.DMatrix(rows, label=targets, weight=counts, nthread=1)
    booster = xgboost.train(parameters, data, num_boost_round=config.num_rounds)
    content = np.frombuffer(bytes(booster.save_raw("ubj")), np.uint8)
    return file_of(
        KIND,
        groups,
        {"booster": content},
        device=device,
        environment=environment,
        training={"seed": config.seed},
    )
