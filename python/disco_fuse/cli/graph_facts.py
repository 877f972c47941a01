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
    imported = import_step(reference)
    graph, step = imported.extraction.graph, imported.step
    return GraphFacts(
        name=name,
        import_s=round(imported.import_s, 2),
        peak_rss_mb=round(peak_rss_bytes() / 1e6, 1),
        ops=graph.num_ops,
        gradients=len(step.gradient_names),
        bytes=sum(step.values[name].nbytes for name in step.gradient_names),
    )
