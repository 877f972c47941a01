"""Imports one training step and measures it; runs in a process of its own."""

from __future__ import annotations

from typing import TypedDict

from disco_fuse.bench.memory import peak_rss_bytes
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
