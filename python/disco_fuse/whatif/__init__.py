"""The same model elsewhere: other world sizes, bandwidths, batches and devices, each re-tuned."""

from __future__ import annotations

from disco_fuse.whatif.points import Outcome, Point, points_of, run_points
from disco_fuse.whatif.takeover import Takeover, takeovers

__all__ = ["Outcome", "Point", "Takeover", "points_of", "run_points", "takeovers"]
