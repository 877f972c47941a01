"""Scheduled CPU kernels as object files: each distinct one compiled once, in parallel.

    fused_add_1  --+                       k<key>.o --+
                   +-- same signature -->             +--> step.so
    fused_add_7  --+   (cache or LLVM)     names.o  --+

A kernel's key says everything that its machine code depends on, and not its name: its object file
defines a symbol that is called like the key. Functions of a step keep their names, which traces
show, by a file of functions that only jump to the kernels.

The key is taken from the kernel after scheduling: that is all the code generator sees, so a
changed schedule rule changes the key of exactly those kernels that it changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx
from tvm.support import cc
from tvm.target import Target, codegen

from disco_fuse import __version__
from disco_fuse.bindings import dtype_name
from disco_fuse.kernel_cache import KernelCache
from disco_fuse.kernels.cpu import BUILD_CONFIG

_SYMBOL_PREFIX = "__tvm_ffi_"
"""What TVM's code generator puts before the name of a function that its runtime can call."""


@dataclass(frozen=True, kw_only=True)
class KernelObjects:
    """Compiled kernels, to be linked into one library.

    Attributes
    ----------
    modules : tuple of tvm.runtime.Module
        What TVM can link into a library: an empty one for the target, every kernel once, and the
        functions with the given names.
    num_distinct, num_compiled : int
        Kernels, and those among them that were in no cache.
    """

    modules: tuple[tvm.runtime.Module, ...]
    num_distinct: int
    num_compiled: int


def kernel_key(func: tirx.PrimFunc, target: Target) -> str:
    """Of a scheduled kernel: 64 hexadecimal digits, equal where the machine code is.

    It covers the kernel's structure without any names, its parameters, the target, the options
    of the code generator, and the versions of TVM, LLVM and this package.
    """
    plain = func.without_attr("global_symbol")
    parameters = [
        (dtype_name(param.ty), [str(extent) for extent in param.ty.shape])
        if tirx.is_buffer_var(param)
        else str(param.ty)
        for param in func.params
    ]
    parts = (
        f"{tvm_ffi.structural_hash(plain) & (2**64 - 1):016x}",
        parameters,
        str(target),
        BUILD_CONFIG,
        (tvm.__version__, tvm_ffi.__version__, codegen.llvm_version_major(), __version__),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def compile_kernels(
    functions: Mapping[str, tirx.PrimFunc],
    target: Target,
    cache: KernelCache | None,
    num_threads: int | None = None,
) -> KernelObjects:
    """Object files of scheduled kernels.

    Parameters
    ----------
    functions
        Scheduled PrimFuncs by the name that the library is to give them.
    target
        An llvm target.
    cache
        Where compiled kernels are looked up and kept; None: nowhere.
    num_threads
        Kernels that are compiled at once; by default as many as this process may use cores.
        LLVM runs outside of Python's lock.

    Raises
    ------
    ValueError
        There is no C++ compiler, which links.
    """
    keys = {name: kernel_key(func, target) for name, func in functions.items()}
    distinct = {keys[name]: func for name, func in functions.items()}
    known = {} if cache is None else {key: cache.load(key) for key in distinct}
    missing = {key: func for key, func in distinct.items() if known.get(key) is None}
    if num_threads is None:
        num_threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        compiled = _compile(missing, target, Path(folder), num_threads)
        if cache is not None and compiled:
            cache.store(compiled.items())
        objects = {key: compiled.get(key) or known[key] for key in distinct}
        files = {_symbol(key): data for key, data in objects.items() if data is not None}
        modules = [_static(Path(folder), name, [name], data) for name, data in files.items()]
        names = {name: _symbol(key) for name, key in keys.items()}
        modules.append(_static(Path(folder), "names", list(names), _jumps(names, Path(folder))))
    host = _codegen(tvm.IRModule({}), target)
    return KernelObjects(
        modules=(host, *modules), num_distinct=len(distinct), num_compiled=len(missing)
    )


def load_kernels(
    functions: Mapping[str, tirx.PrimFunc], target: Target, cache: KernelCache | None
) -> tvm.runtime.Module:
    """A module with scheduled kernels that can be called by name; see :func:`compile_kernels`."""
    host, *kernels = compile_kernels(functions, target, cache).modules
    for module in kernels:
        host.import_module(module)
    return tvm.runtime.Executable(host).jit()


def _symbol(key: str) -> str:
    return f"k{key}"


def _compile(
    functions: Mapping[str, tirx.PrimFunc], target: Target, folder: Path, num_threads: int
) -> dict[str, bytes]:
    """Object files by key."""
    if not functions:
        return {}
    lowered = _lower(functions, target)

    def compile_one(function: tuple[tvm.ir.GlobalVar, tirx.PrimFunc]) -> bytes:
        name, func = function
        file = folder / f"{name.name_hint}.o"
        # TVM's configuration and target are those of a thread.
        with target, tvm.transform.PassContext(config=BUILD_CONFIG):
            module = _codegen(tvm.IRModule({name: func}, attrs=lowered.attrs), target)
        module.write_to_file(str(file))
        return file.read_bytes()

    found = {name.name_hint: (name, func) for name, func in lowered.functions_items()}
    with ThreadPoolExecutor(num_threads) as pool:
        data = pool.map(compile_one, (found[_symbol(key)] for key in functions))
        return dict(zip(functions, data, strict=True))


def _codegen(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """What LLVM makes of lowered functions."""
    build: Callable[..., tvm.runtime.Module] = tvm.get_global_func("target.build.llvm")
    return build(mod, target)


def _lower(functions: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.IRModule:
    """What `tvm.tirx.build` gives to LLVM, for all kernels at once."""
    named = {
        _symbol(key): func.with_attr("global_symbol", _symbol(key))
        for key, func in functions.items()
    }
    pipeline, finish, _ = tvm.tirx.get_default_tir_pipeline(target)
    with target, tvm.transform.PassContext(config=BUILD_CONFIG):
        mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(named))
        lowered = tvm.transform.Sequential([pipeline, finish()])(mod)
    # TVM marks a function that is alone in its module, and gives it a second symbol.
    alone = {
        name: func.without_attr("tirx.is_entry_func") for name, func in lowered.functions_items()
    }
    return tvm.IRModule(alone, attrs=lowered.attrs)


def _static(folder: Path, name: str, functions: list[str], data: bytes) -> tvm.runtime.Module:
    file = folder / f"{name}.o"
    file.write_bytes(data)
    return tvm.runtime.load_static_library(str(file), functions)


def _jumps(symbols: Mapping[str, str], folder: Path) -> bytes:
    """An object file that defines functions of TVM's calling convention by jumps to others."""
    lines = []
    for number, (name, symbol) in enumerate(symbols.items()):
        # The assembler's names, since those of kernels need not be names of C++.
        own, other = f'"{_SYMBOL_PREFIX}{name}"', f'"{_SYMBOL_PREFIX}{symbol}"'
        lines.append(
            f"int to{number}(void*, const void*, int, void*) __asm__({other});\n"
            f"int from{number}(void*, const void*, int, void*) __asm__({own});\n"
            f"int from{number}(void* self, const void* arguments, int count, void* result) {{\n"
            f"  return to{number}(self, arguments, count, result);\n}}"
        )
    source, file = folder / "names.cc", folder / "names.o"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    compiler = cc.get_cc()
    if compiler is None:
        raise ValueError(
            "there is no C++ compiler in PATH to link kernels with; allowed: g++, clang++"
        )
    command = [compiler, "-x", "c++", "-c", "-O2", "-fPIC", "-o", str(file), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{compiler} cannot compile: {done.stderr.strip()[-500:]}")
    return file.read_bytes()
