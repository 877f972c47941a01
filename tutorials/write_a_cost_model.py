"""Write a cost model of your own and let the search believe it.

The search asks a `CostModel` for the time of kernels that were never built, thousands of times a
second. Any class with a name, a digest and `predict` will do. Here a device is imagined whose
kernels have only so many registers: a fusion group of more than a few members spills, and every
member beyond that costs one more trip through memory. The roofline does not know that; the search
fuses less once its model does.

Predictions come in batches, in microseconds; what is not finite or is negative is refused, never
clipped. A model in Python is asked through a callback; the search keeps every answer, so that each
distinct group is asked for once.

    python tutorials/write_a_cost_model.py [--registers 4] [--model MODEL]
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from disco_fuse.cli.references import reference_of
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import CostModel, Group, RooflineCostModel, predict_checked
from disco_fuse.graph import OpGraph
from disco_fuse.search import search
from disco_fuse.simulate import simulate
from disco_fuse.strategy import Strategy
from disco_fuse.tuning.importing import import_problem

MODEL = "disco_fuse.zoo.bench_models:byte_gpt"  # or a name of the zoo


@dataclass
class SpillingCostModel(CostModel):
    """The roofline, plus a trip through memory for every member beyond what registers hold.

    Attributes
    ----------
    roofline : RooflineCostModel
        What a group costs without spilling.
    registers : int
        Members that a kernel can keep at once.
    num_asked : int
        Groups that were predicted so far.
    """

    roofline: RooflineCostModel
    registers: int
    num_asked: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        return f"roofline with {self.registers} registers"

    @property
    def digest(self) -> str:
        """Plans are compared by this: everything that a prediction depends on goes in."""
        text = f"spilling {self.registers} {self.roofline.digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> np.ndarray:
        """Microseconds, one for each group."""
        self.num_asked += len(groups)
        times_us = predict_checked(self.roofline, graph, groups)
        us_per_byte = 1e-3 / self.roofline.device.bandwidth_gbps
        for i, group in enumerate(groups):
            spilled = group.ops[self.registers :]
            num_bytes = sum(2 * graph.ops[op].bytes_written for op in spilled)
            times_us[i] += num_bytes * us_per_byte
        return times_us


def members(strategy: Strategy, graph: OpGraph) -> list[int]:
    """Size of every kernel."""
    return [len(unit.ops) for unit in strategy.units(graph) if unit.kind != "bucket"]


def main() -> None:
    """Search with both models, and price what each found with the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registers", type=int, default=4, help="members that fit (default 4)")
    parser.add_argument("--model", default=MODEL, help=f"default {MODEL}")
    options = parser.parse_args()
    cluster = ClusterSpec.load("1gbit-cpu")
    graph = import_problem(options.model, reference_of(options.model)).graph
    roofline = RooflineCostModel(cluster.device)
    spilling = SpillingCostModel(roofline, options.registers)
    config = SearchConfig.preset("full", max_steps=4_000)
    found = {}
    for model in (roofline, spilling):
        begin = time.perf_counter()
        found[model.name] = search(graph, model, cluster, config).best
        sizes = members(found[model.name], graph)
        print(
            f"{model.name}: {len(sizes)} kernels, the largest of {max(sizes)} ops, "
            f"{time.perf_counter() - begin:.1f} s"
        )
    print(f"groups asked for in Python: {spilling.num_asked}\n")

    print(f"{'makespan in ms':<36}{'without spilling':>20}{'with spilling':>20}")
    for name, strategy in found.items():
        row = [simulate(graph, strategy, m, cluster).makespan_us for m in (roofline, spilling)]
        print(f"{'found by ' + name:<36}{row[0] / 1e3:>20.3f}{row[1] / 1e3:>20.3f}")
    ours, theirs = (simulate(graph, found[m.name], spilling, cluster) for m in (spilling, roofline))
    if ours.makespan_us > theirs.makespan_us:
        raise SystemExit("ERROR: the search did not use what its model knows")


if __name__ == "__main__":
    main()
