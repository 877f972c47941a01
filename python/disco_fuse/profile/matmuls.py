"""Measures which is faster, library call or generated kernel, for every matmul and convolution."""

from __future__ import annotations

import time
from typing import Any

import tvm

from disco_fuse.kernel_cache import USER_CACHE, KernelCache
from disco_fuse.kernels.generate_convolution import can_generate, generated_convolution
from disco_fuse.kernels.generate_matmul import generated_kernel
from disco_fuse.kernels.library import (
    CONVOLUTION_NAME,
    FUNCTION_NAME,
    convolution_arguments,
    convolution_signature,
    is_library_convolution,
    is_library_matmul,
    matmul_signature,
    random_arguments,
)
from disco_fuse.objects import load_kernels
from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.kernels import Progress, profile_key

_REPEATS = 11
_GENERATED = "generated "


def choose_generated(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    database: ProfileDatabase,
    progress: Progress | None = None,
    cache: KernelCache | None = USER_CACHE,
) -> frozenset[str]:
    """Signatures of the library calls of ``mod`` that a generated kernel does faster.

    Parameters
    ----------
    mod : tvm.IRModule
        A lowered module with library matmuls and convolutions; the libraries are loaded.
    database : ProfileDatabase
        Keeps both times, so that a second call measures nothing.
    cache : KernelCache, optional
        Of compiled kernels, shared with :func:`disco_fuse.plan.write_plan`; None: nothing is kept.

    Returns
    -------
    frozenset of str
        For :func:`disco_fuse.kernels.generate_matmul.GenerateMatmul` and
        :func:`disco_fuse.kernels.generate_convolution.GenerateConvolution`, of which each takes
        those that concern it.
    """
    calls: dict[str, Any] = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if is_library_matmul(binding.value):
                calls.setdefault(matmul_signature(binding.value), binding.value)
            elif is_library_convolution(binding.value) and can_generate(binding.value):
                calls.setdefault(convolution_signature(binding.value), binding.value)
    environment = profile_key(target)
    names = [*calls, *(_GENERATED + signature for signature in calls)]
    known = database.load(environment, names)
    missing = [s for s in calls if s not in known or _GENERATED + s not in known]
    for done, signature in enumerate(missing, start=1):
        pair = _time_both(calls[signature], target, cache)
        samples = dict(zip((signature, _GENERATED + signature), pair, strict=True))
        database.store(environment, samples)
        known |= samples
        if progress is not None:
            progress(done, len(missing), signature)
    return frozenset(s for s in calls if known[_GENERATED + s].median_us < known[s].median_us)


def _time_both(
    call: Any, target: tvm.target.Target, cache: KernelCache | None
) -> tuple[Sample, Sample]:
    """(library, generated), measured in turn so that a noisy moment hits both."""
    if is_library_matmul(call):
        kernel, name = generated_kernel(call, target), FUNCTION_NAME
        a, b, plan, out = random_arguments(call)
    else:
        kernel, name = generated_convolution(call, target), CONVOLUTION_NAME
        a, b, plan, out = convolution_arguments(call)
    generated = load_kernels({"generated": kernel}, target, cache)["generated"]
    library = tvm.get_global_func(name)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATS + 1):
        begin = time.perf_counter()
        library(a, b, plan, out)
        middle = time.perf_counter()
        generated(a, b, out)
        end = time.perf_counter()
        times[0].append((middle - begin) * 1e6)
        times[1].append((end - middle) * 1e6)
    return Sample.of(times[0][1:]), Sample.of(times[1][1:])
