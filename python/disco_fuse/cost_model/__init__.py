"""Cost models: how long a kernel takes that may never have been built."""

from __future__ import annotations

from disco_fuse.cost_model.base import CostModel, Group, predict_checked
from disco_fuse.cost_model.learned import LearnedCostModel
from disco_fuse.cost_model.registry import ChosenModel, choose_cost_model
from disco_fuse.cost_model.roofline import RooflineCostModel, num_nests

__all__ = [
    "ChosenModel",
    "CostModel",
    "Group",
    "LearnedCostModel",
    "RooflineCostModel",
    "choose_cost_model",
    "num_nests",
    "predict_checked",
]
