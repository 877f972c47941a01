"""Schedules for CPUs: how a fusion group becomes vectorised loop nests."""

from .driver import schedule
from .transform import MarkOps, ScheduleCPU, without_noalias

__all__ = ["MarkOps", "ScheduleCPU", "schedule", "without_noalias"]
