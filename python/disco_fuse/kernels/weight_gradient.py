"""FoldWeightGradient: the weight gradient of a convolution as the one library call it is.

    xt = permute_dims(x, (1, 0, 2, 3))                    dw = call_tir(weight_gradient, (x, g))
    gt = permute_dims(g, (1, 0, 2, 3))             ->
    p  = conv2d(xt, gt, strides, dilation)                one kernel, no copies
    p1 = strided_slice(p)       # taps too many
    dw = permute_dims(p1, (1, 0, 2, 3))

The frontend writes the gradient so because Relax has no operator for it. A library has (cuDNN's
backward filter, oneDNN's backward weights): it reads x and g where they are, and computes no tap
that is cut off. With groups, xt is reshape(permute_dims(reshape(x))), which sets groups and batch
side by side: [N, G * C, ...] -> [C, G * N, ...].
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, te, topi
from tvm.ir import Call

from disco_fuse.bindings import is_op, static_shape
from disco_fuse.kernels.convolution import library_attributes
from disco_fuse.kernels.library import ConvolutionPlan, emit_convolution
from disco_fuse.kernels.library.dispatch_convolution import reason_to_stay, window_of
from disco_fuse.kernels.library.layout_ops import LayoutOp, parse_layout_op

_CONVOLUTIONS = {f"relax.nn.conv{rank}d": rank for rank in (1, 2, 3)}

Values = Mapping[relax.Var, relax.Expr]


@dataclass(frozen=True, kw_only=True)
class _WeightGradient:
    """What the last binding of the pattern stands for."""

    x: relax.Expr
    grad: relax.Expr
    convolution: Call
    shape: tuple[int, ...]

    @property
    def flops(self) -> float:
        """Every element of the result meets each image and position of ``grad`` once."""
        batch, _, *extents = static_shape(self.grad.ty)
        return 2.0 * math.prod(self.shape) * batch * math.prod(extents)

    def suits(self, *, dispatch: bool) -> bool:
        """Whether it can be written as a call of the library, or else as one kernel."""
        if not dispatch:
            return int(self.convolution.attrs.groups) == 1
        return not reason_to_stay(self.convolution, _CONVOLUTIONS[self.convolution.op.name])


@tvm.transform.module_pass(opt_level=0, name="FoldWeightGradient")
class FoldWeightGradient:
    """Rewrite the pattern wherever it stands in main's dataflow block.

    Parameters
    ----------
    dispatch : bool
        Whether to call torch's library, which does groups too, in float32 and float64. Otherwise
        it becomes a kernel that stands for a library's, without groups and in every dtype.
    """

    def __init__(self, *, dispatch: bool) -> None:
        self._dispatch = dispatch

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Called by TVM."""
        main = mod["main"]
        values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
        reads = Counter(var for value in values.values() for var in relax.analysis.used_vars(value))
        others = {gv: func for gv, func in mod.functions.items() if not func.same_as(main)}
        builder = relax.BlockBuilder(tvm.IRModule(others))
        blocks = []
        for block in main.body.blocks:
            bindings = []
            for binding in block.bindings:
                found = _match(binding.value, values, reads)
                if found is None or not found.suits(dispatch=self._dispatch):
                    value = binding.value
                elif self._dispatch:
                    value = _emit_call(found)
                else:
                    value = _emit_kernel(builder, found)
                bindings.append(relax.VarBinding(binding.var, value))
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, main.body.body)
        builder.add_func(
            relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs), "main"
        )
        folded = relax.transform.Normalize()(builder.get().with_attrs(mod.attrs or {}))
        return relax.transform.DeadCodeElimination()(folded)


def _match(value: relax.Expr, values: Values, reads: Counter[relax.Var]) -> _WeightGradient | None:
    last = _turn(value, values)
    if last is None or reads[last] != 1 or last not in values:
        return None
    product = values[last]
    cut = parse_layout_op(product, values)
    if cut is not None and cut.kind == "slice":
        if not _keeps_the_first(cut) or reads[cut.source] != 1 or cut.source not in values:
            return None
        product = values[cut.source]
    if not any(is_op(product, name) for name in _CONVOLUTIONS):
        return None
    data, kernel = (values.get(operand, operand) for operand in product.args)
    groups = int(product.attrs.groups)
    x = _turn(data, values) if groups == 1 else _turn_groups(data, values, groups)
    grad = _turn(kernel, values)
    if x is None or grad is None:
        return None
    return _WeightGradient(x=x, grad=grad, convolution=product, shape=static_shape(value.ty))


def _turn(value: relax.Expr, values: Values) -> relax.Var | None:
    """What ``value`` is with its first two axes exchanged."""
    layout = parse_layout_op(value, values)
    if layout is None or layout.kind != "permute":
        return None
    return layout.source if layout.order == (1, 0, *range(2, len(layout.order))) else None


def _turn_groups(value: relax.Expr, values: Values, groups: int) -> relax.Var | None:
    """``x`` [N, G * C, ...] where ``value`` is it as [C, G * N, ...], None where it is not."""
    chain, shapes = [value], []
    for kind in ("reshape", "permute", "reshape"):
        layout = parse_layout_op(chain[-1], values)
        if layout is None or layout.kind != kind:
            return None
        if kind == "permute" and layout.order != (2, 1, 0, *range(3, len(layout.order))):
            return None
        shapes.append(layout.source_shape)
        chain.append(values.get(layout.source, layout.source))
        source = layout.source
    _, apart, (batch, channels, *extents) = shapes
    return source if apart == (batch, groups, channels // groups, *extents) else None


def _keeps_the_first(cut: LayoutOp) -> bool:
    return all(part.begin == 0 and part.step == 1 for part in cut.slices)


def _emit_call(found: _WeightGradient) -> Call:
    window = window_of(found.convolution)
    # In the convolution that stands for the gradient, stride and dilation have changed places.
    window["stride"], window["dilation"] = window["dilation"], window["stride"]
    plan = ConvolutionPlan(result="weight", **window)
    out_ty = relax.TensorType(found.shape, found.convolution.ty.dtype)
    return emit_convolution(found.x, found.grad, plan, out_ty)


def _emit_kernel(builder: relax.BlockBuilder, found: _WeightGradient) -> Call:
    attrs = found.convolution.attrs
    axes = [1, 0, *range(2, len(found.shape))]

    def weight_gradient(x: te.Tensor, grad: te.Tensor) -> te.Tensor:
        product = topi.nn.conv(
            topi.transpose(x, axes),
            topi.transpose(grad, axes),
            stride=[int(step) for step in attrs.strides],
            padding=[int(zeros) for zeros in attrs.padding],
            dilation=[int(step) for step in attrs.dilation],
            groups=1,
            data_layout=str(attrs.data_layout),
            kernel_layout=str(attrs.kernel_layout),
            out_dtype=str(x.dtype),
        )
        whole = topi.transpose(product, axes)
        return topi.strided_slice(whole, [0] * len(found.shape), list(found.shape))

    call: Call = builder.call_te(
        weight_gradient,
        found.x,
        found.grad,
        primfunc_name_hint="weight_gradient",
        primfunc_attrs=library_attributes(found.flops),
    )
    return call
