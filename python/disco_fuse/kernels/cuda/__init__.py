"""Schedules for CUDA: how a fusion group becomes kernels of blocks and threads."""

from .driver import schedule

__all__ = ["schedule"]
