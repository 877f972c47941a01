"""Modules and tensors that users bring along: each works, or is refused with the thing's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from cpu_kernels import TARGET, f32, group, random_inputs, run
from numpy.typing import NDArray
from rule_programs import scheduled
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

from disco_fuse import DisCoFuse
from disco_fuse.baselines import baseline
from disco_fuse.build import build
from disco_fuse.config import SearchConfig
from disco_fuse.extract import extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.cpu import nests
from disco_fuse.kernels.cpu.context import Kernel
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Session, loopback
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_arguments, mlp_step

op = relax.op
QUICK = SearchConfig(max_steps=200)


def optimised(mod: tvm.IRModule) -> Any:
    """The main of a module behind the pass, compiled."""
    target = host_target()
    built = build(DisCoFuse(search_config=QUICK, target=target)(mod), target)
    return relax.VirtualMachine(built.executable, tvm.cpu())["main"]


def outputs(mod: tvm.IRModule, *arguments: NDArray[Any]) -> Any:
    """What an optimised module returns, nested as it returns it."""

    def arrays(result: Any) -> Any:
        return result.numpy() if hasattr(result, "numpy") else [arrays(one) for one in result]

    main = optimised(mod)
    with Session(loopback()).step():
        return arrays(main(*map(tvm.runtime.tensor, arguments)))


@I.ir_module
class NarrowExtents:
    """int32 extents, which everybody writes by hand, between operators with TVM's int64."""

    @T.prim_func(private=True, s_tir=True)
    def turn(x: T.Buffer((4, 9), "float32"), y: T.Buffer((9, 4), "float32")):
        for i, j in T.grid(9, 4):
            with T.sblock("turn"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vj, vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 9), "float32")):
        cls = NarrowExtents
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(cls.turn, (a,), out_ty=R.Tensor((9, 4), "float32"))
            c = R.add(b, b)
            R.output(c)
        return c


def test_functions_with_int32_extents_are_fused() -> None:
    x = np.linspace(-1, 1, 36, dtype="float32").reshape(4, 9)
    np.testing.assert_allclose(outputs(NarrowExtents, x), 4 * np.exp(x).T, rtol=1e-6)
    target = host_target()
    mod = DisCoFuse(search_config=QUICK, target=target)(NarrowExtents)
    assert build(mod, target).num_kernels == 1


@I.ir_module
class WithoutBlocks:
    """A function of plain loops, which TVM's analysis takes for elementwise."""

    @T.prim_func(private=True, s_tir=True)
    def sums(x: T.Buffer((1, 7, 3), "float32"), y: T.Buffer((7,), "float32")):
        for i in range(7):
            y[i] = T.float32(0)
            for j in range(3):
                y[i] = y[i] + x[0, i, j]

    @R.function
    def main(x: R.Tensor((1, 7, 3), "float32")):
        cls = WithoutBlocks
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(cls.sums, (a,), out_ty=R.Tensor((7,), "float32"))
            c = R.add(b, b)
            R.output(c)
        return c


def test_functions_without_blocks_stay_alone() -> None:
    (x,) = random_inputs([f32(1, 7, 3)])
    np.testing.assert_allclose(outputs(WithoutBlocks, x), 2 * np.exp(x[0]).sum(1), rtol=1e-6)
    graph = extract(lower(WithoutBlocks, host_target(), library=False)).graph
    assert [op.pattern.name for op in graph.ops] == ["ELEMWISE", "OPAQUE", "ELEMWISE"]


@I.ir_module
class Arange:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        with R.dataflow():
            positions = R.arange(0, 16, 2, "int64")
            c = R.add(x, R.astype(positions, "float32"))
            R.output(c)
        return c


def test_arange_is_a_constant() -> None:
    np.testing.assert_array_equal(outputs(Arange, np.ones(8, "float32")), 1 + np.arange(0, 16, 2))


@I.ir_module
class NestedOutputs:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        R.func_attr({"disco_fuse.gradients": ["b"]})
        with R.dataflow():
            a = R.exp(x)
            b = R.add(a, a)
            inner = (b, x)
            both = (a, (inner, b))
            R.output(both)
        return both


def test_outputs_may_be_nested() -> None:
    x = np.linspace(-1, 1, 8, dtype="float32")
    first, ((second, third), fourth) = outputs(NestedOutputs, x)
    np.testing.assert_allclose(first, np.exp(x), rtol=1e-6)
    for one in (second, fourth):
        np.testing.assert_allclose(one, 2 * np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(third, x)


@pytest.mark.parametrize("name", ["divide", "floor_divide", "mod", "floor_mod"])
def test_a_division_by_the_constant_0_is_refused(name: str) -> None:
    dtype = "float32" if name == "divide" else "int64"
    mod = _module(lambda x: getattr(op, name)(x, relax.const(0, dtype)), dtype)
    with pytest.raises(ValueError, match=rf"quotient = R\.{name}\(x, .*divides by the constant 0"):
        DisCoFuse()(mod)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_division_by_0_that_fusion_uncovers_is_infinite(zero: float) -> None:
    x = np.array([1, -2, 0, np.inf], "float32")

    def quotient(v: relax.Var) -> relax.Expr:
        return op.divide(v, op.full([4], relax.const(zero, "float32")))

    with np.errstate(all="ignore"):
        expected = x / np.float32(zero)
    np.testing.assert_array_equal(outputs(_module(quotient), x), expected)


@pytest.mark.parametrize("name", ["unique", "nonzero"])
def test_results_of_unknown_size_are_refused(name: str) -> None:
    mod = _module(lambda x: getattr(op, name)(x))
    with pytest.raises(ValueError, match=f"quotient = .*{name}.* needs static shapes"):
        DisCoFuse()(mod)


def test_an_operator_without_a_rule_is_refused() -> None:
    mod = _module(
        lambda x: relax.op.call_pure_packed(
            "my.function", x, ty_args=[relax.TensorType((4,), "float32")]
        )
    )
    with pytest.raises(ValueError, match=r"quotient calls relax\.call_pure_packed, which was not"):
        DisCoFuse()(mod)


def test_a_packed_function_that_is_nowhere_is_named() -> None:
    out = relax.TensorType((4,), "float32")
    mod = _module(lambda x: relax.op.call_dps_packed("my.function", (x,), out))
    with pytest.raises(tvm.error.InternalError, match=r"Cannot find ffi::Function my\.function"):
        optimised(mod)


def _module(body: Any, dtype: str = "float32") -> tvm.IRModule:
    """A module of one operator, whose result is called "quotient"."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(x), "quotient")
        builder.emit_func_output(result)
    return builder.get()


def test_the_next_rule_serves_where_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_nest: Any, _kernel: Kernel) -> list[tvm.tirx.Stmt]:
        raise ZeroDivisionError("a rule with a mistake")

    monkeypatch.setattr(nests.column_rule, "emit", broken)
    specs = [f32(5, 33)]
    (x,) = random_inputs(specs)
    mod, messages = scheduled(group(lambda emit, v: emit(op.sum(v, [0])), specs), TARGET)
    names = [text.split(":")[0] for text in messages]
    assert names == ["transpose", "shared", "columns", "single"]
    assert "a rule with a mistake" in messages[2]
    np.testing.assert_allclose(run(mod, [x], TARGET)[0], x.sum(0), rtol=1e-5)


def test_plain_loops_serve_where_every_rule_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[tvm.tirx.Stmt]:
        raise ZeroDivisionError("a rule with a mistake")

    monkeypatch.setattr(nests.row_loops, "emit", broken)
    specs = [f32(5, 33)]
    (x,) = random_inputs(specs)
    mod, messages = scheduled(group(lambda emit, v: emit(op.nn.softmax(v)), specs), TARGET)
    assert messages[-1].startswith("plain: served a kernel that no other rule could read")
    e = np.exp(x)
    np.testing.assert_allclose(run(mod, [x], TARGET)[0], e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.fixture(scope="module")
def runner_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    mod = lower(InsertAllReduce()(mlp_step()), host_target(), library=False)
    extraction = extract(mod)
    write_plan(
        folder,
        name="none",
        model="mlp",
        mod=mod,
        extraction=extraction,
        strategy=baseline("none", mod, extraction),
        target=host_target(),
        world_size=1,
        cost_model={"name": "roofline", "digest": "d"},
        predicted={"makespan_us": 1.0},
    )
    return folder


def _loss(folder: Path, batch: Sequence[Any]) -> float:
    arguments = mlp_arguments(mlp_step())
    values = dict(zip(["w0", "w1", "v0", "v1"], arguments[2:], strict=True))
    return float(StepRunner(folder, loopback(), values).step(batch)[0])


def test_batches_need_not_be_contiguous(runner_folder: Path) -> None:
    x, y = mlp_arguments(mlp_step())[:2]
    expected = _loss(runner_folder, (x, y))
    spread = np.zeros((8, 12), "float32")
    spread[:, ::2] = x
    variants = {
        "columns first": np.asfortranarray(x),
        "every second column": spread[:, ::2],
        "backwards": x[::-1].copy()[::-1],
        "torch, columns first": torch.from_numpy(np.asfortranarray(x)),
        "torch, every second column": torch.from_numpy(spread)[:, ::2],
    }
    for name, variant in variants.items():
        assert _loss(runner_folder, (variant, y)) == expected, name


def test_a_strided_tensor_is_no_argument_of_a_kernel() -> None:
    main = optimised(_module(op.exp))
    with pytest.raises(ValueError, match=r"Mismatched .*strides.*\n.*\n.*compact array"):
        main(torch.zeros(8)[::2])
    with pytest.raises(RuntimeError, match="not contiguous"):
        tvm.runtime.from_dlpack(torch.zeros(8)[::2])
