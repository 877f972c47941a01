"""Kernels beside a copy of as many bytes: what share of the machine a fusion group reaches.

A group cannot be faster than the larger of two times: that of a copy which reads and writes as
many bytes in total, and that of its operations at the arithmetic peak. Its share is the larger one
over its own time. Kernel and copy are measured in turn, so that a noisy moment hits both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from disco_fuse.apply import apply
from disco_fuse.bench.kernels.plans import DISCO_FUSE, ModelPlans
from disco_fuse.kernels.analysis import analyze
from disco_fuse.kernels.cpu import BUILD_CONFIG, RULES_ATTR, ScheduleCPU
from disco_fuse.kernels.cpu.gemm import FLOPS_ATTR

BIG_BYTES = 64 * 2**20
MIN_BYTES = 2**20  # below, a time is mostly that of the call
_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "pow"}
    | {"sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "atan2"}
)


@dataclass(frozen=True, kw_only=True)
class GroupTime:
    """One measured kernel.

    Attributes
    ----------
    model, name : str
        "synthetic" for a kernel of no model.
    rule : str
        The CPU rules that wrote its nests, in order, joined by "+".
    bytes : int
        Of inputs that are read, once each, and of outputs.
    flops : float
        As :class:`disco_fuse.kernels.analysis.KernelFacts` counts them.
    transcendental : bool
        Whether it computes an exp, tanh, erf, log, ...
    ms, copy_ms : float
        Best time of the kernel and of a copy of as many bytes in total.
    arithmetic_ms : float
        Its operations at the peak.
    share : float
        The larger of the bounds over ``ms``; of the copy's alone for more than 64 MiB without
        transcendental functions.
    """

    model: str
    name: str
    rule: str
    bytes: int
    flops: float
    transcendental: bool
    ms: float
    copy_ms: float
    arithmetic_ms: float

    @property
    def is_big(self) -> bool:
        """Whether memory alone is what it is measured against."""
        return self.bytes > BIG_BYTES and not self.transcendental

    @property
    def share(self) -> float:
        bound = self.copy_ms if self.is_big else max(self.copy_ms, self.arithmetic_ms)
        return bound / self.ms

    def to_json(self) -> dict[str, Any]:
        """All attributes, and ``big`` for :attr:`is_big`."""
        return {**asdict(self), "share": self.share, "big": self.is_big}


def time_groups(plans: ModelPlans, model: str, repeats: int) -> list[GroupTime]:
    """The distinct generated kernels of the DisCoFuse plan that move a MiB, matmuls left out."""
    fused = apply(plans.mod, plans.extraction, plans.strategies[DISCO_FUSE])
    fused = tvm.transform.Sequential(
        [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    )(fused)
    kernels = {
        name.name_hint: func
        for name, func in fused.functions_items()
        if isinstance(func, tirx.PrimFunc) and not (func.attrs and FLOPS_ATTR in func.attrs)
    }
    return time_kernels(kernels, plans.target, plans.device.peak_gflops, model, repeats)


def time_kernels(
    kernels: dict[str, tirx.PrimFunc],
    target: tvm.target.Target,
    peak_gflops: float,
    model: str,
    repeats: int,
) -> list[GroupTime]:
    """Times of those that move at least a MiB, in the order of their bytes, most first.

    Parameters
    ----------
    kernels : dict
        Fused PrimFuncs before scheduling, whose integer parameters are indices that may be 0.
    repeats : int
        Of which the best counts.
    """
    facts = {name: analyze(func) for name, func in kernels.items()}
    sizes = {name: fact.bytes_read + fact.bytes_written for name, fact in facts.items()}
    names = sorted((n for n in kernels if sizes[n] >= MIN_BYTES), key=lambda n: (-sizes[n], n))
    named = {n: kernels[n].with_attr("global_symbol", f"k{i}") for i, n in enumerate(names)}
    if not named:
        return []
    with target:
        mod = tvm.IRModule({f"k{i}": named[n] for i, n in enumerate(names)})
        mod = tvm.transform.Sequential([ScheduleCPU()])(mod)
        with tvm.transform.PassContext(config=BUILD_CONFIG):
            library = tvm.compile(mod, target=target)
    result = []
    for i, name in enumerate(names):
        kernel = partial(library[f"k{i}"], *_arguments(kernels[name]))
        seconds, copy_s = _in_turn(kernel, _copy(sizes[name]), repeats)
        result.append(
            GroupTime(
                model=model,
                name=name,
                rule="+".join(str(rule) for rule in mod[f"k{i}"].attrs.get(RULES_ATTR, ["plain"])),
                bytes=sizes[name],
                flops=facts[name].flops,
                transcendental=has_transcendental(kernels[name]),
                ms=seconds * 1e3,
                copy_ms=copy_s * 1e3,
                arithmetic_ms=facts[name].flops / peak_gflops / 1e6,
            )
        )
    return result


def has_transcendental(func: tirx.PrimFunc) -> bool:
    """Whether a kernel calls a function that a processor has no instruction for."""
    found = False

    def call(node: tvm.ir.Call) -> None:
        nonlocal found
        name = getattr(node.op, "name", "")
        found = found or name.rpartition(".")[2] in _TRANSCENDENTAL

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, call)])
    return found


def _copy(num_bytes: int) -> Callable[[], None]:
    """A copy that reads and writes ``num_bytes`` in total."""
    source = np.ones(num_bytes // 8, np.float32)
    sink = np.zeros_like(source)
    return lambda: np.copyto(sink, source)


def _in_turn(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> Sequence[float]:
    """Best times of both, in seconds, after one call each that does not count.

    Both work on this thread alone, so that the time of its processor is their time, without what
    other programs take in between.
    """
    best = [float("inf"), float("inf")]
    for number in range(repeats + 1):
        for which, run in enumerate((first, second)):
            begin = time.thread_time()
            run()
            elapsed = time.thread_time() - begin
            if number:
                best[which] = min(best[which], elapsed)
    return best


def _arguments(func: tirx.PrimFunc) -> list[Any]:
    """Random normal floats; integers are indices of the first parameter, which is a table then."""
    rng = np.random.default_rng(0)
    num_indices = int(func.params[0].ty.shape[0]) if func.params[0].ty.shape else 1
    arrays = []
    for param in func.params:
        shape = tuple(int(extent) for extent in param.ty.shape)
        dtype = np.dtype(str(param.ty.dtype))
        if dtype.kind == "f":
            # Blocks of one random row: drawing hundreds of MB would take longer than the kernels.
            values = np.resize(rng.standard_normal(4096).astype(dtype), shape)
        elif dtype.kind == "i":
            values = rng.integers(num_indices, size=shape).astype(dtype)
        else:
            values = np.zeros(shape, dtype)
        arrays.append(tvm.runtime.tensor(values))
    return arrays
