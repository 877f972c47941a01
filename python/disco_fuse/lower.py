"""Lowers a training module to the form DisCoFuse decides on.

Input: relax operators. Output: one dataflow block of ``call_tir``, library calls and allreduces,
every PrimFunc annotated with its fusion pattern -- the form in which TVM's own FuseOps works too.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax, topi
from tvm.ir import Call

from disco_fuse.bindings import ALLREDUCE_OP, is_op, static_shape
from disco_fuse.kernels.convolution import convolution_legalizers
from disco_fuse.kernels.cpu import MarkOps
from disco_fuse.kernels.library import DispatchConvolution, DispatchMatmul
from disco_fuse.kernels.weight_gradient import FoldWeightGradient
from disco_fuse.own_gradients import OwnGradients

_DIVISIONS = ("relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod")


def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    *,
    library: bool,
    library_convolutions: bool = False,
) -> tvm.IRModule:
    """Legalise and annotate ``mod``.

    Parameters
    ----------
    mod : tvm.IRModule
        A module whose ``main`` is one dataflow block; already legalised parts are kept.
    target : tvm.target.Target
        Legalisation depends on it: IR legalised for a CPU keeps serial scatters on a GPU.
    library : bool
        Dispatch matmul, and on a CPU convolution, to the libraries inside torch; the caller knows
        whether they are there.
    library_convolutions : bool
        Convolutions and their gradients count as library calls, as they are on a GPU; they keep
        TVM's loops to run, and are not dispatched to torch.

    Returns
    -------
    tvm.IRModule
        ``call_tir``, ``call_dps_packed`` and ``R.ccl.allreduce`` only.

    Raises
    ------
    ValueError
        ``main`` is missing or is not one dataflow block, or divides by the constant 0.
    """
    _check_divisors(check_single_dataflow_block(mod))
    dispatch = library and not library_convolutions and target.kind.name == "llvm"
    passes = [
        relax.transform.CanonicalizeBindings(),
        OwnGradients(),
        *([DispatchMatmul()] if library else []),
        *([FoldWeightGradient(dispatch=dispatch)] if dispatch or library_convolutions else []),
        *([DispatchConvolution()] if dispatch else []),
    ]
    passes += [
        relax.backend.DispatchSortScan(),  # argsort, cumsum: LegalizeOps knows none of them
        relax.transform.LegalizeOps(
            {"relax.mean": _legalize_mean, **convolution_legalizers(library=library_convolutions)},
            skip_ops=[ALLREDUCE_OP],
        ),
        relax.transform.CanonicalizeBindings(),  # constants that stand for an operator (arange)
        relax.transform.AnnotateTIROpPattern(),
        MarkOps(),
        relax.transform.DeadCodeElimination(),
    ]
    with target:
        return tvm.transform.Sequential(passes)(mod)


def _check_divisors(main: relax.Function) -> None:
    """ValueError for a division by the scalar constant 0, on which TVM fails without a name."""
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not any(is_op(value, name) for name in _DIVISIONS):
                continue
            divisor = value.args[1]
            if not isinstance(divisor, tvm.ir.GenericConst) or static_shape(divisor.ty) != ():
                continue
            if divisor.value.numpy() == 0:
                raise ValueError(f"{binding.var.name} = {value} divides by the constant 0")


def check_single_dataflow_block(mod: tvm.IRModule) -> relax.Function:
    """The ``main`` of ``mod``; ValueError unless its body is exactly one dataflow block."""
    main = next(
        (f for gv, f in mod.functions.items() if gv.name_hint == "main"),
        None,
    )
    if not isinstance(main, relax.Function):
        names = sorted(gv.name_hint for gv, _ in mod.functions.items())
        raise ValueError(f"module has no relax function 'main'; it has {names}")
    body = main.body
    if not isinstance(body, relax.SeqExpr):
        raise ValueError(f"main must be one dataflow block, but its body is {type(body).__name__}")
    blocks = [block for block in body.blocks if len(block.bindings) > 0]
    kinds = [type(block).__name__ for block in blocks]
    if kinds != ["DataflowBlock"]:
        raise ValueError(f"main must be exactly one dataflow block, but it consists of {kinds}")
    return main


def _legalize_mean(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """A sum and a division, each an op of its own.

    TVM makes one PrimFunc of both, which its pattern analysis takes for something like a matmul:
    nothing that feeds the sum could be fused into it.
    """
    shape = static_shape(call.args[0].ty)
    axes = (
        [int(a) for a in call.attrs.axis]
        if call.attrs.axis is not None
        else list(range(len(shape)))
    )
    count = math.prod(shape[axis] for axis in axes)
    total = builder.emit_te(topi.sum, call.args[0], axes, bool(call.attrs.keepdims))
    dtype = total.ty.dtype.dtype
    return builder.call_te(
        lambda t: topi.divide(t, tvm.tirx.const(count, str(dtype))),
        total,
        primfunc_name_hint="divide",
    )
