"""From scheduled kernels to CUDA source, and to machine code where nvcc is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target

# Unused variables and rounded hexadecimal constants in the text that TVM writes.
_QUIET = "--diag-suppress=177,1046"


class CompileError(Exception):
    """What nvcc said."""


def find_nvcc() -> Path | None:
    """Where nvcc is, None where it is not installed."""
    path = shutil.which("nvcc")
    return None if path is None else Path(path)


def nvcc_version(nvcc: Path) -> str:
    """What a compiler says of itself, its release included."""
    command = [str(nvcc), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def kernel_source(functions: Mapping[str, tirx.PrimFunc], target: Target) -> str:
    """CUDA source of scheduled kernels, "" where none launches anything.

    Parameters
    ----------
    functions
        Scheduled PrimFuncs by the name they are to have.
    target
        One of `disco_fuse.target.gpu_target`.
    """
    named = {
        name: func.without_attr("global_symbol").with_attr("global_symbol", name)
        for name, func in functions.items()
    }
    built = tvm.tirx.build(tvm.IRModule(named), target)
    return "".join(str(module.inspect_source()) for module in built.imports)


def compile_cubin(source: str, arch: str, nvcc: Path) -> bytes:
    """Machine code of one architecture, such as "sm_90".

    Raises
    ------
    CompileError
        With the errors of the compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
        text.write_text(source, encoding="utf-8")
        command = [str(nvcc), "-cubin", f"-arch={arch}", _QUIET, "-o", str(cubin), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            raise CompileError("\n".join(lines[:5]) or done.stderr.strip()[-500:])
        return cubin.read_bytes()


def build_each(
    functions: Mapping[str, tirx.PrimFunc], target: Target, nvcc: Path | None, batch: int = 64
) -> dict[str, str]:
    """Why each kernel cannot be built: "" for those that can.

    Many go through the compilers at once; a batch that fails is cut in halves until the culprit
    is alone.

    Parameters
    ----------
    functions
        Scheduled PrimFuncs by name.
    target
        One of `disco_fuse.target.gpu_target`.
    nvcc
        Compiles to machine code; None: only the source is made.
    batch
        Kernels that go through the compilers at once.
    """
    names = list(functions)
    reasons: dict[str, str] = {}
    pending = [names[i : i + batch] for i in range(0, len(names), batch)]
    while pending:
        part = pending.pop()
        try:
            source = kernel_source({name: functions[name] for name in part}, target)
            if nvcc is not None and source:
                compile_cubin(source, str(target.arch), nvcc)
        except Exception as error:  # TVM's code generator raises many types
            if len(part) == 1:
                reasons[part[0]] = f"{type(error).__name__}: {str(error).strip()[-400:]}"
            else:
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
        else:
            reasons.update(dict.fromkeys(part, ""))
    return reasons
