"""Building, scheduling and running one kernel, for the numeric tests of the CPU schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import Target

from disco_fuse.kernels.cpu import BUILD_CONFIG, RULES_ATTR, MarkOps, ScheduleCPU
from disco_fuse.testing import group_module

TARGETS = {
    "avx512": Target({"kind": "llvm", "mcpu": "x86-64-v4"}),
    "avx2": Target({"kind": "llvm", "mcpu": "x86-64-v3"}),
}
TARGET = TARGETS["avx2"]

Build = Callable[..., Any]
TensorSpec = tuple[tuple[int, ...], str]


def f32(*shape: int) -> TensorSpec:
    """Shape and type of a float32 tensor."""
    return shape, "float32"


def f64(*shape: int) -> TensorSpec:
    """Shape and type of a float64 tensor."""
    return shape, "float64"


def i64(*shape: int) -> TensorSpec:
    """Shape and type of an int64 tensor."""
    return shape, "int64"


def group(build: Build, specs: Sequence[TensorSpec]) -> tvm.IRModule:
    """A module whose main calls one fusion group, legalised, marked and fused.

    `build(emit, *variables)` emits Relax ops and returns the group's outputs.
    """
    types = [relax.TensorType(shape, dtype) for shape, dtype in specs]
    passes = [
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        MarkOps(),
        relax.transform.FuseTIR(),
    ]
    with TARGET:
        return tvm.transform.Sequential(passes)(group_module(build, types))


def kernel(module: tvm.IRModule) -> tirx.PrimFunc:
    """The only PrimFunc of a module."""
    (func,) = (f for f in module.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


def rules(func: tirx.PrimFunc) -> list[str]:
    """Names of the rules that wrote the nests of a scheduled kernel."""
    return [str(rule) for rule in func.attrs[RULES_ATTR]]


def run(
    module: tvm.IRModule, inputs: Sequence[np.ndarray], target: Target, stack: bool = True
) -> list[np.ndarray]:
    """Outputs of main."""
    with tvm.transform.PassContext(config=BUILD_CONFIG if stack else {}):
        machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(x) for x in inputs))
    outputs = [result] if hasattr(result, "numpy") else list(result)
    return [output.numpy() for output in outputs]


def random_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> list[np.ndarray]:
    """Standard normal numbers; integers are 0 to 3, booleans half true."""
    rng = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for shape, dtype in specs:
        if dtype == "bool":
            arrays.append(rng.random(shape) > 0.5)
        elif dtype.startswith("int"):
            arrays.append(rng.integers(0, 4, shape).astype(dtype))
        else:
            arrays.append(np.asarray(rng.standard_normal(shape), dtype=dtype))
    return arrays


def check(
    build: Build,
    specs: Sequence[TensorSpec],
    reference: Callable[..., Any],
    *,
    inputs: Sequence[np.ndarray] | None = None,
    target: Target = TARGET,
    rtol: float | None = None,
) -> tirx.PrimFunc:
    """Compare a scheduled group with numpy in float64; returns the scheduled kernel."""
    arrays = list(inputs) if inputs is not None else random_inputs(specs)
    scheduled = ScheduleCPU(target)(group(build, specs))
    func = kernel(scheduled)
    assert func.attrs["tirx.is_scheduled"], "the plain rule served this group"
    actual = run(scheduled, arrays, target)
    pooled = run(scheduled, arrays, target, stack=False)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    expected = reference(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    assert len(actual) == len(expected)
    double = all(dtype != "float32" for _, dtype in specs)
    tolerance = rtol if rtol is not None else (1e-12 if double else 2e-5)
    for got, want in zip([*actual, *pooled], [*expected, *expected], strict=True):
        scale = max(1.0, float(np.abs(np.asarray(want, dtype="float64")).max(initial=0.0)))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)
    return func
