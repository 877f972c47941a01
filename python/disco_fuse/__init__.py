"""DisCoFuse: joint op fusion and tensor fusion for data-parallel training in Apache TVM Relax."""

from __future__ import annotations

from disco_fuse import _ffi

__version__: str = str(_ffi.function("version")())
