"""Finds fusion groups to measure: kernels of random strategies of a model, and of FuseOps'.

strategy 0   TVM's FuseOps        every strategy: its groups of several ops that no file holds
strategy 1   few random edits     yet, of which some are taken at random, so that one strategy
strategy 2   more of them         does not fill the whole file
...
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.bindings import is_op
from disco_fuse.cost_model import Group
from disco_fuse.cost_model.standalone import signature, standalone, to_text
from disco_fuse.dataset.measure import Reference, measure_kernels
from disco_fuse.dataset.store import MeasuredGroup, SampleFile
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpGraph
from disco_fuse.strategy import Strategy
from disco_fuse.testing import random_strategy

# Edits per op of the graph: from groups of two to what a search ends with.
_EDITS_PER_OP = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_GROUPS_PER_STRATEGY = 24
_STRATEGIES_WITHOUT_NEW = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A group that can be measured.

    Attributes
    ----------
    graph, group
        Standing alone.
    name : str
        Its signature.
    func : PrimFunc
        The kernel, not scheduled.
    in_model : Group
        The same in the graph of the model.
    """

    graph: OpGraph
    group: Group
    name: str
    func: tirx.PrimFunc
    in_model: Group

    @property
    def members(self) -> tuple[int, ...]:
        """Its ops in the graph of the model."""
        return self.in_model.ops


def candidates(
    mod: tvm.IRModule, extraction: Extraction, known: Callable[[], set[str]], seed: int
) -> Iterator[list[Candidate]]:
    """New groups, one list per strategy; ends when strategies bring none any more.

    Parameters
    ----------
    mod : tvm.IRModule
        The lowered module that ``extraction`` was read from.
    known : callable
        Signatures that are not wanted, asked again for every strategy.
    seed : int
    """
    generator = random.Random(seed)
    number, barren = 0, 0
    while barren < _STRATEGIES_WITHOUT_NEW:
        if number == 0:
            strategy = baseline("op_fusion", mod, extraction)
        else:
            share = _EDITS_PER_OP[number % len(_EDITS_PER_OP)]
            num_edits = max(1, int(share * extraction.graph.num_ops))
            strategy = random_strategy(extraction.graph, generator.getrandbits(32), num_edits)
        number += 1
        found = groups_of(mod, extraction, strategy, known())
        barren = 0 if found else barren + 1
        if found:
            generator.shuffle(found)
            yield found[:_GROUPS_PER_STRATEGY]


def measure_candidates(
    file: SampleFile,
    model: str,
    mod: tvm.IRModule,
    extraction: Extraction,
    chosen: list[Candidate],
    target: tvm.target.Target,
    reference: Reference,
) -> int:
    """Measure groups and those of their ops that ``file`` lacks, and keep all in ``file``.

    A group that cannot be compiled is kept as a failure, with its reason.

    Returns
    -------
    int
        How many groups were measured.
    """
    ops = _missing_ops(mod, extraction, chosen, set(file.op_times_us()))
    # Names of functions: what LLVM calls a symbol cannot begin with a digit.
    functions = {f"op_{name}": func for name, func in ops.items()}
    functions |= {f"fused_{item.name}": item.func for item in chosen}
    try:
        timings = measure_kernels(functions, target, reference)
    except Exception as error:  # whatever TVM raises: the culprit is found below
        if len(chosen) == 1:
            file.add_failure(chosen[0].name, model, f"{type(error).__name__}: {error}"[:1000])
            return 0
        halves = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
        return sum(
            measure_candidates(file, model, mod, extraction, half, target, reference)
            for half in halves
        )
    file.add_ops({name: timings[f"op_{name}"].sample for name in ops})
    file.add(
        MeasuredGroup(
            graph=item.graph,
            group=item.group,
            model=model,
            **vars(timings[f"fused_{item.name}"]),
        )
        for item in chosen
    )
    return len(chosen)


def groups_of(
    mod: tvm.IRModule, extraction: Extraction, strategy: Strategy, known: set[str]
) -> list[Candidate]:
    """Groups of several ops of ``strategy`` that are not ``known``, each signature once."""
    graph = extraction.graph
    units = [unit for unit in strategy.units(graph) if unit.kind == "kernel"]
    wanted: dict[str, tuple[int, OpGraph, Group]] = {}
    for place, unit in enumerate(units):
        if len(unit.ops) > 1:
            alone = standalone(graph, Group(ops=unit.ops, outputs=unit.outputs))
            wanted.setdefault(signature(to_text(*alone)), (place, *alone))
    wanted = {name: item for name, item in wanted.items() if name not in known}
    if not wanted:
        return []
    kernels = _kernels(apply(mod, extraction, strategy))
    assert len(kernels) == len(units), "one call per kernel of the strategy"
    return [
        Candidate(
            graph=alone,
            group=group,
            name=name,
            func=kernels[place],
            in_model=Group(ops=units[place].ops, outputs=units[place].outputs),
        )
        for name, (place, alone, group) in wanted.items()
    ]


def _kernels(applied: tvm.IRModule) -> list[tirx.PrimFunc]:
    """The PrimFuncs that main calls, in the order of the calls."""
    passes = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    fused = tvm.transform.Sequential(passes)(applied)
    return [
        fused[binding.value.args[0]]
        for block in fused["main"].body.blocks
        for binding in block.bindings
        if is_op(binding.value, "relax.call_tir")
    ]


def _missing_ops(
    mod: tvm.IRModule, extraction: Extraction, chosen: list[Candidate], known: set[str]
) -> dict[str, tirx.PrimFunc]:
    """The kernels of members whose own time is not known, by the ops' signatures."""
    result = {}
    for item in chosen:
        for op in item.members:
            name = extraction.graph.ops[op].signature
            if name not in known:
                result[name] = mod[extraction.bindings[op].value.args[0]]
    return result
