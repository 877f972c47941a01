"""NVRTC, the compiler of CUDA source that needs no GPU, called where its wheel is installed."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def find_nvrtc() -> Path | None:
    """The library of the wheel nvidia-cuda-nvrtc-cu12, or None."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / "libnvrtc.so.12"
        if path.is_file():
            return path
    return None


def compile_cuda(code: str, arch: str) -> tuple[bytes, str]:
    """Cubin and PTX of the source for a real architecture such as "sm_90".

    Raises
    ------
    ValueError
        With the compiler's log, if the source has errors; warnings are errors.
    """
    path = find_nvrtc()
    assert path is not None, "find_nvrtc() must be asked first"
    library = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), code.encode(), b"bucket.cu", 0, None, None
        )
    )
    try:
        options = [f"--gpu-architecture={arch}", "--std=c++17"]
        values = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = library.nvrtcCompileProgram(program, len(options), values)
        log = _output(library, program, "ProgramLog").rstrip(b"\0").decode()
        if status != 0 or log:
            raise ValueError(log)
        cubin, ptx = (_output(library, program, kind) for kind in ("CUBIN", "PTX"))
        return cubin, ptx.decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _output(library: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{kind}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"NVRTC answered {status}")
