"""Machine code beside a GPU step: made where nvcc is, taken at load instead of compiling.

    write_plan                               at load, on the GPU host
    ----------                               ------------------------
    step.so       kernels as source    -->   TVM asks tvm_callback_cuda_compile(source)
    step.cubin    nvcc -cubin          -->   which answers with the file's bytes

TVM's modules that are made without a GPU hold source only; this is how they start without a
compiler and without the seconds that it takes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from disco_fuse.kernel_cache import KernelCache
from disco_fuse.kernels.cuda.compile import compile_cubin, find_nvcc, nvcc_version

_CALLBACK = "tvm_callback_cuda_compile"
_known: dict[str, bytes] = {}
"""Machine code by the hash of its source; a process may load several steps."""


def device_source(executable: Any) -> str:
    """The CUDA source in a compiled step, "" if there is none."""
    pending, sources = [executable.mod], []
    while pending:
        module = pending.pop()
        if module.kind == "cuda":
            sources.append(str(module.inspect_source()))
        pending.extend(module.imports)
    assert len(sources) <= 1, "kernels of one target are one module"
    return sources[0] if sources else ""


def write_cubin(
    executable: Any, target: tvm.target.Target, path: Path, cache: KernelCache | None = None
) -> bool:
    """Compile the kernels of a step with nvcc; False where nvcc or any kernel is missing.

    Machine code of the same source by the same nvcc is taken from ``cache``, new one is kept there.
    """
    nvcc, source = find_nvcc(), device_source(executable)
    if nvcc is None or not source:
        return False
    arch = str(target.arch)
    key = hashlib.sha256(json.dumps([source, arch, nvcc_version(nvcc)]).encode()).hexdigest()
    code = None if cache is None else cache.load(key)
    if code is None:
        code = compile_cubin(source, arch, nvcc)
        if cache is not None:
            cache.store([(key, code)])
    path.write_bytes(_digest(source) + code)
    return True


def serve_machine_code(arch: str, path: Path | None) -> None:
    """Answer TVM when it asks to compile the kernels of a step that is being loaded.

    With the machine code in ``path`` if it was made of this source, else with that of nvcc where
    it is installed, else with TVM's own answer (NVRTC).
    """
    if path is not None:
        data = path.read_bytes()
        size = len(_digest(""))
        _known[data[:size].hex()] = data[size:]
    nvcc = find_nvcc()
    other: Callable[[str], Any] = tvm.get_global_func(_CALLBACK)

    def answer(source: str) -> Any:
        known = _known.get(_digest(source).hex())
        if known is not None:
            return known
        return other(source) if nvcc is None else compile_cubin(source, arch, nvcc)

    tvm_ffi.register_global_func(_CALLBACK, answer, override=True)


def _digest(source: str) -> bytes:
    return hashlib.sha256(source.encode()).digest()
