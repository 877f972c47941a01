"""From a model to a tuned strategy without hardware: import, search, and the truth about both."""

from disco_fuse.tuning.problem import Problem
from disco_fuse.tuning.tune import TuningResult, tune

__all__ = ["Problem", "TuningResult", "tune"]
