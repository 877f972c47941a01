"""Steps of cached object files: the same numbers, each distinct kernel compiled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from lowered_steps import lowered
from numpy.typing import NDArray
from tvm import relax, te, tirx

from disco_fuse import objects
from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.build import BuiltStep, build, schedule_step
from disco_fuse.extract import Extraction
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernel_cache import KernelCache
from disco_fuse.kernels.cpu import ScheduleCPU
from disco_fuse.objects import compile_kernels, kernel_key, load_kernels
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, profile_ops
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Session, loopback
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_arguments, mlp_step, random_strategy

NUM_INPUTS = 2


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(folder=tmp_path / "kernels")


@pytest.fixture(scope="module")
def mlp() -> tuple[tvm.IRModule, Extraction]:
    return lowered(InsertAllReduce()(mlp_step(widths=(6, 16, 24, 4))))


def _kernel(
    value: float = 1.0, *, names: tuple[str, str] = ("p", "q"), size: int = 40
) -> tirx.PrimFunc:
    """A scheduled kernel that adds a number."""
    x = te.placeholder((size,), "float32", name=names[0])
    y = te.compute((size,), lambda i: x[i] + tirx.const(value, "float32"), name=names[1])
    mod = tvm.IRModule({names[1]: te.create_prim_func([x, y])})
    return ScheduleCPU(host_target())(mod)[names[1]]


def _run(built: BuiltStep, arguments: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """(loss, parameters and state after the step)."""
    tensors = [tvm.runtime.tensor(argument.copy()) for argument in arguments]
    main = relax.VirtualMachine(built.executable, tvm.cpu())["main"]
    with Session(loopback()).step():
        outputs = main(*tensors)
    return [outputs[0].numpy(), *(tensor.numpy() for tensor in tensors[NUM_INPUTS:])]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_are_the_same_bit_for_bit(
    seed: int, num_threads: int, mlp: tuple[tvm.IRModule, Extraction], cache: KernelCache
) -> None:
    mod, extraction = mlp
    fused = apply(mod, extraction, random_strategy(extraction.graph, seed))
    target = host_target(num_threads)
    plain = build(fused, target)
    first = build(fused, target, cache)
    second = build(fused, target, cache)
    assert 0 < first.num_compiled <= plain.num_compiled
    assert second.num_compiled == 0
    arguments = mlp_arguments(mod, seed)
    expected = _run(plain, arguments)
    for built in (first, second):
        for value, wanted in zip(_run(built, arguments), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_a_kernel_is_the_same_alone_and_among_others(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path
) -> None:
    mod, extraction = mlp
    target = host_target()
    unfused = apply(mod, extraction, baseline("none", mod, extraction))
    functions = {
        name.name_hint: func
        for name, func in schedule_step(unfused, target).functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    together = KernelCache(folder=tmp_path / "together")
    compile_kernels(functions, target, together, num_threads=2)
    for name, func in functions.items():
        alone = KernelCache(folder=tmp_path / name)
        compile_kernels({name: func}, target, alone, num_threads=1)
        key = kernel_key(func, target)
        assert alone.load(key) == together.load(key) is not None


def test_equal_kernels_are_compiled_once(cache: KernelCache) -> None:
    one, same, other = _kernel(), _kernel(names=("x", "y")), _kernel(2.0)
    built = compile_kernels({"a": one, "b.c": same, "d": other}, host_target(), cache)
    assert (built.num_distinct, built.num_compiled) == (2, 2)
    again = compile_kernels({"e": same}, host_target(), cache)
    assert (again.num_distinct, again.num_compiled) == (1, 0)
    library = load_kernels({"a": one, "b.c": same, "d": other}, host_target(), cache)
    x = np.arange(40, dtype=np.float32)
    for name, value in (("a", 1.0), ("b.c", 1.0), ("d", 2.0)):
        out = tvm.runtime.tensor(np.zeros_like(x))
        library[name](tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x + value)


def test_the_key_is_of_all_that_decides_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_target()
    key = kernel_key(_kernel(), target)
    assert key == kernel_key(_kernel(names=("x", "y")), target)
    assert key == kernel_key(_kernel().with_attr("global_symbol", "k"), target)
    others = {
        "constant": kernel_key(_kernel(1.5), target),
        "shape": kernel_key(_kernel(size=41), target),
        "processor": kernel_key(_kernel(), tvm.target.Target({"kind": "llvm", "mcpu": "core2"})),
        "aliasing": kernel_key(_kernel().without_attr("tirx.noalias"), target),
    }
    for name, value in (("__version__", "9"), ("BUILD_CONFIG", {})):
        with monkeypatch.context() as patch:
            patch.setattr(objects, name, value)
            others[name] = kernel_key(_kernel(), target)
    monkeypatch.setattr("tvm.__version__", "9")
    others["tvm"] = kernel_key(_kernel(), target)
    assert len({key, *others.values()}) == 1 + len(others)


def test_a_damaged_entry_is_built_anew(
    cache: KernelCache, caplog: pytest.LogCaptureFixture
) -> None:
    functions = {"a": _kernel()}
    compile_kernels(functions, host_target(), cache)
    (file,) = (file for file in cache.path.rglob("*") if file.is_file())
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert compile_kernels(functions, host_target(), cache).num_compiled == 1
    assert f"{file} is damaged, it is built anew" in caplog.text
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_stops_nothing(
    mlp: tuple[tvm.IRModule, Extraction], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mod, extraction = mlp
    (tmp_path / "file").write_text("in the way")
    cache = KernelCache(folder=tmp_path / "file" / "kernels")
    fused = apply(mod, extraction, baseline("default", mod, extraction))
    for _ in range(2):
        caplog.clear()
        built = build(fused, host_target(), cache)
        assert built.num_compiled > 5
        assert caplog.text.count("cannot keep kernels in") == 1
    assert np.isfinite(_run(built, mlp_arguments(mod))[0])


def test_without_a_compiler_the_build_is_refused(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"no C\+\+ compiler in PATH to link kernels with"):
        compile_kernels({"a": _kernel()}, host_target(), cache)
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(ValueError, match="false cannot compile: "):
        compile_kernels({"a": _kernel()}, host_target(), cache)


def test_profile_and_plan_share_kernels(
    mlp: tuple[tvm.IRModule, Extraction], cache: KernelCache, tmp_path: Path
) -> None:
    mod, extraction = mlp
    target = host_target()
    with ProfileDatabase(tmp_path / "profile.sqlite") as database:
        times_us = profile_ops(mod, extraction, target, database, cache=cache)
    assert np.all(times_us[[op.collective == "" for op in extraction.graph.ops]] > 0)
    unfused = apply(mod, extraction, baseline("none", mod, extraction))
    # Updates in place promise less about their buffers, so they alone are other kernels: those
    # of three weights and their velocities.
    built = build(unfused, target, cache)
    assert built.num_compiled <= 6 < built.num_kernels


def test_plans_keep_the_names_of_kernels(
    mlp: tuple[tvm.IRModule, Extraction], cache: KernelCache, tmp_path: Path
) -> None:
    mod, extraction = mlp
    names, outputs = {}, {}
    arguments = mlp_arguments(mod)
    for kind, used in (("cached", cache), ("plain", None)):
        plan = write_plan(
            tmp_path / kind,
            name="default",
            model="mlp",
            mod=mod,
            extraction=extraction,
            strategy=baseline("default", mod, extraction),
            target=host_target(),
            world_size=1,
            cost_model={"name": "roofline", "digest": "d"},
            predicted={},
            cache=used,
        )
        state = [spec.name for spec in plan.tensors[NUM_INPUTS:]]
        values = dict(zip(state, arguments[NUM_INPUTS:], strict=True))
        runner = StepRunner(tmp_path / kind, loopback(), values)
        names[kind] = runner.recorded_step(arguments[:NUM_INPUTS]).kernel_names
        outputs[kind] = runner.values()
    assert names["cached"] == names["plain"]
    assert any(name.startswith("fused_") for name in names["cached"])
    for name, value in outputs["plain"].items():
        np.testing.assert_array_equal(outputs["cached"][name], value)
