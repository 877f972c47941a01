"""How convolutions are lowered: known as such, and on request standing for a library's kernel.

    relax.nn.conv2d(x, w)   ->   call_tir(conv2d)   op_class = "convolution"
                                                    library:  op_pattern = opaque, flops as defined

On a GPU a convolution, forward or backward, is a call of cuDNN or the like: one kernel, fused with
nothing, whose time is that of the multiplications its definition asks for. A function marked so
keeps TVM's loops, so that it still runs where no such library is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, tirx
from tvm.ir import Call
from tvm.ir import Op as RelaxOp

from disco_fuse.bindings import static_shape
from disco_fuse.graph import OpClass, OpPattern
from disco_fuse.kernels.cpu.gemm import FLOPS_ATTR
from disco_fuse.kernels.op_class import OP_CLASS_ATTR

LIBRARY_ATTR = "disco_fuse.library"
"""Function attribute: the function stands for a call into a library."""

Legalizer = Callable[[relax.BlockBuilder, Call], relax.Expr]

_NAMES = tuple(
    f"relax.nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose")
)


def convolution_legalizers(*, library: bool) -> dict[str, Legalizer]:
    """For ``LegalizeOps``: TVM's own kernels of all convolutions, marked.

    Parameters
    ----------
    library : bool
        Whether each is to count as a library call.
    """

    def legalize(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
        kernel = call.op.get_attr("FLegalize")(builder, call)
        if not isinstance(kernel, Call) or kernel.op != RelaxOp.get("relax.call_tir"):
            return kernel  # TVM knows no kernel for it and has said why
        attrs: dict[str, object] = {OP_CLASS_ATTR: str(OpClass.CONVOLUTION)}
        if library:
            attrs = library_attributes(convolution_flops(call))
        func: tirx.PrimFunc = builder.get()[kernel.args[0]]
        marked = builder.add_func(func.with_attrs(attrs), kernel.args[0].name_hint)
        return Call(kernel.op, [marked, *kernel.args[1:]], kernel.attrs, kernel.ty_args)

    return dict.fromkeys(_NAMES, legalize)


def library_attributes(flops: float) -> dict[str, object]:
    """Of a function that stands for a library's convolution of so many operations."""
    return {
        OP_CLASS_ATTR: str(OpClass.CONVOLUTION),
        LIBRARY_ATTR: True,
        FLOPS_ATTR: flops,
        "op_pattern": int(OpPattern.OPAQUE),
    }


def convolution_flops(call: Call) -> float:
    """Operations that the definition of a (transposed) convolution asks for, a product being two.

    Every element of the result (of the input, if transposed) meets each tap of each channel of its
    group once; zeros that pad or dilate an input count as taps only in the first case.
    """
    data, weight = call.args
    transposed = str(call.op.name).endswith("_transpose")
    meeting = data.ty if transposed else call.ty
    taps = static_shape(weight.ty)
    # Channels of the tensor that meets the taps: "OIHW" of the one, "IOHW" of the other.
    channels = taps[str(call.attrs.kernel_layout).index("I" if transposed else "O")]
    return 2.0 * math.prod(static_shape(meeting)) * math.prod(taps) / channels
