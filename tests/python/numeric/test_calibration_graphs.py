"""The totals that cluster-a was calibrated on are those of the full-size training graphs.

Run as a program, this writes `tests/python/unit/calibration.json` anew (three minutes); then see
what `tests/python/unit/test_calibration.py` says of the preset.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tvm

from disco_fuse.cluster import ClusterSpec
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpGraph, OpKind
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target
from disco_fuse.workload import load_workload

SAVED = Path(__file__).parents[1] / "unit" / "calibration.json"

# Seconds of compute without fusion on cluster A: Yi et al., IEEE TPDS 2022, off the bar charts.
MODELS = {
    "vgg19_wide": ("disco_fuse.zoo.vgg:vgg19_wide", 0.81),
    "resnet50": ("disco_fuse.zoo.resnet:resnet50", 0.30),
    "transformer": ("disco_fuse.zoo.transformer:transformer", 0.62),
    "rnnlm": ("disco_fuse.zoo.rnnlm:rnnlm", 0.88),
}


def full_size_graph(reference: str) -> OpGraph:
    """The graph as a GPU has it: matmuls and convolutions are library calls."""
    load = load_workload(reference)
    example = load.example_tensors()
    step = training_step(load.model, example, loss=load.loss, optimizer=load.optimizer)
    mod = tvm.transform.Sequential([InsertAllReduce()])(step.mod)
    return extract(lower(mod, host_target(), library=True, library_convolutions=True)).graph


def rows(graph: OpGraph) -> dict[str, list[Any]]:
    """Distinct ops and gradients with their numbers, as `calibration.json` holds them."""
    ops: Counter[tuple[str, float, int]] = Counter()
    gradients: Counter[int] = Counter()
    for op in graph.ops:
        if op.kind == OpKind.ALLREDUCE:
            gradients[op.bytes_written] += 1
        else:
            ops[str(op.op_class), op.flops, op.bytes_read + op.bytes_written] += 1
    return {
        "ops": [[*key, count] for key, count in sorted(ops.items())],
        "gradients": [[size, count] for size, count in sorted(gradients.items())],
    }


def totals(saved: Mapping[str, Any]) -> dict[str, float]:
    """Ops, operations and bytes of each class, and those of the gradients."""
    sums: Counter[str] = Counter()
    for op_class, flops, num_bytes, count in saved["ops"]:
        sums[f"{op_class} ops"] += count
        sums[f"{op_class} flops"] += flops * count
        sums[f"{op_class} bytes"] += num_bytes * count
    sums["gradients"] = sum(count for _, count in saved["gradients"])
    sums["gradient bytes"] = sum(size * count for size, count in saved["gradients"])
    return dict(sums)


@pytest.mark.models
@pytest.mark.parametrize("model", MODELS)
def test_saved_totals_are_those_of_the_graph(model: str) -> None:
    reference, paper_s = MODELS[model]
    graph = full_size_graph(reference)
    saved = json.loads(SAVED.read_text(encoding="utf-8"))[model]
    # A converter may come to need an op more or less; beyond this, write the file anew.
    assert totals(rows(graph)) == pytest.approx(totals(saved), rel=0.05)
    cluster = ClusterSpec.preset("cluster-a")
    timeline = simulate(graph, Strategy.unfused(graph), RooflineCostModel(cluster.device), cluster)
    assert timeline.compute_us / 1e6 == pytest.approx(paper_s, rel=0.15)


def _write() -> None:
    parts = []
    for model, (reference, _) in MODELS.items():
        found = rows(full_size_graph(reference))
        lines = ",\n".join(f"      {json.dumps(row)}" for row in found["ops"])
        gradients = json.dumps(found["gradients"])
        parts.append(
            f'  "{model}": {{\n    "ops": [\n{lines}\n    ],\n    "gradients": {gradients}\n  }}'
        )
    SAVED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _write()
