"""Measures what the roofline needs to know of one CPU thread: bandwidth, peak, overheads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from disco_fuse.build import build
from disco_fuse.config import DeviceSpec
from disco_fuse.lower import lower

_COPY_BYTES = 2 * 2**20
_CACHED_ELEMENTS = 4096
_MULTIPLY_ADDS = 64
_CHAIN = 256
_REPEATS = 15


def measure_device(target: tvm.target.Target) -> DeviceSpec:
    """Bandwidth of a copy, arithmetic peak of generated code, launch overhead of the VM.

    The copy's buffers (2 MiB each, several in turn) lie outside a core's private cache, like the
    tensors of a step. The peak is that of a fused chain of multiply-adds on data in the first
    cache: what an elementwise kernel can reach, not what a BLAS reaches.

    Returns
    -------
    DeviceSpec
        ``bandwidth_gbps`` counts bytes read plus bytes written. ``nest_us``, the price of one more
        loop nest inside a kernel, is a tenth of a launch: a nest is entered without any call.
    """
    source = np.ones(_COPY_BYTES // 4, np.float32)
    sinks = [np.zeros_like(source) for _ in range(4)]
    copy_s = _median(lambda i: np.copyto(sinks[i % len(sinks)], source))
    launch_s = _chain_seconds(target, 8, _CHAIN, fused=False) / _CHAIN
    arithmetic_s = _chain_seconds(target, _CACHED_ELEMENTS, _MULTIPLY_ADDS, fused=True) - launch_s
    return DeviceSpec(
        name=str(target),
        peak_gflops=2 * _MULTIPLY_ADDS * _CACHED_ELEMENTS / max(arithmetic_s, 1e-9) / 1e9,
        bandwidth_gbps=2 * _COPY_BYTES / copy_s / 1e9,
        launch_us=launch_s * 1e6,
        nest_us=launch_s * 1e5,
    )


def _chain_seconds(
    target: tvm.target.Target, num_elements: int, length: int, *, fused: bool
) -> float:
    """Time of ``length`` times ``x = x * y + y`` on vectors, as one kernel or one kernel each."""
    ty = relax.TensorType((num_elements,), "float32")
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", ty), relax.Var("y", ty)
    with builder.function("main", [x, y]):
        with builder.dataflow():
            value: Any = x
            for _ in range(length):
                value = builder.emit(relax.op.multiply(value, y))
                value = builder.emit(relax.op.add(value, y)) if fused else value
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    mod = lower(builder.get(), target, library=False)
    if fused:
        mod = relax.transform.FuseOps()(mod)
    main = relax.VirtualMachine(build(mod, target).executable, tvm.cpu())["main"]
    half = np.full(num_elements, 0.5, np.float32)
    arguments = [tvm.runtime.tensor(half), tvm.runtime.tensor(half)]
    return _median(lambda _: main(*arguments))


def _median(run: Callable[[int], Any]) -> float:
    times = []
    for i in range(_REPEATS + 1):
        begin = time.perf_counter()
        run(i)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[1:]))
