"""Runs several plans of one workload side by side under mpirun, and PyTorch DDP beside them."""

from __future__ import annotations

from disco_fuse.compare.driver import compare
from disco_fuse.compare.report import StrategyResult, check_losses, format_table, to_json
from disco_fuse.compare.spec import ComparisonSpec, DdpOptions

__all__ = [
    "ComparisonSpec",
    "DdpOptions",
    "StrategyResult",
    "check_losses",
    "compare",
    "format_table",
    "to_json",
]
