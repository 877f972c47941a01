"""Small lowered modules made of a few Relax operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from disco_fuse.extract import Extraction, extract
from disco_fuse.lower import lower
from disco_fuse.target import host_target


def step(build_body: Callable[..., Any], *shapes: tuple[int, ...]) -> tvm.IRModule:
    """A module whose main binds what ``build_body(emit, *inputs)`` emits and returns the last."""
    params = [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build_body(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.get()


def lowered(mod: tvm.IRModule, **options: bool) -> tuple[tvm.IRModule, Extraction]:
    mod = lower(mod, host_target(), **{"library": False, **options})
    return mod, extract(mod)
