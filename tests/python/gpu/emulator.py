"""Runs CUDA kernels without a GPU: their text is compiled as C++ and its threads are fibers.

What it shows: that indexing, tails, reductions and barriers of the generated text are right. Every
kernel runs twice, its threads in both orders, so that most races change the result. What it cannot
show: speed, and whatever a real device does differently.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import s_tir, tirx

from disco_fuse.kernels.cuda import schedule
from disco_fuse.kernels.cuda.verify import Launch, launches_of
from disco_fuse.kernels.stages import element_bytes, num_elements

_HEADER = Path(__file__).parent / "emulator.h"
_KERNEL = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\(\d+\))? (\w+)\(([^)]*)\) \{'
)


def cuda_source(functions: dict[str, tirx.PrimFunc], target: tvm.target.Target) -> str:
    """The text of scheduled kernels."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    built = tvm.tirx.build(tvm.IRModule(named), target)
    return str(built.imports[0].inspect_source()) if len(built.imports) else ""


class Emulated:
    """Kernels, scheduled for CUDA and compiled for the CPU.

    Parameters
    ----------
    functions
        Legalised PrimFuncs or fusion groups by name.
    target
        A CUDA target.
    folder
        Takes the source and the library.
    """

    def __init__(
        self, functions: dict[str, tirx.PrimFunc], target: tvm.target.Target, folder: Path
    ) -> None:
        self._functions = {
            name: schedule(with_distinct_names(func), target) for name, func in functions.items()
        }
        text = cuda_source(self._functions, target)
        kernels = dict(_KERNEL.findall(text))
        first = text.find('extern "C" __global__')
        parts = [f'#include "{_HEADER}"\n', text[first:] if first >= 0 else ""]
        for name, func in self._functions.items():
            launches = launches_of([func.body])
            for number, launch in enumerate(launches):
                kernel = f"{name}_kernel" + (f"_{number}" if number else "")
                parts.append(_runner(kernel, kernels[kernel], launch, text))
        source = folder / "kernels.cc"
        source.write_text("".join(parts), encoding="utf-8")
        library = folder / "kernels.so"
        command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        self._library = ctypes.CDLL(str(library))
        self._kernels = kernels

    def run(
        self, name: str, inputs: Sequence[NDArray], aliases: dict[int, int] | None = None
    ) -> list[NDArray]:
        """What the parameters of a kernel hold after it ran on copies of ``inputs``.

        ``aliases`` names parameters that are the memory of another one, by position.
        """
        forwards, backwards = (self._run(name, inputs, aliases or {}, order) for order in (0, 1))
        for one, other in zip(forwards, backwards, strict=True):
            np.testing.assert_array_equal(one, other, f"{name} depends on the order of threads")
        return forwards

    def _run(
        self, name: str, inputs: Sequence[NDArray], aliases: dict[int, int], backwards: int
    ) -> list[NDArray]:
        func = self._functions[name]
        arrays = [np.array(array, order="C") for array in inputs]
        for position, other in aliases.items():
            arrays[position] = arrays[other]
        memory = {_buffer_name(p.name): a for p, a in zip(func.params, arrays, strict=True)}
        allocated = _allocated(func.body)
        # Allocations that are never alive together may have become one, under either name.
        size = max((num_elements(b) * element_bytes(b) for b in allocated), default=0)
        for buffer in allocated:
            memory[_buffer_name(buffer.name)] = np.full(size, 0x7F, "uint8")
        for number in range(len(launches_of([func.body]))):
            kernel = f"{name}_kernel" + (f"_{number}" if number else "")
            names = re.findall(r"(\w+)(?:,|$)", self._kernels[kernel])
            pointers = [memory[_buffer_name(n)].ctypes.data for n in names]
            call = getattr(self._library, f"run_{kernel}")
            call.restype = ctypes.c_bool
            packed = (ctypes.c_void_p * len(pointers))(*pointers)
            assert call(packed, backwards), f"{kernel}: some threads miss a barrier"
        return arrays


def _buffer_name(name: str) -> str:
    """The buffer behind the name of an argument: its flat form, its pointer, a second use."""
    return re.sub(r"(_flat)?(_ptr)?(_\d+)?$", "", name)


def _runner(kernel: str, signature: str, launch: Launch, text: str) -> str:
    """C code that runs one kernel on an array of pointers."""
    kinds = [re.sub(r"\s*(?:__restrict__)?\s*\w+$", "", part) for part in signature.split(", ")]
    arguments = ", ".join(f"({kind})arguments[{i}]" for i, kind in enumerate(kinds))
    sizes = [
        ", ".join(str(launch.extents.get(f"{axis}.{d}", 1)) for d in "xyz")
        for axis in ("blockIdx", "threadIdx")
    ]
    own = text.split(f" {kernel}(")[-1].split('extern "C"')[0]
    barriers = "true" if "__syncthreads" in own else "false"
    return (
        f'extern "C" bool run_{kernel}(void** given, int backwards) {{\n'
        f"  static void** arguments; arguments = given;\n"
        f"  return Launch({{{sizes[0]}}}, {{{sizes[1]}}}, backwards, {barriers},\n"
        f"                [] {{ {kernel}({arguments}); }});\n}}\n"
    )


def with_distinct_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """An unscheduled function whose buffers all have names of their own."""
    old = [*func.params, *_allocated(func.body)]
    new = {
        buffer: tirx.decl_buffer(buffer.ty.shape, str(buffer.ty.dtype), name=f"buffer{i}")
        for i, buffer in enumerate(old)
    }

    def change(var: tirx.Var) -> tirx.Var:
        return new.get(var, var)

    body = tvm_ffi.structural_map(func.body, [(tirx.Var, change)])
    return tirx.PrimFunc([new[p] for p in func.params], body, func.ret_type, func.attrs)


def _allocated(body: tirx.Stmt) -> list[tirx.Buffer]:
    """Buffers that the host allocates."""
    if isinstance(body, s_tir.SBlockRealize):
        return [*body.block.alloc_buffers, *_allocated(body.block.body)]
    if isinstance(body, tirx.SeqStmt):
        return [buffer for child in body.seq for buffer in _allocated(child)]
    return [body.buffer] if isinstance(body, tirx.AllocBuffer) else []
