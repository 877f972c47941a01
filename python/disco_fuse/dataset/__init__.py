"""Measured fusion groups, what learned cost models learn from them, and how well."""

from __future__ import annotations

from disco_fuse.dataset.store import Header, MeasuredGroup, SampleFile

__all__ = ["Header", "MeasuredGroup", "SampleFile"]
