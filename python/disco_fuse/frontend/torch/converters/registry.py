"""What a converter is, and how it is found by the name of its ATen operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from tvm import relax

from disco_fuse.frontend.random import RandomSource

Expr = Any
Converter = Callable[..., Any]

TVM_DTYPES: dict[torch.dtype, str] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


class Refusal(Exception):  # noqa: N818 - not an error of ours: the importer adds where it happened
    """Raised by a converter for arguments it does not cover; the message says which."""


@dataclass(frozen=True)
class Node:
    """What a converter sees of the operator call it translates, besides the arguments.

    Parameters
    ----------
    fx_node : torch.fx.Node
        The call; its ``meta["val"]`` is the fake tensor (or tuple) that torch computed.
    emit : callable
        Binds an expression to a new variable of the dataflow block and returns the variable.
    source : RandomSource or None
        Where random numbers come from, in a step that draws some.
    """

    fx_node: fx.Node
    emit: Callable[[Expr], Expr]
    source: RandomSource | None = None

    @property
    def random(self) -> RandomSource:
        """The source, for operators that draw: a step with one of them has it."""
        assert self.source is not None, self.fx_node.format_node()
        return self.source

    @property
    def value(self) -> Any:
        """The fake tensor, or tuple of fake tensors, that torch computed for this node."""
        return self.fx_node.meta["val"]

    @property
    def shape(self) -> list[int]:
        """Shape of the (single) result."""
        return [int(extent) for extent in self.value.shape]

    @property
    def dtype(self) -> str:
        """TVM name of the dtype of the (single) result."""
        return TVM_DTYPES[self.value.dtype]

    def torch_argument(self, index: int) -> Any:
        """Argument ``index`` as torch saw it: a fake tensor, or the Python value itself."""
        argument = self.fx_node.args[index]
        return argument.meta["val"] if isinstance(argument, fx.Node) else argument


@dataclass(frozen=True)
class Entry:
    """A registered converter.

    ``broadcasts`` says that the operator follows the broadcasting rules elementwise, so that a
    constant operand may be passed with its uniform dimensions collapsed to 1.
    """

    convert: Converter
    broadcasts: bool


CONVERTERS: dict[str, Entry] = {}


def converts(*operators: str, broadcasts: bool = False) -> Callable[[Converter], Converter]:
    """Register a function ``(node, *arguments, **keywords)`` as converter of ATen operators.

    Tensor arguments arrive as Relax expressions, everything else as torch recorded it.
    """

    def register(convert: Converter) -> Converter:
        for operator in operators:
            assert operator not in CONVERTERS, operator
            CONVERTERS[operator] = Entry(convert, broadcasts)
        return convert

    return register


def shape_of(tensor: Expr) -> list[int]:
    """Static shape of a Relax tensor."""
    return [int(extent) for extent in tensor.ty.shape]


def dtype_of(tensor: Expr) -> str:
    """Dtype of a Relax tensor, as TVM spells it."""
    return str(tensor.ty.dtype.dtype)


def cast(node: Node, value: Any, dtype: str) -> Expr:
    """``value`` (a Relax tensor or a Python number) with the given dtype."""
    if isinstance(value, bool | int | float):
        return relax.const(value, dtype)
    return value if dtype_of(value) == dtype else node.emit(relax.op.astype(value, dtype))


def accumulator_of(dtype: str) -> str:
    """The dtype in which torch sums values of this one: float32 for the half precisions."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def without_bool(node: Node, tensor: Expr) -> Expr:
    """The tensor, as int8 if it is bool: TVM neither compares nor orders booleans."""
    return cast(node, tensor, "int8") if dtype_of(tensor) == "bool" else tensor


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative torch dimension as a non-negative axis."""
    return axis + rank if axis < 0 else axis
