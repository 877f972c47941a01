"""Library calls of main become calls of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx

KernelOf = Callable[[Any], tuple[str, tirx.PrimFunc] | None]


def replace_calls(mod: tvm.IRModule, kernel_of: KernelOf) -> tvm.IRModule:
    """Replace calls of main that read two tensors and a plan.

    Parameters
    ----------
    mod : tvm.IRModule
        Not changed.
    kernel_of : callable
        For the value of a binding the name and the function ``(a, b, out)`` of its kernel; None:
        it stays.

    Returns
    -------
    tvm.IRModule
    """
    main = mod["main"]
    others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others))

    def rewritten(binding: Any) -> Any:
        call = binding.value
        kernel = kernel_of(call) if isinstance(binding, relax.VarBinding) else None
        if kernel is None:
            return binding
        name, func = kernel
        a, b, _ = call.args[1].fields
        new_call = relax.call_tir(builder.add_func(func, name), [a, b], call.ty)
        return relax.VarBinding(binding.var, new_call)

    blocks = [
        type(block)([rewritten(binding) for binding in block.bindings])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    new = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    builder.add_func(new, "main")
    return relax.transform.Normalize()(builder.get().with_attrs(mod.attrs or {}))
