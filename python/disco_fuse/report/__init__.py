"""A search as one HTML file that needs no network."""

from __future__ import annotations

from disco_fuse.report.data import report_data
from disco_fuse.report.page import render

__all__ = ["render", "report_data"]
