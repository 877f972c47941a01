"""Cost models: how long a kernel takes that may never have been built."""

from disco_fuse.cost_model.base import CostModel, Group, predict_checked
from disco_fuse.cost_model.roofline import RooflineCostModel, num_nests

__all__ = ["CostModel", "Group", "RooflineCostModel", "num_nests", "predict_checked"]
