"""DispatchConvolution: convolutions, forward and backward, become calls of torch's library.

    y  = conv2d(x, w)             ->   y  = convolution(x, w, plan)       computes "small"
    dx = conv2d_transpose(g, w)   ->   dx = convolution(g, w, plan)       computes "large"

The weight gradient, which Relax writes as several operators, is found by
:mod:`disco_fuse.kernels.weight_gradient`.
"""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import relax

from disco_fuse.bindings import is_op
from disco_fuse.kernels.library.calls import static_shape
from disco_fuse.kernels.library.convolution_calls import ConvolutionPlan, emit_convolution

_LOGGER = logging.getLogger(__name__)
_DTYPES = ("float32", "float64")
_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_FORWARD = {f"relax.nn.conv{rank}d": rank for rank in (1, 2, 3)}
_TRANSPOSED = {f"relax.nn.conv{rank}d_transpose": rank for rank in (1, 2, 3)}


def DispatchConvolution() -> Any:  # noqa: N802 - the name of a pass
    """Pass that turns each convolution of main that the library can do into a call of it.

    Run it before ``LegalizeOps``. Dispatched are float32 and float64 over 1 to 3 spatial axes, of
    static shape, channels second, with the same padding on both sides; others stay, and the log
    says why (level DEBUG).

    Returns
    -------
    tvm.transform.Pass
        A module pass; it does not change its input.
    """
    return tvm.transform.module_pass(_dispatch, opt_level=0, name="DispatchConvolution")


def _dispatch(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    main = mod["main"]
    blocks = [
        type(block)([_rewritten(binding) for binding in block.bindings])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    result = mod.clone()
    result.update_func(
        mod.get_global_var("main"),
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return relax.transform.Normalize()(result)


def _rewritten(binding: Any) -> Any:
    call = binding.value
    names = {**_FORWARD, **_TRANSPOSED}
    if not isinstance(binding, relax.VarBinding) or not any(is_op(call, name) for name in names):
        return binding
    reason = reason_to_stay(call, names[call.op.name])
    if reason:
        _LOGGER.debug("%s %s is not dispatched: %s", call.op.name, binding.var.name, reason)
        return binding
    plan = ConvolutionPlan(
        result="small" if call.op.name in _FORWARD else "large", **window_of(call)
    )
    data, weight = call.args
    return relax.VarBinding(binding.var, emit_convolution(data, weight, plan, call.ty))


def window_of(call: Any) -> dict[str, Any]:
    """Groups, stride, padding and dilation of a convolution, as a plan names them."""
    rank = len(call.attrs.strides)
    return {
        "groups": int(call.attrs.groups),
        "stride": tuple(int(step) for step in call.attrs.strides),
        "padding": tuple(int(zeros) for zeros in call.attrs.padding)[:rank],
        "dilation": tuple(int(step) for step in call.attrs.dilation),
    }


def reason_to_stay(call: Any, rank: int) -> str:
    """Why a convolution over ``rank`` axes cannot be a call; empty if it can."""
    types = [*(arg.ty for arg in call.args), call.ty]
    if any(static_shape(ty) is None for ty in types):
        return "a shape is not static"
    dtypes = {str(ty.dtype) for ty in types}
    if len(dtypes) > 1 or not dtypes <= set(_DTYPES):
        return f"its dtypes are {sorted(dtypes)}; the library has {' and '.join(_DTYPES)}"
    attrs = call.attrs
    before, after = list(attrs.padding)[:rank], list(attrs.padding)[rank:]
    if [int(zeros) for zeros in before] != [int(zeros) for zeros in after]:
        return f"its padding {list(attrs.padding)} differs between both sides"
    layouts = {str(attrs.data_layout), str(attrs.out_layout or attrs.data_layout)}
    kernel = "IO" if str(call.op.name).endswith("_transpose") else "OI"
    wanted = (_LAYOUTS[rank], kernel + _LAYOUTS[rank][2:])
    if layouts != {wanted[0]} or str(attrs.kernel_layout) != wanted[1]:
        return f"its layouts are {sorted(layouts)} and {attrs.kernel_layout}, not {wanted}"
    return ""
