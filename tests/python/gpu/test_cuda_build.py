"""Steps are built for GPUs on a machine without one: launches, machine code, plans and needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from small_workload import workload

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.build import build, schedule_step
from disco_fuse.cost_model import Group, num_nests
from disco_fuse.cubin import device_source, serve_machine_code, write_cubin
from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpPattern
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernel_cache import KernelCache
from disco_fuse.kernels.cuda import ScheduleCUDA, count_launches
from disco_fuse.kernels.cuda.compile import (
    CompileError,
    build_each,
    compile_cubin,
    find_nvcc,
    kernel_source,
)
from disco_fuse.lower import lower
from disco_fuse.needs import check_needs, needs_of
from disco_fuse.plan import Plan, load_plan, save_plan, write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.strategy import Strategy
from disco_fuse.target import GPU_ARCHS, gpu_target, host_target
from disco_fuse.testing import mlp_step, random_strategy

NVCC = find_nvcc()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
here_is_no_gpu = pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU here")


@pytest.fixture(scope="module")
def mlp() -> tuple[tvm.IRModule, Extraction]:
    mod = lower(InsertAllReduce()(mlp_step()), gpu_target(), library=False)
    return mod, extract(mod)


@pytest.fixture(scope="module")
def small() -> tuple[tvm.IRModule, Extraction]:
    load = workload()
    step = training_step(
        load.model, load.example_tensors(), loss=load.loss, optimizer=load.optimizer
    )
    mod = lower(InsertAllReduce()(step.mod), gpu_target(), library=False)
    return mod, extract(mod)


@pytest.mark.parametrize("arch", GPU_ARCHS)
@pytest.mark.parametrize("choice", ["none", "default", 0])
def test_a_step_is_built(
    arch: str, choice: str | int, mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path
) -> None:
    mod, extraction = mlp
    built = build(apply(mod, extraction, _strategy(choice, mod, extraction)), gpu_target(arch))
    units = _strategy(choice, mod, extraction).units(extraction.graph)
    assert built.num_kernels == sum(unit.kind == "kernel" for unit in units)
    assert built.num_allreduces == sum(unit.kind == "bucket" for unit in units)
    assert built.num_launches >= built.num_kernels
    source = device_source(built.executable)
    assert source.count('extern "C" __global__') > 0
    built.executable.export_library(str(tmp_path / "step.so"))
    assert source.encode()[:100] in (tmp_path / "step.so").read_bytes()
    if NVCC is not None and choice == "default":
        assert compile_cubin(source, arch, NVCC).startswith(b"\x7fELF")


def _strategy(choice: str | int, mod: tvm.IRModule, extraction: Extraction) -> Strategy:
    if isinstance(choice, int):
        return random_strategy(extraction.graph, choice)
    return baseline(choice, mod, extraction)


@pytest.mark.parametrize("choice", ["none", "op_fusion", 1])
def test_launches_are_the_nests_that_are_priced(
    choice: str | int, small: tuple[tvm.IRModule, Extraction]
) -> None:
    mod, extraction = small
    graph, target = extraction.graph, gpu_target()
    strategy = _strategy(choice, mod, extraction)
    units = [unit for unit in strategy.units(graph) if unit.kind == "kernel"]
    step = schedule_step(apply(mod, extraction, strategy), target)
    launches = _launches(step)
    assert len(launches) == len(units)
    several = 0
    for unit, actual in zip(units, launches, strict=True):
        patterns = {graph.ops[op].pattern for op in unit.ops}
        # A scatter is two launches, a copy and the updates. A matmul in a group reads a copy of
        # the view before it: one nest more than it is priced for, as on a CPU.
        if patterns & {OpPattern.OPAQUE, OpPattern.OUT_ELEMWISE_FUSABLE}:
            continue
        priced = num_nests(graph, Group(ops=unit.ops, outputs=unit.outputs))
        assert actual == priced, [graph.ops[op].name for op in unit.ops]
        several += actual > 1
    assert several or isinstance(choice, str), "no group of several launches: this says nothing"


def _launches(step: tvm.IRModule) -> list[int]:
    """Of every call of a kernel in a scheduled step, in order."""
    found = []
    for block in step["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, tvm.ir.Call):
                continue
            callees = [c for c in (value.op, *value.args[:1]) if isinstance(c, tvm.ir.GlobalVar)]
            found += [count_launches(step[callee], gpu_target()) for callee in callees]
    return found


def test_equal_kernels_are_scheduled_once(
    mlp: tuple[tvm.IRModule, Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    mod, extraction = mlp
    fused = apply(mod, extraction, baseline("default", mod, extraction))
    cache: dict = {}
    first = schedule_step(fused, gpu_target(), ScheduleCUDA(gpu_target(), cache))
    size = len(cache)
    assert size > 0
    monkeypatch.setattr("disco_fuse.kernels.cuda.transform.schedule", None)
    second = schedule_step(fused, gpu_target("sm_80"), ScheduleCUDA(gpu_target("sm_80"), cache))
    assert len(cache) == size
    assert _launches(first) == _launches(second)


def test_only_cuda_kernels_are_scheduled_for_cuda() -> None:
    with pytest.raises(ValueError, match=r"ScheduleCUDA got target .*llvm"):
        ScheduleCUDA(host_target())(tvm.IRModule({}))


def test_calls_of_a_cpu_library_are_refused() -> None:
    mod = lower(InsertAllReduce()(mlp_step()), gpu_target(), library=True)
    with pytest.raises(ValueError, match=r"calls the BLAS library of the CPU; .*library=False"):
        build(mod, gpu_target())


def test_random_strategies_are_what_their_seed_says(
    mlp: tuple[tvm.IRModule, Extraction],
) -> None:
    graph = mlp[1].graph
    assert random_strategy(graph, 3) == random_strategy(graph, 3)
    assert len({random_strategy(graph, seed).hash for seed in range(5)}) == 5
    assert random_strategy(graph, 0, num_edits=1).hash != Strategy.unfused(graph).hash


@needs_nvcc
def test_a_kernel_that_does_not_compile_is_found(mlp: tuple[tvm.IRModule, Extraction]) -> None:
    assert NVCC is not None
    with pytest.raises(CompileError, match=r'kernels\.cu\(1\): error: .*"surprise" is undefined'):
        compile_cubin("int f() { return surprise; }", "sm_90", NVCC)
    with pytest.raises(CompileError, match="sm_20"):
        compile_cubin("", "sm_20", NVCC)
    mod, extraction = mlp
    step = schedule_step(apply(mod, extraction, baseline("none", mod, extraction)), gpu_target())
    kernels = {
        f"k{i}": func
        for i, (gv, func) in enumerate(step.functions_items())
        if gv.name_hint != "main"
    }
    bad = {"1name": kernels["k0"]}  # no identifier of C
    reasons = build_each(kernels | bad, gpu_target(), NVCC, batch=4)
    assert reasons.keys() == kernels.keys() | bad.keys()
    assert [name for name, reason in reasons.items() if reason] == ["1name"]
    assert "CompileError" in reasons["1name"]


def _write(folder: Path, mlp: tuple[tvm.IRModule, Extraction]) -> Plan:
    mod, extraction = mlp
    return write_plan(
        folder,
        name="default",
        model="mlp",
        mod=mod,
        extraction=extraction,
        strategy=baseline("default", mod, extraction),
        target=gpu_target("sm_80"),
        world_size=1,
        cost_model={"name": "roofline", "digest": "d"},
        predicted={},
    )


@here_is_no_gpu
@needs_nvcc
def test_a_plan_holds_machine_code(mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path) -> None:
    plan = _write(tmp_path, mlp)
    assert load_plan(tmp_path) == plan
    assert plan.needs == {"tvm": tvm.__version__, "cpu": "x86-64-v2", "gpu": "sm_80"}
    with pytest.raises(ValueError, match="cannot run here: it needs a GPU of sm_80, and"):
        StepRunner(tmp_path, loopback(), _values(plan))
    (tmp_path / "step.cubin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step\.cubin is not the file"):
        load_plan(tmp_path)
    (tmp_path / "step.cubin").unlink()
    with pytest.raises(ValueError, match=r"step\.cubin is missing"):
        load_plan(tmp_path)


@needs_nvcc
def test_machine_code_is_kept_by_its_source_and_architecture(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_(_source: str, arch: str, _nvcc: Path) -> bytes:
        compiled.append(arch)
        return f"for {arch}".encode()

    monkeypatch.setattr("disco_fuse.cubin.compile_cubin", compile_)
    mod, extraction = mlp
    fused = apply(mod, extraction, baseline("default", mod, extraction))
    cache = KernelCache(folder=tmp_path / "cache")
    codes = []
    for arch in ("sm_80", "sm_80", "sm_90"):
        executable = build(fused, gpu_target(arch)).executable
        assert write_cubin(executable, gpu_target(arch), tmp_path / "step.cubin", cache)
        codes.append((tmp_path / "step.cubin").read_bytes()[32:])
    assert compiled == ["sm_80", "sm_90"]
    assert codes == [b"for sm_80", b"for sm_80", b"for sm_90"]


def test_without_nvcc_a_plan_holds_source(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step.cubin").write_bytes(b"of an older plan")
    monkeypatch.setattr("disco_fuse.cubin.find_nvcc", lambda: None)
    monkeypatch.setattr("disco_fuse.needs.find_nvcc", lambda: None)
    plan = _write(tmp_path, mlp)
    assert not (tmp_path / "step.cubin").exists()
    assert plan.needs["cuda_compiler"] == "nvcc or nvrtc"
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ValueError, match="holds CUDA source, and there is no compiler for it"):
        check_needs({"cuda_compiler": plan.needs["cuda_compiler"]})


def _values(plan: Plan) -> dict[str, np.ndarray]:
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in plan.tensors[plan.num_inputs :]}


def test_missing_needs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_needs(needs_of(host_target(), has_cubin=False))
    check_needs({})
    monkeypatch.setattr("disco_fuse.needs.codegen.llvm_get_system_cpu", lambda: "x86-64-v2")
    check_needs({"cpu": "x86-64-v2"})
    with pytest.raises(ValueError, match=r"the processor x86-64-v3, this one .* lacks avx, avx2,"):
        check_needs({"cpu": "x86-64-v3"})
    with pytest.raises(ValueError, match=r"the step needs \['magic'\]"):
        check_needs({"magic": "1"})


@needs_nvcc
def test_machine_code_is_served_for_its_source(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What TVM asks on a GPU host when it loads the step."""
    assert NVCC is not None
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name)
    _write(tmp_path, mlp)
    func = next(f for gv, f in mlp[0].functions_items() if gv.name_hint != "main")
    other = kernel_source(
        {"other": ScheduleCUDA(gpu_target())(tvm.IRModule({"o": func}))["o"]}, gpu_target()
    )
    try:
        serve_machine_code("sm_80", tmp_path / "step.cubin")
        answer = tvm.get_global_func(name)
        mod, extraction = mlp
        fused = apply(mod, extraction, baseline("default", mod, extraction))
        source = device_source(build(fused, gpu_target("sm_80")).executable)
        monkeypatch.setattr("disco_fuse.cubin.compile_cubin", lambda *_: b"compiled")
        assert bytes(answer(source)).startswith(b"\x7fELF")
        assert bytes(answer(other)) == b"compiled"
    finally:
        tvm.register_global_func(name, before, override=True)


def test_a_damaged_plan_of_needs_is_refused(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path
) -> None:
    _write(tmp_path, mlp)
    save_plan(tmp_path, replace(load_plan(tmp_path), needs={"gpu": "sm_80", "luck": "much"}))
    with pytest.raises(ValueError, match=r"needs \['luck'\], which this release does not know"):
        StepRunner(tmp_path, loopback(), _values(load_plan(tmp_path)))
