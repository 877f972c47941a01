"""Plan, cost model and kernels agree: a group has as many loop nests as it is priced for."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import tvm
from small_workload import workload
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.bindings import is_op
from disco_fuse.cost_model import Group, num_nests
from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.optimizer import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpPattern
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.analysis import num_nests as num_nests_of_kernel
from disco_fuse.kernels.cpu import ScheduleCPU
from disco_fuse.lower import lower
from disco_fuse.strategy import Edit, Strategy, check, replay
from disco_fuse.target import host_target
from disco_fuse.workload import Workload


class Gates(torch.nn.Module):
    """Two steps of an LSTM: gates are slices of one sum, narrower than what they are read from."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = x.repeat(1, 2), x.repeat(1, 2)
        for _ in range(2):
            h, c = self.cell(x, (h, c))
        return h


def gates() -> Workload:
    return Workload(
        name="gates",
        model=Gates(),
        loss=lambda output, target: ((output - target) ** 2).mean(),
        optimizer=SGD(lr=0.1),
        batches=lambda _rank, _world_size: iter(
            [(np.ones((4, 8), "float32"), np.ones((4, 16), "float32"))]
        ),
    )


@pytest.fixture(scope="module", params=[workload, gates], ids=["byte_gpt", "gates"])
def lowered(request: pytest.FixtureRequest) -> tuple[tvm.IRModule, Extraction]:
    load = request.param()
    example = [torch.from_numpy(part) for part in load.example_batch()]
    step = training_step(load.model, example, loss=load.loss, optimizer=load.optimizer)
    # Matmuls as library calls. A legalised one, in a group with a view before it, reads a copy of
    # the view: one nest more than it is priced for.
    mod = lower(InsertAllReduce()(step.mod), host_target(), library=True)
    return mod, extract(mod)


def _random_strategy(extraction: Extraction, num_edits: int, seed: int) -> Strategy:
    graph, rng = extraction.graph, random.Random(seed)
    pairs = [(e.producer, e.consumer) for e in graph.edges if not e.order_only]
    strategy, done = Strategy.unfused(graph), 0
    for _ in range(10 * num_edits):
        producer, consumer = rng.choice(pairs)
        kind = rng.choice(["fuse", "fuse-duplicate"])
        edit = Edit(kind=kind, producer=producer, consumer=consumer)
        if done < num_edits and check(graph, strategy, edit) == "":
            strategy = replay(graph, [edit], strategy)
            done += 1
    return strategy


def _kernels(mod: tvm.IRModule, extraction: Extraction, strategy: Strategy) -> list[int]:
    """Nests of the scheduled kernels, in emitted order."""
    passes = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination(), ScheduleCPU()]
    with host_target():
        mod = tvm.transform.Sequential(passes)(apply(mod, extraction, strategy))
    return [
        num_nests_of_kernel(mod[binding.value.args[0]])
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if is_op(binding.value, "relax.call_tir")
    ]


@pytest.mark.parametrize("choice", ["none", "op_fusion", 1, 2, 3])
def test_priced_nests_are_those_of_the_kernel(
    choice: str | int, lowered: tuple[tvm.IRModule, Extraction]
) -> None:
    mod, extraction = lowered
    if isinstance(choice, str):
        strategy = baseline(choice, mod, extraction)
    else:
        strategy = _random_strategy(extraction, 60 * choice, choice)
    graph = extraction.graph
    units = [unit for unit in strategy.units(graph) if unit.kind == "kernel"]
    actual = _kernels(mod, extraction, strategy)
    assert len(actual) == len(units)
    several = 0
    for unit, nests in zip(units, actual, strict=True):
        # An opaque op (scatter) may need a nest more, to copy what it then updates.
        if any(graph.ops[op].pattern == OpPattern.OPAQUE for op in unit.ops):
            continue
        names = [graph.ops[op].name for op in unit.ops]
        assert nests == num_nests(graph, Group(ops=unit.ops, outputs=unit.outputs)), names
        several += nests > 1
    if isinstance(choice, int):
        assert several, "no group with several nests: the comparison says nothing"
