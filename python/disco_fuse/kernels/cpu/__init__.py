"""Schedules for CPUs: how a fusion group becomes vectorised loop nests."""

from .driver import RULES as RULES_ATTR
from .driver import schedule
from .transform import BUILD_CONFIG, MarkOps, ScheduleCPU, without_noalias

__all__ = ["BUILD_CONFIG", "RULES_ATTR", "MarkOps", "ScheduleCPU", "schedule", "without_noalias"]
