"""Times every distinct op of a graph on this machine, with the project's own schedules.

Each kernel runs on several sets of buffers in turn, together larger than a core's private cache,
because in a training step a kernel's inputs were written by others and rarely wait in L1.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from disco_fuse.bindings import call_inputs, dtype_name, is_op, packed_name, static_shape
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpKind
from disco_fuse.kernel_cache import USER_CACHE, KernelCache
from disco_fuse.kernels.cpu import ScheduleCPU
from disco_fuse.kernels.library import (
    convolution_arguments,
    is_library_convolution,
    is_library_matmul,
    random_arguments,
)
from disco_fuse.objects import load_kernels
from disco_fuse.profile.database import ProfileDatabase, Sample

_ROTATION_BYTES = 4 * 2**20
_MAX_BUFFER_SETS = 16
_TIME_PER_KERNEL_S = 0.05
_MIN_REPEATS = 9
_MAX_REPEATS = 200
# A median is stable once it is known to that share of itself, with 95% confidence.
_STABLE = 0.02
_MOST_TIME_S = 0.5  # for a kernel whose median does not become stable
_LEAST_TIMED_S = 10e-6
_MOST_IN_A_ROW = 500

Progress = Callable[[int, int, str], None]


def environment_key(target: tvm.target.Target) -> str:
    """Everything beside its signature that the time of a kernel depends on."""
    return f"{_processor()}; {target}; tvm {tvm.__version__}"


def profile_key(target: tvm.target.Target) -> str:
    """The environment under which a profile database keeps what is measured of kernels.

    :func:`environment_key`, and the versions of what makes and runs the kernels: our schedules, and
    torch, whose libraries are called.
    """
    return f"{environment_key(target)}; {package_versions('disco-fuse', 'torch')}"


def package_versions(*names: str) -> str:
    """Names and versions of packages, without importing them; "no NAME" where one is missing."""

    def text(name: str) -> str:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            return f"no {name}"

    return "; ".join(map(text, names))


def profile_ops(
    mod: tvm.IRModule,
    extraction: Extraction,
    target: tvm.target.Target,
    database: ProfileDatabase,
    progress: Progress | None = None,
    cache: KernelCache | None = USER_CACHE,
) -> NDArray[np.float64]:
    """Time of every op of the graph alone, without launch overhead.

    Parameters
    ----------
    mod : tvm.IRModule
        The lowered module that ``extraction`` was read from.
    progress : callable, optional
        Called as ``progress(done, total, name)`` after each measured op.
    cache : KernelCache, optional
        Of compiled kernels, shared with :func:`disco_fuse.plan.write_plan`; None: nothing is kept.

    Returns
    -------
    ndarray of float64, shape [num_ops]
        Microseconds; zero for AllReduce ops, which a cluster's AllReduceModel prices.

    Raises
    ------
    ValueError
        An op calls what cannot be timed, or takes no time that the clock can tell. What was
        measured before is in the database.
    """
    ops = extraction.graph.ops
    environment = profile_key(target)
    first = _first_of_each(extraction)
    known = database.load(environment, first)
    missing = {signature: op for signature, op in first.items() if signature not in known}
    values = {s: extraction.bindings[op].value for s, op in missing.items()}
    kernels = {s: op for s, op in missing.items() if is_op(values[s], "relax.call_tir")}
    compiled = _compile(mod, extraction, list(kernels.values()), target, cache)
    for done, (signature, op_id) in enumerate(missing.items(), start=1):
        try:
            sample = _time_op(extraction.bindings[op_id], compiled.get(op_id))
        except ValueError as error:
            raise ValueError(f"{ops[op_id].name} {error}") from error
        database.store(environment, {signature: sample})
        known[signature] = sample
        if progress is not None:
            progress(done, len(missing), ops[op_id].name)
    times = [0.0 if o.kind == OpKind.ALLREDUCE else known[o.signature].median_us for o in ops]
    return np.array(times, dtype=np.float64)


def profiled_samples(
    extraction: Extraction, target: tvm.target.Target, database: ProfileDatabase
) -> dict[str, Sample]:
    """What the database knows of the ops of a graph, by signature."""
    return database.load(profile_key(target), _first_of_each(extraction))


def _first_of_each(extraction: Extraction) -> dict[str, int]:
    """The first op of each signature, AllReduces left out."""
    first: dict[str, int] = {}
    for op_id, op in enumerate(extraction.graph.ops):
        if op.kind != OpKind.ALLREDUCE:
            first.setdefault(op.signature, op_id)
    return first


def _compile(
    mod: tvm.IRModule,
    extraction: Extraction,
    ops: list[int],
    target: tvm.target.Target,
    cache: KernelCache | None,
) -> dict[int, tuple[tvm.runtime.Module, str]]:
    """(library, function name) of every op, all in one library."""
    functions = {f"op_{op}": mod[extraction.bindings[op].value.args[0]] for op in ops}
    if not functions:
        return {}
    scheduled = tvm.transform.Sequential([ScheduleCPU(target)])(tvm.IRModule(functions))
    library = load_kernels({name: scheduled[name] for name in functions}, target, cache)
    return {op: (library, f"op_{op}") for op in ops}


def _time_op(binding: Any, compiled: tuple[Any, str] | None) -> Sample:
    """One op alone; ValueError says what is wrong with it."""
    if compiled is not None:
        types = [arg.ty for arg in call_inputs(binding.value)] + _flat(binding.var.ty)
        return _time_kernel(*compiled, types)
    if is_library_matmul(binding.value) or is_library_convolution(binding.value):
        return _time_library(binding.value)
    raise ValueError("calls a packed function that DisCoFuse cannot time")


def _time_kernel(library: Any, name: str, types: list[Any]) -> Sample:
    sets = buffer_sets(types)
    evaluate = kernel_evaluator(library, name, sets[0])
    return _repeat(lambda i: float(evaluate(*sets[i % len(sets)]).mean) * 1e6)


def kernel_evaluator(library: Any, name: str, arguments: list[Any]) -> Any:
    """TVM's time evaluator of a kernel, with as many calls in a row as a clock can tell apart.

    A clock that ticks every 10 ns is off by a third of a kernel of 30 ns. Kernels that are called
    several times in a row are so short that their data stays in a private cache either way.
    """
    once = library.time_evaluator(name, tvm.cpu(), number=1)
    call_s = min(float(once(*arguments).mean) for _ in range(3))
    number = int(_LEAST_TIMED_S / max(call_s, _LEAST_TIMED_S / _MOST_IN_A_ROW))
    return library.time_evaluator(name, tvm.cpu(), number=max(1, number))


def _time_library(call: Any) -> Sample:
    function = tvm.get_global_func(packed_name(call))
    arguments_of = random_arguments if is_library_matmul(call) else convolution_arguments
    sets = [arguments_of(call, seed) for seed in range(2)]

    def run(i: int) -> float:
        arguments = sets[i % len(sets)]
        begin = time.perf_counter()
        function(*arguments)
        return (time.perf_counter() - begin) * 1e6

    return _repeat(run)


def _repeat(run: Callable[[int], float]) -> Sample:
    """Run once to warm up, then until the median is stable, within limits of time and number."""
    run(0)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _MIN_REPEATS or (len(times) < _MAX_REPEATS and _goes_on(times, begin)):
        times.append(run(len(times)))
    sample = Sample.of(times)
    if sample.median_us <= 0:
        raise ValueError("takes no time that the clock of this machine can tell")
    return sample


def _goes_on(times_us: Sequence[float], begin_s: float) -> bool:
    elapsed_s = time.perf_counter() - begin_s
    if elapsed_s < _TIME_PER_KERNEL_S:
        return True
    return elapsed_s < _MOST_TIME_S and not is_stable(times_us)


def is_stable(times_us: Sequence[float], share: float = _STABLE) -> bool:
    """Whether the median is known to ``share`` of itself.

    The limits of its 95% confidence are the order statistics ``n / 2 -+ 0.98 sqrt(n)``, which ask
    nothing of the distribution (Conover, "Practical Nonparametric Statistics", section 3.2). Fewer
    than six values tell nothing.
    """
    num = len(times_us)
    if num < 6:
        return False
    ordered = np.sort(times_us)
    half = 0.98 * math.sqrt(num)
    low, high = math.floor(num / 2 - half), math.ceil(num / 2 + half)
    width = ordered[min(high, num - 1)] - ordered[max(low, 0)]
    return bool(width <= 2 * share * ordered[num // 2])


def buffer_sets(types: list[Any], seed: int = 0) -> list[list[Any]]:
    """Sets of arguments of a kernel, together larger than a core's private cache.

    Parameters
    ----------
    types : list of relax.TensorType
        Of all parameters of the kernel.
    """
    size = sum(math.prod(static_shape(ty)) * np.dtype(dtype_name(ty)).itemsize for ty in types)
    count = min(_MAX_BUFFER_SETS, max(2, _ROTATION_BYTES // max(1, size)))
    rng = np.random.default_rng(seed)
    return [[_buffer(ty, rng) for ty in types] for _ in range(count)]


def _buffer(ty: Any, rng: np.random.Generator) -> Any:
    """Normal floats; zeros for everything else, which is a valid index everywhere."""
    dtype, shape = np.dtype(dtype_name(ty)), static_shape(ty)
    if dtype.kind == "f":
        return tvm.runtime.tensor(rng.standard_normal(shape).astype(dtype))
    return tvm.runtime.tensor(np.zeros(shape, dtype))


def _flat(ty: Any) -> list[Any]:
    return list(ty.fields) if hasattr(ty, "fields") else [ty]


def _processor() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
