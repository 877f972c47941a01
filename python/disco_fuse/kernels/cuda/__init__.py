"""Schedules for CUDA: how a fusion group becomes kernels of blocks and threads."""

from .driver import count_launches, schedule
from .transform import ScheduleCUDA

__all__ = ["ScheduleCUDA", "count_launches", "schedule"]
