"""Every kernel of small training steps, run as CUDA text on the CPU, against TVM's plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from cuda_kernels import TARGET
from emulator import Emulated
from numpy.typing import NDArray
from tvm import relax, tirx

from disco_fuse import zoo
from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.cpu.plain import plain
from disco_fuse.kernels.cuda.opaque import has_threads
from disco_fuse.kernels.stages import shape_of
from disco_fuse.lower import lower
from disco_fuse.testing import random_strategy

HOST = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})


def _kernels(name: str, strategy: str) -> dict[str, tirx.PrimFunc]:
    """The distinct fusion groups of a small model, but for those TVM wrote for CUDA itself."""
    load = zoo.workload(name)
    step = training_step(
        load.model, load.example_tensors(), loss=load.loss, optimizer=load.optimizer
    )
    mod = lower(InsertAllReduce()(step.mod), TARGET, library=False)
    extraction = extract(mod)
    if strategy == "random":
        chosen = random_strategy(extraction.graph, 0)
    else:
        chosen = baseline(strategy, mod, extraction)
    passes = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    fused = tvm.transform.Sequential(passes)(apply(mod, extraction, chosen))
    distinct: dict[Any, tirx.PrimFunc] = {}
    for _, func in fused.functions_items():
        if isinstance(func, tirx.PrimFunc) and not has_threads(func.body):
            distinct.setdefault(tvm_ffi.StructuralKey(func), func)
    return {f"k{i}": func for i, func in enumerate(distinct.values())}


def _arguments(func: tirx.PrimFunc, rng: np.random.Generator) -> list[NDArray[Any]]:
    """Random tensors; integers are 0 and 1, which are indices of nearly everything."""
    arrays: list[NDArray[Any]] = []
    for buffer in func.params:
        shape, dtype = shape_of(buffer), str(buffer.ty.dtype)
        if dtype == "bool":
            arrays.append(rng.random(shape) > 0.5)
        elif "int" in dtype:
            arrays.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            arrays.append(np.asarray(rng.standard_normal(shape), dtype))
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["default", "random"])
@pytest.mark.parametrize("name", [name for name in zoo.models() if name.endswith("_small")])
def test_kernels_compute_what_plain_loops_do(name: str, strategy: str, tmp_path: Path) -> None:
    functions = _kernels(name, strategy)
    assert len(functions) > 20
    emulated = Emulated(functions, TARGET, tmp_path)
    named = {n: plain(func).with_attr("global_symbol", n) for n, func in functions.items()}
    expected = tvm.runtime.Executable(tvm.tirx.build(tvm.IRModule(named), HOST)).jit()
    rng = np.random.default_rng(0)
    for kernel, func in functions.items():
        arrays = _arguments(func, rng)
        actual = emulated.run(kernel, arrays)
        tensors = [tvm.runtime.tensor(array.copy()) for array in arrays]
        expected[kernel](*tensors)
        for got, tensor in zip(actual, tensors, strict=True):
            want = tensor.numpy()
            finite = np.abs(want[np.isfinite(want)].astype("float64"))
            scale = max(1.0, float(finite.max(initial=0.0)))
            np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5 * scale, err_msg=kernel)
