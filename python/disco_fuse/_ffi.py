"""Loads the C++ library once; the rest of the package looks its functions up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

_LIBRARY = load_lib_ctypes(
    "disco-fuse", "disco_fuse", "RTLD_LOCAL", extra_lib_paths=[Path(__file__).parent / "lib"]
)


def function(name: str) -> Any:
    """The C++ function registered as ``disco_fuse.<name>``."""
    return tvm_ffi.get_global_func(f"disco_fuse.{name}")


def array(tensor: Any) -> Any:
    """A numpy array of its own with the contents of a tensor that C++ returned."""
    return np.from_dlpack(tensor).copy()
