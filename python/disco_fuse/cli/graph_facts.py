"""Imports one training step and measures it; runs in a process of its own."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TypedDict

from disco_fuse.tuning.importing import import_step


class GraphFacts(TypedDict):
    """One training graph.

    ``import_s`` is the time in seconds from the model to the lowered module with its AllReduces,
    ``peak_rss_mb`` the largest resident set of the process in 10**6 bytes, the model's weights
    included. ``ops`` counts everything in the graph. There are ``gradients`` tensors of ``bytes``
    bytes in total to be averaged; buffers that rank 0 sends to all others are not among them.
    """

    name: str
    import_s: float
    peak_rss_mb: float
    ops: int
    gradients: int
    bytes: int


def graph_facts(name: str, reference: str) -> GraphFacts:
    """Import the workload that ``reference`` names; the result is called ``name``."""
    step = import_step(reference)
    return GraphFacts(
        name=name,
        import_s=round(step.import_s, 2),
        peak_rss_mb=round(peak_rss_bytes() / 1e6, 1),
        ops=step.extraction.graph.num_ops,
        gradients=step.num_gradients,
        bytes=step.gradient_bytes,
    )


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far.

    On Linux from ``/proc``: what ``getrusage`` says there includes the parent's size at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
