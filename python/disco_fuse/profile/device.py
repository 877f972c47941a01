"""Measures what the roofline needs to know of a CPU: bandwidth, arithmetic peak, overheads."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
from tvm import relax

from disco_fuse.build import build
from disco_fuse.config import DeviceSpec

_COPY_BYTES = 2 * 2**20
_REPEATS = 15
_CHAIN = 256


def measure_device(target: tvm.target.Target) -> DeviceSpec:
    """Bandwidth of a copy, arithmetic peak, launch and loop overhead of one thread of this CPU.

    The copy's buffers (2 MiB each) lie outside a core's private cache, like the tensors of a step.

    Returns
    -------
    DeviceSpec
        ``bandwidth_gbps`` counts bytes read plus bytes written.
    """
    source = np.ones(_COPY_BYTES // 4, np.float32)
    sinks = [np.zeros_like(source) for _ in range(4)]
    copy_s = _median(lambda i: np.copyto(sinks[i % len(sinks)], source))
    square = np.ones((512, 512), np.float32)
    product = np.empty_like(square)
    matmul_s = _median(lambda _: np.matmul(square, square, out=product))
    launch_us = _launch_us(target)
    return DeviceSpec(
        name=str(target),
        peak_gflops=2 * 512**3 / matmul_s / 1e9,
        bandwidth_gbps=2 * _COPY_BYTES / copy_s / 1e9,
        launch_us=launch_us,
        nest_us=0.2 * launch_us,
    )


def _launch_us(target: tvm.target.Target) -> float:
    """Time of one tiny kernel in the VM, from a chain of them."""
    ty = relax.TensorType((8,), "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(_CHAIN):
                value = builder.emit(relax.op.add(value, x))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    with target:
        mod = relax.transform.LegalizeOps()(builder.get())
    main = relax.VirtualMachine(build(mod, target).executable, tvm.cpu())["main"]
    argument = tvm.runtime.tensor(np.ones(8, np.float32))
    return _median(lambda _: main(argument)) / _CHAIN * 1e6


def _median(run: Any) -> float:
    times = []
    for i in range(_REPEATS + 1):
        begin = time.perf_counter()
        run(i)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[1:]))
