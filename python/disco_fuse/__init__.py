"""DisCoFuse: joint op fusion and tensor fusion for data-parallel training in Apache TVM Relax."""

from __future__ import annotations

import tvm.relax

from disco_fuse import _ffi

__version__: str = str(_ffi.function("version")())

from disco_fuse.trainer import Trainer
from disco_fuse.transform import DisCoFuse

# `import tvm` publishes a lazy stand-in through an entry point; that can be switched off
# (TVM_DEVICE_BACKEND_AUTOLOAD=0), so the pass itself is published here too.
tvm.relax.transform.DisCoFuse = DisCoFuse

__all__ = ["DisCoFuse", "Trainer", "__version__"]
