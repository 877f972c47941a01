"""Memory of one training step, measured in a process of its own."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

from disco_fuse.bench.kernels.steps import step_of
from disco_fuse.bench.memory import peak_rss_bytes, reset_peak_rss, rss_bytes
from disco_fuse.workload import load_workload


def step_peak_bytes(side: str, reference: str, folder: str) -> int:
    """What the first step of a side needs beyond parameters and optimizer state, in bytes.

    The high-water mark of the resident set during the step, less the resident set before it.
    """
    step = step_of(side, reference, Path(folder))
    batch = next(load_workload(reference).batches(0, 1))
    gc.collect()
    _trim()
    before = rss_bytes()
    reset_peak_rss()
    step.step(batch)
    return peak_rss_bytes() - before


def _trim() -> None:
    """Give memory that was freed while the step was loaded back to the system.

    The step would else reuse it unseen. Only glibc keeps so much, and only it has this function.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
