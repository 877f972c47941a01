"""TVM targets: this machine's processor, and GPUs that need not be here."""

from __future__ import annotations

import tvm

GPU_ARCHS = ("sm_75", "sm_80", "sm_90")
HOST_CPU = "x86-64-v2"
"""Host code of a GPU plan runs on any x86-64 processor since 2009: it only starts kernels."""

# CUDA C++ programming guide, table "Technical specifications per compute capability": threads of
# a block, and shared memory of a block without opting in, are the same from 5.0 on.
_MAX_THREADS = 1024
_MAX_SHARED_BYTES = 48 * 1024
_WARP = 32


def host_target(num_threads: int = 1) -> tvm.target.Target:
    """LLVM for the processor this runs on.

    Parameters
    ----------
    num_threads : int
        Cores a kernel may use. One rank per core is the rule in data-parallel runs, hence one.
    """
    if num_threads < 1:
        raise ValueError(f"num_threads is {num_threads}; allowed: from 1")
    mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": num_threads})


def gpu_target(arch: str = "sm_90", host_cpu: str = HOST_CPU) -> tvm.target.Target:
    """CUDA for GPUs of an architecture, and LLVM for their host; neither need be here.

    Parameters
    ----------
    arch : str
        "sm_75" (T4), "sm_80" (A100) or "sm_90" (H100).
    host_cpu : str
        LLVM's name of the processor of the machine that will run it.

    Raises
    ------
    ValueError
        When the architecture is none of these.
    """
    if arch not in GPU_ARCHS:
        raise ValueError(f"no GPU architecture {arch!r}; allowed: {', '.join(GPU_ARCHS)}")
    device = {
        "kind": "cuda",
        "arch": arch,
        "max_threads_per_block": _MAX_THREADS,
        "max_shared_memory_per_block": _MAX_SHARED_BYTES,
        "thread_warp_size": _WARP,
    }
    return tvm.target.Target(device, host={"kind": "llvm", "mcpu": host_cpu})
