"""Module passes: marking operators before `FuseTIR`, scheduling kernels after it."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ..stages import OP_PATTERN
from .driver import IS_SCHEDULED, schedule
from .loops import int_imm
from .operators import OPAQUE

BUILD_CONFIG = {"tirx.disable_storage_rewrite": True}
"""Pass configuration to compile scheduled kernels with (`tvm.transform.PassContext(config=...)`).

TVM's StorageRewrite drops the annotation that keeps accumulators on the stack; they then live in
the workspace pool, where LLVM must keep every store to them. A layer norm or a softmax
takes half the time with it; results differ by rounding, since LLVM contracts more products.
"""


@tvm.transform.module_pass(opt_level=0, name="MarkOps")
class MarkOps:
    """Prepare operators for fusion: annotate the last block of each with its pattern.

    Run it between `AnnotateTIROpPattern` and `FuseTIR`: the schedules then know which blocks of a
    fused kernel belong together, so that they inline and share loops operator by operator, as the
    cost model assumes. What consists of no blocks, which TVM takes for elementwise, is opaque.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with annotated PrimFuncs; those without ``op_pattern`` are left alone."""
        updates = {}
        for name, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and func.attrs and "op_pattern" in func.attrs:
                plain = _connectable(func)
                updates[name] = _marked(plain, int(func.attrs["op_pattern"]))
        return replaced(mod, updates)


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
        return replaced(mod, updates)


def _marked(func: tirx.PrimFunc, pattern: int) -> tirx.PrimFunc:
    """`func` with the annotation that `operators` reads, on its last block."""
    last: list[tvm.s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, [(tvm.s_tir.SBlock, last.append)])
    blocks = [block for block in last if block.name_hint != "root"]
    if not blocks:
        return func.with_attr("op_pattern", tirx.IntImm("int64", OPAQUE))
    target = blocks[-1]

    def annotate(block: tvm.s_tir.SBlock) -> tvm.s_tir.SBlock:
        if not block.same_as(target):
            return block
        return tvm.s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            {**block.annotations, OP_PATTERN: pattern},
            block.span,
        )

    return func.with_body(tvm_ffi.structural_map(func.body, [(tvm.s_tir.SBlock, annotate)]))


def _connectable(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with parameters of the type that `FuseTIR` connects to those of other operators.

    They start where their memory starts, and extents are int64. TVM's scatters declare a symbolic
    offset, and functions written by hand mostly have int32 extents.
    """
    plain: dict[tirx.Var, tirx.Var] = {}
    for param in func.params:
        if not tirx.is_buffer_var(param) or len(param.ty.strides) > 0:
            continue
        narrow = [e for e in param.ty.shape if isinstance(e, tirx.IntImm) and e.ty.dtype != "int64"]
        if narrow or not isinstance(param.ty.elem_offset, tirx.IntImm):
            shape = [int_imm(e.value) if isinstance(e, tirx.IntImm) else e for e in param.ty.shape]
            plain[param] = tirx.decl_buffer(
                shape, str(param.ty.dtype), name=param.name, layout=None
            )
    if not plain:
        return func

    def change(var: tirx.Var) -> tirx.Var:
        return plain.get(var, var)

    body = tvm_ffi.structural_map(func.body, [(tirx.Var, change)])
    params = [plain.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def replaced(mod: tvm.IRModule, updates: dict[tvm.ir.GlobalVar, tirx.PrimFunc]) -> tvm.IRModule:
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
