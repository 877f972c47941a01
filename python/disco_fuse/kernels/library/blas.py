"""Locating and loading the libraries of matmul and convolution: torch's, without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from disco_fuse import _ffi


def find_library() -> Path | None:
    """Path of the installed torch's ``libtorch_cpu.so``, or None. Torch is not imported."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / "libtorch_cpu.so"
        if path.is_file():
            return path
    return None


def library_available() -> bool:
    """Whether :func:`load_library` without a path would find a library.

    It only looks for the file; loading it (0.2 s) is left to the process that runs the plan.
    """
    return find_library() is not None


def load_library(path: str | Path | None = None) -> Path:
    """Load what is behind ``disco_fuse.kernels.matmul`` and ``.convolution``, once in every process
    that runs them.

    Parameters
    ----------
    path : str or Path, optional
        A library that exports MKL's LP64 interface, for matmul only; by default that of
        :func:`find_library`, for convolution too.

    Returns
    -------
    Path
        The library that was loaded.

    Raises
    ------
    ValueError
        If there is no such library, or it lacks an entry point. The message names both and says
        what to do.
    """
    library = Path(path) if path is not None else find_library()
    if library is None:
        raise ValueError(
            "no libtorch_cpu.so found: install torch, pass the path of a library with MKL's "
            "interface, or build without dispatching matmul to a library"
        )
    _ffi.function("kernels.load_blas")(str(library))
    if path is None:
        _ffi.function("kernels.load_torch")(str(library))
    return library


def set_num_threads(num_threads: int) -> None:
    """Threads of each later library call in this process (1 at first; 0: the library decides).

    The number of threads that torch uses is not touched.

    Raises
    ------
    ValueError
        If `num_threads` is negative or above 4096.
    """
    _ffi.function("kernels.set_num_threads")(num_threads)
