"""What a compiled step asks of the machine that loads it, found out before the first step."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import tvm
from tvm.target import Target, codegen

from disco_fuse.kernels.cuda.compile import find_nvcc
from disco_fuse.kernels.library import library_available

CPU, GPU, CUDA_COMPILER, TVM, TORCH = "cpu", "gpu", "cuda_compiler", "tvm", "torch"
COMPILERS = "nvcc or nvrtc"
_PROCESSOR_FEATURES = frozenset(
    {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2"}
    | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    | {"avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg"}
    | {"avx512vpopcntdq", "avx512bf16", "avx512fp16", "avxvnni", "gfni", "lzcnt", "movbe"}
)
"""Instruction sets of LLVM's names for x86-64 that it uses by itself; other features are hints for
speed, or instructions that a program must ask for."""


def needs_of(target: Target, *, has_cubin: bool, has_convolutions: bool = False) -> dict[str, str]:
    """What a step compiled for ``target`` needs at load, by kind.

    Parameters
    ----------
    target
        One of `disco_fuse.target`.
    has_cubin
        Whether the kernels of a GPU come as machine code, not only as source.
    has_convolutions
        Whether it calls the convolutions inside torch.

    Returns
    -------
    dict
        ``"tvm"``: the version of TVM, whose runtime calls the step. ``"cpu"``: LLVM's name of the
        processor of the host code. For a GPU also ``"gpu"``, the architecture, and
        ``"cuda_compiler"`` where there is only source. ``"torch"``: what of it is called.
    """
    needs = {TVM: tvm.__version__}
    if target.kind.name != "cuda":
        needs |= {CPU: str(target.attrs.get("mcpu", ""))}
        return needs | {TORCH: "convolution"} if has_convolutions else needs
    needs |= {CPU: str(target.host.attrs.get("mcpu", "")), GPU: str(target.arch)}
    return needs if has_cubin else needs | {CUDA_COMPILER: COMPILERS}


def check_needs(needs: Mapping[str, str]) -> None:
    """Check that this machine has what a step needs.

    Raises
    ------
    ValueError
        Naming everything that is missing.
    """
    checks = {
        TVM: _other_tvm,
        CPU: _missing_cpu,
        GPU: _missing_gpu,
        CUDA_COMPILER: _missing_compiler,
        TORCH: _missing_torch,
    }
    unknown = sorted(set(needs) - set(checks))
    if unknown:
        raise ValueError(f"the step needs {unknown}, which this release does not know")
    missing = [reason for kind, value in needs.items() if (reason := checks[kind](value))]
    if missing:
        raise ValueError(f"the step cannot run here: {'; '.join(missing)}")


def _other_tvm(version: str) -> str:
    """Why the TVM of this process cannot run a step of ``version``, "" if it can."""
    if version == tvm.__version__:
        return ""
    return f"it was compiled by TVM {version}, here is TVM {tvm.__version__}"


def _missing_cpu(name: str) -> str:
    """Why a processor called ``name`` is not here, "" if it is."""
    if not name:
        return ""
    wanted = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": name}))
    here = str(codegen.llvm_get_system_cpu())
    present = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": here}))
    lacking = sorted((set(wanted) - set(present)) & _PROCESSOR_FEATURES)
    if not lacking:
        return ""
    return f"it was compiled for the processor {name}, this one ({here}) lacks {', '.join(lacking)}"


def _missing_gpu(arch: str) -> str:
    """Why a GPU of architecture ``arch`` is not here, "" if it is."""
    if not tvm.runtime.enabled("cuda"):
        return f"it needs a GPU of {arch}, and TVM finds no CUDA driver"
    device = tvm.cuda(0)
    if not device.exist:
        return f"it needs a GPU of {arch}, and there is none"
    # Binary code runs on the same major and a higher minor number (CUDA programming guide).
    here = tuple(int(part) for part in str(device.compute_version).split("."))
    wanted = (int(arch.removeprefix("sm_")[:-1]), int(arch[-1]))
    if here[0] == wanted[0] and here >= wanted:
        return ""
    return f"it needs a GPU of {arch}, this one is sm_{here[0]}{here[1]}"


def _missing_compiler(_compilers: str) -> str:
    """Why CUDA source cannot be compiled at load, "" if it can.

    nvcc is ours to call, and TVM calls NVRTC through the package ``cuda-bindings``.
    """
    if find_nvcc() is not None or importlib.util.find_spec("cuda") is not None:
        return ""
    return f"it holds CUDA source, and there is no compiler for it ({COMPILERS})"


def _missing_torch(called: str) -> str:
    """Why a function of torch's library cannot be called, "" if it can."""
    if library_available():
        return ""
    return f"it calls the {called} of torch's libtorch_cpu.so, and torch is not installed"
