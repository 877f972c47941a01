"""The Relax ops that only rearrange a tensor, as plain values that act on strided views."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import tvm
from tvm import relax

from disco_fuse.kernels.library.calls import static_shape
from disco_fuse.kernels.library.views import (
    StridedView,
    broadcast_to,
    narrow,
    permute,
    reshape,
)

_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


class Slice(NamedTuple):
    """Elements ``begin, begin + step, ...`` of dimension ``dim``."""

    dim: int
    begin: int
    step: int


@dataclass(frozen=True, kw_only=True)
class LayoutOp:
    """One layout op.

    Attributes
    ----------
    kind : str
        What it does.
    source : relax.Expr
        The tensor that it reads.
    source_shape, shape : tuple of int
        Shape before and after.
    order : tuple of int
        For "permute": dimension i of the result is dimension order[i] of the source.
    slices : tuple of Slice
        For "slice".
    through : tuple of relax.Var
        Variables between `source` and the result: that of a split's tuple.
    """

    kind: Literal["reshape", "permute", "broadcast", "slice"]
    source: Any
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    slices: tuple[Slice, ...] = ()
    through: tuple[Any, ...] = ()

    def apply(self, view: StridedView) -> StridedView | None:
        """The result as a view, given the source as a view; None where that needs a copy."""
        if self.kind == "permute":
            return permute(view, self.order)
        if self.kind == "broadcast":
            return broadcast_to(view, self.shape)
        if self.kind == "reshape":
            return reshape(view, self.shape)
        result: StridedView | None = view
        for dim, begin, step in self.slices:
            if result is not None:
                result = narrow(result, dim, begin, self.shape[dim], step)
        return result

    def invert(self, view: StridedView) -> StridedView | None:
        """The source as a view, given the result as a view.

        None where the op is no bijection or where that needs a copy.
        """
        if self.kind == "permute":
            return permute(view, sorted(range(len(self.order)), key=self.order.__getitem__))
        if self.kind == "reshape":
            return reshape(view, self.source_shape)
        return None


def parse_layout_op(expr: Any, definitions: Mapping[Any, Any]) -> LayoutOp | None:
    """Read a bound expression as a layout op, or None if it is none or not of static shape.

    Parameters
    ----------
    expr : relax.Expr
        The value of a binding.
    definitions : mapping of relax.Var to relax.Expr
        Values of earlier bindings: a part of a split is two of them.
    """
    if isinstance(expr, relax.TupleGetItem):
        return _parse_split_part(expr, definitions)
    if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
        source = expr.args[0] if len(expr.args) else None
    elif isinstance(expr, relax.Var):
        source = expr
    else:
        return None
    shape = static_shape(expr.ty)
    source_shape = None if source is None else static_shape(source.ty)
    if shape is None or source_shape is None:
        return None
    plain = LayoutOp(kind="reshape", source=source, source_shape=source_shape, shape=shape)
    name = "relax.reshape" if source is expr else expr.op.name
    if name in _RESHAPES:
        return plain
    if name == "relax.broadcast_to":
        return replace(plain, kind="broadcast")
    if name == "relax.permute_dims":
        axes = expr.attrs.axes
        order = reversed(range(len(shape))) if axes is None else (int(axis) for axis in axes)
        return replace(plain, kind="permute", order=tuple(axis % len(shape) for axis in order))
    if name == "relax.strided_slice":
        slices = _parse_slices(expr, source_shape)
        return None if slices is None else replace(plain, kind="slice", slices=slices)
    return None


def _parse_slices(call: Any, source_shape: tuple[int, ...]) -> tuple[Slice, ...] | None:
    """Slices of a strided_slice with constant bounds and positive steps."""
    if math.prod(static_shape(call.ty) or (0,)) == 0:
        return None
    columns = []
    for argument in (call.args[1], call.args[2], call.args[4] if len(call.args) > 4 else None):
        values = None if argument is None else _constants(argument)
        if values is None and argument is not None:
            return None
        columns.append(values)
    dims, begins, steps = columns
    if dims is None or begins is None:
        return None
    slices = []
    for dim, begin, step in zip(dims, begins, steps or [1] * len(dims), strict=True):
        if step < 1:
            return None
        dim %= len(source_shape)
        size = source_shape[dim]
        slices.append(Slice(dim, max(begin + size, 0) if begin < 0 else begin, step))
    return tuple(slices)


def _constants(argument: Any) -> list[int] | None:
    fields = list(argument.fields) if isinstance(argument, relax.Tuple) else []
    if not fields or not all(isinstance(value, tvm.tirx.IntImm) for value in fields):
        return None
    return [int(value) for value in fields]


def _parse_split_part(part: Any, definitions: Mapping[Any, Any]) -> LayoutOp | None:
    split = definitions.get(part.tuple_value) if isinstance(part.tuple_value, relax.Var) else None
    if not isinstance(split, tvm.ir.Call) or split.op != tvm.ir.Op.get("relax.split"):
        return None
    source_shape = static_shape(split.args[0].ty)
    shapes = [static_shape(field) for field in split.ty.fields]
    if source_shape is None or any(shape is None or 0 in shape for shape in shapes):
        return None
    dim = int(split.attrs.axis) % len(source_shape)
    begin = sum(shape[dim] for shape in shapes[: part.index] if shape is not None)
    shape = shapes[part.index]
    assert shape is not None
    return LayoutOp(
        kind="slice",
        source=split.args[0],
        source_shape=source_shape,
        shape=shape,
        slices=(Slice(dim, begin, 1),),
        through=(part.tuple_value,),
    )
