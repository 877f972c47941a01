"""What the bindings of a lowered Relax module mean: inputs, views, allreduces, sizes.

*Glue* is a binding that computes nothing: an alias, a view (reshape), a tuple or a projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import Call, Op

ALLREDUCE_OP = "relax.ccl.allreduce"
_LEGALISED_ALLREDUCE = "runtime.disco.allreduce"
# In the order in which TVM's legaliser numbers them (relax/transform/legalize_ops/ccl.py).
_REDUCTIONS = ("sum", "prod", "min", "max", "avg")

Glue = Mapping[relax.Var, relax.VarBinding]


def is_op(expr: object, name: str) -> bool:
    """Whether ``expr`` is a call of the relax operator ``name``."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == name


def packed_name(call: Call) -> str:
    """Name of the packed function that a ``call_dps_packed`` calls."""
    return str(call.args[0].global_symbol)


def is_packed_call(expr: Any, name: str) -> bool:
    """Whether ``expr`` is a ``call_dps_packed`` of the packed function ``name``."""
    return (
        is_op(expr, "relax.call_dps_packed")
        and isinstance(expr.args[0], relax.ExternFunc)
        and packed_name(expr) == name
    )


def reduction_of(call: relax.Expr) -> str | None:
    """The reduction of an allreduce call ("avg", "sum", ...), None if ``call`` is none."""
    if is_op(call, ALLREDUCE_OP):
        return str(call.attrs.op_type)
    if is_packed_call(call, _LEGALISED_ALLREDUCE):
        return _REDUCTIONS[int(call.args[1].fields[1].values[0])]
    return None


def call_inputs(call: Call) -> list[relax.Expr]:
    """Arguments of a lowered call, in order, tensors and plain values alike."""
    if is_op(call, ALLREDUCE_OP):
        return [call.args[0]]
    args = call.args[1]
    return list(args.fields) if isinstance(args, relax.Tuple) else [args]


def allreduce_input(call: Call) -> relax.Expr:
    """What an allreduce call reduces."""
    return call_inputs(call)[0]


def with_inputs(call: Call, inputs: list[relax.Expr]) -> Call:
    """``call`` (call_tir or call_dps_packed) reading ``inputs`` instead of its own."""
    args = [call.args[0], relax.Tuple(inputs), *call.args[2:]]
    return Call(call.op, args, call.attrs, call.ty_args)


def glue_source(binding: relax.VarBinding) -> relax.Expr | None:
    """What a view, alias or projection looks at; None for a tuple, which looks at many."""
    value = binding.value
    if isinstance(value, relax.Var):
        return value
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value
    if isinstance(value, relax.Tuple):
        return None
    return value.args[0] if is_op(value, "relax.reshape") else call_inputs(value)[0]


def tensor_leaves(call: Call, glue: Glue) -> list[relax.Expr]:
    """Tensor variables and constants a lowered call reads, tuples flattened, in order."""
    pending, leaves = list(call_inputs(call)), []
    while pending:
        expr = pending.pop(0)
        if isinstance(expr, relax.Var) and expr in glue:
            value = glue[expr].value
            expr = value if isinstance(value, relax.Tuple) else expr
        if isinstance(expr, relax.Tuple):
            pending = list(expr.fields) + pending
        elif isinstance(expr.ty, relax.TensorType):
            leaves.append(expr)
    return leaves


def look_through_views(var: relax.Expr, glue: Glue) -> relax.Expr:
    """The variable behind aliases and views of ``var``: two views of one value are one value."""
    while isinstance(var, relax.Var) and var in glue:
        if isinstance(glue[var].value, relax.TupleGetItem | relax.Tuple):
            return var
        source = glue_source(glue[var])
        assert source is not None
        var = source
    return var


def returned_values(main: relax.Function, glue: Glue) -> list[relax.Expr]:
    """The flat outputs of ``main``, aliases (not views) looked through."""

    def behind(expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, relax.Var) and expr in glue:
            value = glue[expr].value
            if not isinstance(value, relax.Var | relax.Tuple):
                break
            expr = value
        return expr

    result = behind(main.body.body)
    fields = result.fields if isinstance(result, relax.Tuple) else [result]
    return [behind(field) for field in fields]


def static_shape(ty: relax.TensorType) -> tuple[int, ...]:
    """The shape of ``ty`` as integers; ValueError when it is not static."""
    if not isinstance(ty.shape, relax.ShapeExpr):
        raise ValueError(f"shape of {ty} is unknown; DisCoFuse needs static shapes")
    try:
        return tuple(int(extent) for extent in ty.shape.values)
    except TypeError as error:
        raise ValueError(f"shape of {ty} is dynamic; DisCoFuse needs static shapes") from error


def dtype_name(ty: relax.TensorType) -> str:
    """The element type of ``ty``, such as "float32"."""
    return str(ty.dtype.dtype)


def tensor_bytes(ty: relax.Type) -> int:
    """Bytes of a tensor type, or of all fields of a tuple type; shapes must be static."""
    if isinstance(ty, relax.TupleType):
        return sum(tensor_bytes(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    return math.prod(static_shape(ty)) * int(tvm_ffi.dtype(dtype_name(ty)).itemsize)
