"""Runs several plans of one workload side by side under mpirun, and PyTorch DDP beside them."""

from __future__ import annotations

from disco_fuse.compare.driver import ComparisonSpec, compare
from disco_fuse.compare.report import StrategyResult, check_losses, format_table, to_json

__all__ = [
    "ComparisonSpec",
    "StrategyResult",
    "check_losses",
    "compare",
    "format_table",
    "to_json",
]
