"""Imports one training step and measures it; runs in a process of its own."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TypedDict

import tvm

from disco_fuse.extract import extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.lower import lower
from disco_fuse.target import host_target
from disco_fuse.workload import load_workload


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
    # Needs torch, which the rest of the command line does without.
    from disco_fuse.frontend.torch import training_step

    workload = load_workload(reference)
    example = workload.example_tensors()
    begin = time.perf_counter()
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    mod = tvm.transform.Sequential([InsertAllReduce()])(step.mod)
    mod = lower(mod, host_target(), library=library_available())
    import_s = time.perf_counter() - begin
    graph = extract(mod).graph
    return GraphFacts(
        name=name,
        import_s=round(import_s, 2),
        peak_rss_mb=round(peak_rss_bytes() / 1e6, 1),
        ops=graph.num_ops,
        gradients=len(step.gradient_names),
        bytes=sum(step.values[name].nbytes for name in step.gradient_names),
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
