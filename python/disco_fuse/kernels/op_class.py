"""Which kind of work an operator is, told by its PrimFunc (see `disco_fuse.graph.OpClass`)."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim

from disco_fuse.graph import OpClass
from disco_fuse.kernels.analysis import is_elementwise
from disco_fuse.kernels.stages import Stage, parse

OP_CLASS_ATTR = "disco_fuse.op_class"
"""Function attribute: the class, where whoever made the function knows better."""


def op_class(func: tirx.PrimFunc) -> OpClass:
    """The class of one legalised operator.

    Said by the function's own attribute, or else: sums of products of two tensors are matmuls,
    everything else that combines values is a reduction, what reads each input at the output's own
    index is elementwise, and the rest moves data (transposes, slices, gathers, scatters).

    Raises
    ------
    ValueError
        When a parameter is not a buffer of constant shape.
    """
    if func.attrs and OP_CLASS_ATTR in func.attrs:
        return OpClass(str(func.attrs[OP_CLASS_ATTR]))
    stages = parse(func).stages
    if any(_sums_products(stage) for stage in stages):
        return OpClass.MATMUL
    if any(stage.combine is not None for stage in stages):
        return OpClass.REDUCTION
    if all(is_elementwise(stage) for stage in stages):
        return OpClass.ELEMENTWISE
    return OpClass.MOVEMENT


def _sums_products(stage: Stage) -> bool:
    if stage.combine is not prim.Add or not isinstance(stage.value, prim.Mul):
        return False
    left, right = _sources(stage.value.a), _sources(stage.value.b)
    return bool(left) and bool(right) and left != right


def _sources(value: tirx.Expr) -> set[tirx.Buffer]:
    sources: set[tirx.Buffer] = set()

    def load(node: tvm.ir.TensorLoad) -> None:
        sources.add(node.source)

    tvm_ffi.structural_walk(tirx.Evaluate(value), [(tvm.ir.TensorLoad, load)])
    return sources
