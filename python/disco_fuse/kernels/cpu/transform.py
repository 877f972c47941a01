"""Module passes: marking operators before `FuseTIR`, scheduling kernels after it."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from .driver import IS_SCHEDULED, schedule
from .operators import mark_operator


@tvm.transform.module_pass(opt_level=0, name="MarkOps")
class MarkOps:
    """Annotate the last block of every operator with the operator's pattern.

    Run it between `AnnotateTIROpPattern` and `FuseTIR`: the schedules then know which blocks of a
    fused kernel belong together, so that they inline and share loops operator by operator, as the
    cost model assumes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with annotated PrimFuncs; those without ``op_pattern`` are left alone."""
        updates = {}
        for name, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and func.attrs and "op_pattern" in func.attrs:
                updates[name] = mark_operator(func, int(func.attrs["op_pattern"]))
        return _replaced(mod, updates)


@tvm.transform.module_pass(opt_level=0, name="ScheduleCPU")
class ScheduleCPU:
    """Schedule every PrimFunc of a module for a CPU.

    Parameters
    ----------
    target
        The CPU; `Target.current()` without one.

    Raises
    ------
    ValueError
        When there is no target, or it is not an llvm target.
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with scheduled kernels; equal functions are scheduled once."""
        target = self.target if self.target is not None else Target.current(allow_none=True)
        if target is None or target.kind.name != "llvm":
            raise ValueError(
                f"ScheduleCPU got target {target}; pass an llvm target or enter one "
                "(`with Target(...)`)"
            )
        seen: dict[tvm_ffi.StructuralKey, tirx.PrimFunc] = {}
        updates = {}
        for name, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or func.attrs.get(IS_SCHEDULED, False):
                continue
            key = tvm_ffi.StructuralKey(func)
            if key not in seen:
                seen[key] = schedule(func, target)
            updates[name] = seen[key]
        return _replaced(mod, updates)


def _replaced(mod: tvm.IRModule, updates: dict[tvm.ir.GlobalVar, tirx.PrimFunc]) -> tvm.IRModule:
    """A copy of the module with some functions replaced."""
    functions = {name: updates.get(name, func) for name, func in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def without_noalias(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without the promise that its arguments do not overlap.

    TVM marks every legalised function ``tirx.noalias``; the LLVM code generator then declares the
    argument pointers ``noalias`` and gives every buffer an alias class of its own. A kernel that
    is called with an output buffer that is one of its inputs (a donated parameter) must not make
    that promise.
    """
    return func.without_attr("tirx.noalias")
