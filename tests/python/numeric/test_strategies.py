"""Every strategy computes the same step: random ones, baselines, the search's result."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.build import BuiltStep, build
from disco_fuse.config import EDIT_KINDS, FusionLimits
from disco_fuse.extract import Extraction, extract
from disco_fuse.graph import OpGraph
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.lower import lower
from disco_fuse.runtime import Session, loopback
from disco_fuse.strategy import Edit, Strategy, check, replay
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_arguments, mlp_step, run_functional

WIDTHS = (6, 16, 24, 4)
LIMITS = FusionLimits(bucket_neighbours="production-order")


@pytest.fixture(scope="module")
def target() -> tvm.target.Target:
    return host_target()


def _lowered(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[tvm.IRModule, Extraction]:
    library = library_available()
    if library:
        load_library()
    lowered = lower(InsertAllReduce()(mod), target, library=library)
    return lowered, extract(lowered)


def run_in_place(
    built: BuiltStep, arguments: Sequence[NDArray[Any]], num_inputs: int
) -> list[NDArray[Any]]:
    """(loss, parameters and state after the step)."""
    tensors = [tvm.runtime.tensor(a.copy()) for a in arguments]
    main = relax.VirtualMachine(built.executable, tvm.cpu())["main"]
    with Session(loopback()).step():
        outputs = main(*tensors)
    return [outputs[0].numpy(), *(t.numpy() for t in tensors[num_inputs:])]


def random_edits(graph: OpGraph, num: int, seed: int) -> list[Edit]:
    """Legal edits of all kinds at random places."""
    rng = random.Random(seed)
    pairs = [(e.producer, e.consumer) for e in graph.edges if not e.order_only]
    allreduces = [i for i, op in enumerate(graph.ops) if op.collective]
    edits: list[Edit] = []
    strategy = Strategy.unfused(graph)
    for _ in range(20 * num):
        kind = rng.choice(["fuse", "fuse", "fuse-duplicate", *EDIT_KINDS])
        of_buckets = kind in ("merge-buckets", "split-bucket", "move-gradient")
        pair = rng.sample(allreduces, 2) if of_buckets else rng.choice(pairs)
        if kind == "take-out" and rng.random() < 0.5:
            pair = (pair[0], pair[0])
        edit = Edit(kind=kind, producer=min(pair), consumer=max(pair))
        if check(graph, strategy, edit, limits=LIMITS) == "":
            edits.append(edit)
            strategy = replay(graph, edits, limits=LIMITS)
        if len(edits) == num:
            break
    return edits


@pytest.mark.parametrize("seed", range(8))
def test_random_strategies_compute_the_same_step(seed: int, target: tvm.target.Target) -> None:
    mod = mlp_step(widths=WIDTHS)
    arguments = mlp_arguments(mod, seed)
    expected = run_functional(mlp_step(widths=WIDTHS, gradients=False), arguments)
    lowered, extraction = _lowered(mod, target)
    edits = random_edits(extraction.graph, 4 + 6 * seed, seed)
    assert edits
    strategy = replay(extraction.graph, edits, limits=LIMITS)
    built = build(apply(lowered, extraction, strategy), target)
    kinds = [unit.kind for unit in strategy.units(extraction.graph)]
    assert built.num_kernels == len(kinds) - kinds.count("bucket")
    assert built.num_allreduces == kinds.count("bucket")
    actual = run_in_place(built, arguments, 2)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["none", "op_fusion", "default", "ddp", "single"])
def test_baselines_compute_the_same_step(name: str, target: tvm.target.Target) -> None:
    mod = mlp_step(widths=WIDTHS)
    arguments = mlp_arguments(mod)
    expected = run_functional(mlp_step(widths=WIDTHS, gradients=False), arguments)
    lowered, extraction = _lowered(mod, target)
    strategy = baseline(name, lowered, extraction)
    actual = run_in_place(build(apply(lowered, extraction, strategy), target), arguments, 2)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_without_donation_the_step_is_functional(target: tvm.target.Target) -> None:
    mod = mlp_step(widths=WIDTHS, donated=False)
    arguments = mlp_arguments(mod)
    lowered, extraction = _lowered(mod, target)
    strategy = replay(extraction.graph, random_edits(extraction.graph, 10, 1), limits=LIMITS)
    built = build(apply(lowered, extraction, strategy), target)
    tensors = [tvm.runtime.tensor(a.copy()) for a in arguments]
    with Session(loopback()).step():
        outputs = relax.VirtualMachine(built.executable, tvm.cpu())["main"](*tensors)
    expected = run_functional(mlp_step(widths=WIDTHS, gradients=False), arguments)
    for one, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-5, atol=1e-6)
    for tensor, argument in zip(tensors, arguments, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), argument)


def test_an_allreduce_before_the_last_use_is_waited_for(target: tvm.target.Target) -> None:
    """Every wait names the buffers of its start, and stands before the first reader."""
    mod = mlp_step(widths=WIDTHS)
    lowered, extraction = _lowered(mod, target)
    applied = apply(lowered, extraction, baseline("none", lowered, extraction))
    started: dict[int, set[relax.Var]] = {}
    done: set[int] = set()
    for binding in applied["main"].body.blocks[0].bindings:
        value = binding.value
        is_packed = isinstance(value, tvm.ir.Call) and isinstance(value.op, relax.ExternFunc)
        if is_packed and str(value.op.global_symbol).startswith("disco_fuse.runtime"):
            bucket = int(value.args[0].value)
            if str(value.op.global_symbol).endswith("start"):
                started[bucket] = set(value.args[1:])
            else:
                assert started[bucket] == set(value.args[1:])
                done.add(bucket)
            continue
        reads = set(relax.analysis.free_vars(value))
        for bucket, gradients in started.items():
            assert bucket in done or not reads & gradients
    assert done == started.keys()
    assert len(done) == len(WIDTHS) - 1


def test_who_else_reads_a_gradient_sees_the_local_one(target: tvm.target.Target) -> None:
    """A gradient that is returned, read again after its average, or is an input of main."""
    from tvm.script import ir as I  # noqa: N812
    from tvm.script import relax as R  # noqa: N812

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                g = R.exp(x)
                view = R.reshape(g, R.shape([32]))
                average = R.ccl.allreduce(view, "sum", False)
                mixed = R.add(R.reshape(average, R.shape([4, 8])), g)
                of_input = R.ccl.allreduce(w, "sum", False)
                R.output(g, mixed, of_input)
            return (g, mixed, of_input)

    lowered, extraction = _lowered(Module, target)
    for seed in range(3):
        strategy = replay(
            extraction.graph, random_edits(extraction.graph, seed, seed), limits=LIMITS
        )
        built = build(apply(lowered, extraction, strategy), target)
        x, w = mlp_arguments(Module, seed)
        tensors = [tvm.runtime.tensor(x), tvm.runtime.tensor(w)]
        with Session(loopback()).step():
            outputs = relax.VirtualMachine(built.executable, tvm.cpu())["main"](*tensors)
        for one, other in zip(outputs, (np.exp(x), 2 * np.exp(x), w), strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-5)
        np.testing.assert_array_equal(tensors[1].numpy(), w)


def test_tensors_without_elements(target: tvm.target.Target) -> None:
    from tvm.script import ir as I  # noqa: N812
    from tvm.script import relax as R  # noqa: N812

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((0, 8), "float32"), y: R.Tensor((0, 8), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = R.add(a, y)
                R.output(b)
            return b

    lowered, extraction = _lowered(Module, target)
    strategy = replay(extraction.graph, [Edit(kind="fuse", producer=0, consumer=1)])
    built = build(apply(lowered, extraction, strategy), target)
    main = relax.VirtualMachine(built.executable, tvm.cpu())["main"]
    empty = tvm.runtime.tensor(np.zeros((0, 8), np.float32))
    assert main(empty, empty).numpy().shape == (0, 8)
