"""Compiling generated bucket sources with the host's compiler, and running them on numpy arrays."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bucket_reference import Array, Buffers

from disco_fuse.kernels.bucket import (
    BucketSpec,
    GeneratedSource,
    KernelArgument,
    KernelEntry,
    c_source,
    cuda_source,
)

SHIM = Path(__file__).parent / "cuda_shim.h"
HAS_COMPILER = shutil.which("gcc") is not None and shutil.which("g++") is not None
# The reference rounds every product.
_FLAGS = ["-O1", "-fPIC", "-ffp-contract=off"]
# A bucket of empty tensors reads no argument.
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
_CUDA_FLAGS = ["-std=c++17", "-fsanitize=alignment", "-Wno-unknown-pragmas", "-Wno-psabi"]


@dataclass(frozen=True, kw_only=True)
class BuiltBucket:
    """A compiled source; every function takes the buffers that its arguments name."""

    spec: BucketSpec
    source: GeneratedSource
    library: ctypes.CDLL
    is_cuda: bool

    def pack(self, buffers: Buffers) -> None:
        """Tensors into the bucket."""
        self._run(self.source.pack, buffers, ())

    def unpack(self, buffers: Buffers, scalars: Sequence[float] = ()) -> None:
        """The bucket into tensors, or into parameters and states."""
        self._run(self.source.unpack, buffers, scalars)

    def num_misaligned(self) -> int:
        """Wide accesses so far at addresses that a GPU would refuse."""
        return ctypes.c_int64.in_dll(self.library, "num_misaligned").value

    def _run(self, entry: KernelEntry, buffers: Buffers, scalars: Sequence[float]) -> None:
        values = np.array(scalars, np.float64)
        arguments = [self._argument(one, buffers, values) for one in entry.arguments]
        addresses = [ctypes.cast(argument, ctypes.c_void_p) for argument in arguments]
        if self.is_cuda:
            self.library[f"run_{entry.name}"]((ctypes.c_void_p * len(addresses))(*addresses))
        else:
            self.library[entry.name](*addresses)

    def _argument(self, argument: KernelArgument, buffers: Buffers, scalars: Array) -> Any:
        if argument.name == "bucket":
            return ctypes.c_void_p(buffers.bucket.ctypes.data)
        if argument.name == "scalars":
            return ctypes.c_void_p(scalars.ctypes.data)
        in_tensors = argument.name in ("tensors", "parameters")
        arrays = buffers.tensors if in_tensors else buffers.states[argument.name]
        return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def build_c(spec: BucketSpec) -> BuiltBucket:
    """The C source as a shared library."""
    source = c_source(spec)
    library = _compile("gcc", ".c", source.code, ["-std=c99"])
    return BuiltBucket(spec=spec, source=source, library=library, is_cuda=False)


def build_emulated_cuda(spec: BucketSpec) -> BuiltBucket:
    """The CUDA source, unchanged, under a header that runs threads in loops."""
    source = cuda_source(spec)
    runners = "".join(_runner(entry) for entry in (source.pack, source.unpack))
    code = f'#include "{SHIM}"\n{source.code}\nusing namespace disco_fuse_{spec.name};\n{runners}'
    library = _compile("g++", ".cc", code, _CUDA_FLAGS)
    return BuiltBucket(spec=spec, source=source, library=library, is_cuda=True)


def _runner(entry: KernelEntry) -> str:
    forms = {
        "pointer": "AnyPointer{{args[{i}]}}",
        "pointer_array": "static_cast<void* const*>(args[{i}])",
        "pointer_struct": "*static_cast<const Pointers*>(args[{i}])",
    }
    arguments = [forms[one.passing].format(i=i) for i, one in enumerate(entry.arguments)]
    return (
        f'extern "C" void run_{entry.name}(void** args) {{\n'
        f"  Launch({entry.num_blocks}, {entry.threads_per_block}, "
        f"[&] {{ {entry.name}({', '.join(arguments)}); }});\n}}\n"
    )


def _compile(compiler: str, suffix: str, code: str, flags: Sequence[str]) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source = (Path(folder) / "bucket").with_suffix(suffix)
        source.write_text(code)
        built, library = source.with_suffix(".o"), source.with_suffix(".so")
        # Linked apart, without the sanitizer's runtime: the shim has the one function it needs.
        for command in (
            [compiler, *_FLAGS, *_WARNINGS, *flags, "-c", str(source), "-o", str(built)],
            [compiler, "-shared", str(built), "-lm", "-o", str(library)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))
