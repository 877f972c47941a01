"""The pass that schedules the kernels of a module for CUDA, after `FuseTIR`."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ..cpu.driver import IS_SCHEDULED
from ..cpu.transform import replaced
from .driver import schedule


@tvm.transform.module_pass(opt_level=0, name="ScheduleCUDA")
class ScheduleCUDA:
    """Schedule every PrimFunc of a module for a GPU.

    Parameters
    ----------
    target
        The GPU; `Target.current()` without one.
    cache
        Scheduled kernels by what they were before; new ones are added. Give the same one to
        several runs and each distinct kernel is scheduled once.

    Raises
    ------
    ValueError
        When there is no target, or it is not a cuda target.
    """

    def __init__(
        self,
        target: Target | None = None,
        cache: dict[tvm_ffi.StructuralKey, tirx.PrimFunc] | None = None,
    ) -> None:
        self.target = target
        self.cache = {} if cache is None else cache

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with scheduled kernels; equal functions are scheduled once."""
        target = self.target if self.target is not None else Target.current(allow_none=True)
        if target is None or target.kind.name != "cuda":
            raise ValueError(
                f"ScheduleCUDA got target {target}; pass a cuda target or enter one "
                "(`with Target(...)`)"
            )
        updates = {}
        for name, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or func.attrs.get(IS_SCHEDULED, False):
                continue
            key = tvm_ffi.StructuralKey(func)
            if key not in self.cache:
                self.cache[key] = schedule(func, target)
            updates[name] = self.cache[key]
        return replaced(mod, updates)
