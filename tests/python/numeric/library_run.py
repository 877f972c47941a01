"""Runs Relax modules for the tests of the library dispatch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import relax

from disco_fuse.kernels.library import DispatchMatmul


def dispatch(module: Any) -> Any:
    """The pass, with the promises that every test relies on: pure, and well-formed results."""
    before = module.script()
    result = DispatchMatmul()(module)
    assert module.script() == before, "the pass changed its input"
    relax.analysis.well_formed(result)
    return result


def run(module: Any, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs of ``main``, compiled without any fusion."""
    with tvm.target.Target("llvm"):
        executable = tvm.compile(relax.transform.LegalizeOps()(module), "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(argument) for argument in arguments))
    tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [tensor.numpy() for tensor in tensors]


def count_ops(module: Any) -> Counter[str]:
    """How often ``main`` calls each op, by name without "relax."."""
    return Counter(
        binding.value.op.name.removeprefix("relax.")
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call) and isinstance(binding.value.op, tvm.ir.Op)
    )


def calls(module: Any) -> list[Any]:
    """Values of all call bindings of ``main``."""
    return [
        binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]
