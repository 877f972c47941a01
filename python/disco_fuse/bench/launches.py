"""Whether a strategy has as many kernels as it was priced for, after scheduling."""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.bindings import is_op
from disco_fuse.config import UNCAPPED
from disco_fuse.cost_model import Group, num_nests
from disco_fuse.kernels.analysis import num_nests as num_nests_of_kernel
from disco_fuse.kernels.cpu import ScheduleCPU
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target
from disco_fuse.tuning.importing import import_step


def count_launches(
    reference: str, library_convolutions: bool, digest: str, strategy: dict[str, Any]
) -> dict[str, int]:
    """Import the model again, write the strategy into it, schedule its kernels, and count.

    A kernel is launched once per outer loop nest, a library call once.

    Returns
    -------
    dict
        ``simulated`` and ``scheduled`` launches of one step.

    Raises
    ------
    ValueError
        The model does not give the graph that the strategy was made for.
    """
    step = import_step(reference, library_convolutions=library_convolutions)
    graph = step.extraction.graph
    if graph.digest != digest:
        raise ValueError(
            f"{reference} gives graph {graph.digest[:8]}, the strategy is one of {digest[:8]}"
        )
    chosen = Strategy.from_json(graph, json.dumps(strategy), limits=UNCAPPED)
    units = [unit for unit in chosen.units(graph) if unit.kind != "bucket"]
    passes = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination(), ScheduleCPU()]
    with host_target():
        mod = tvm.transform.Sequential(passes)(apply(step.mod, step.extraction, chosen))
    calls = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if is_op(binding.value, "relax.call_tir") or is_op(binding.value, "relax.call_dps_packed")
    ]
    simulated = scheduled = 0
    for unit, call in zip(units, calls, strict=True):
        if unit.kind == "library":  # a convolution has loops here, and is one call on a GPU
            simulated += 1
            scheduled += 1
        else:
            simulated += num_nests(graph, Group(ops=unit.ops, outputs=unit.outputs))
            scheduled += num_nests_of_kernel(mod[call.args[0]])
    return {"simulated": simulated, "scheduled": scheduled}
