"""The computation of one element as a graph of hash-consed nodes.

TIR expressions of the stages of a kernel are rewritten into this graph once; inlining a producer
is then just asking for the node of its value at other indices, and two reads of the same element
are the same node, so nothing is computed twice and a chain of inlined operators cannot blow up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim

from .affine import Affine, Axis

Reader = Callable[[tirx.Buffer, tuple["Node", ...]], "Node"]
"""Gives the node of ``buffer[indices]``: a load, or the value an inlined producer stores there."""

INDEX_TYPES = ("int64", "int32")


@dataclass(frozen=True, eq=False)
class Node:
    """One value: a constant, an index, a load or an operation.

    Attributes
    ----------
    kind
        ``"const"``, ``"index"``, ``"load"``, ``"var"``, or the TIR class of an operation.
    dtype
        TVM's name of the scalar type.
    args
        Operands. A load has its non-affine offset, if any, as only operand.
    payload
        The constant; the `Affine` of an index; ``(buffer, Affine offset)`` of a load; the called
        operator.
    axes
        Axes the value depends on, through operands too.
    guarded
        True when evaluating the node outside the branch that holds it may read out of bounds.
    """

    kind: Any
    dtype: str
    args: tuple[Node, ...]
    payload: Any
    axes: frozenset[Axis]
    guarded: bool


def is_guard(node: Node) -> bool:
    """Whether `node` evaluates only the branch that its condition selects."""
    return node.kind is tvm.ir.Call and node.payload.name.endswith("if_then_else")


class ScalarGraph:
    """Interns nodes and converts TIR expressions into them."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}
        self.bounds: dict[Axis, tuple[int, int]] = {}

    def make(self, kind: Any, dtype: str, args: Sequence[Node] = (), payload: Any = None) -> Node:
        """The node for these fields, the same object for the same fields."""
        if kind == "index":
            identity: Any = payload.key
        elif kind == "load":
            identity = (payload[0], payload[1].key)
        elif kind is tvm.ir.Call:
            identity = payload.name
        else:
            identity = payload
        key = (kind, dtype, tuple(id(a) for a in args), identity)
        found = self._nodes.get(key)
        if found is not None:
            return found
        axes: frozenset[Axis] = frozenset().union(*(a.axes for a in args))
        guarded = any(a.guarded for a in args)
        if kind is tvm.ir.Call and payload.name.endswith("if_then_else"):
            guarded = args[0].guarded
        elif kind == "index":
            axes = payload.axes
        elif kind == "load":
            axes |= payload[1].axes
            guarded = guarded or not self._in_bounds(payload[0], payload[1], bool(args))
        node = Node(kind, dtype, tuple(args), payload, axes, guarded)
        self._nodes[key] = node
        return node

    def _in_bounds(self, buffer: tirx.Buffer, offset: Affine, indirect: bool) -> bool:
        """Whether a load is provably inside its buffer (an indirect one never is)."""
        if indirect:
            return False
        size = 1
        for extent in buffer.ty.shape:
            size *= int(extent)
        low, high = offset.range(self.bounds)
        return low >= 0 and high < size

    def index(self, value: Affine, dtype: str = "int64") -> Node:
        """The node of an index, a constant when it depends on no axis."""
        if not value.terms:
            return self.make("const", dtype, (), value.const)
        return self.make("index", dtype, (), value)

    def load(self, buffer: tirx.Buffer, indices: Sequence[Node]) -> Node:
        """The node of ``buffer[indices]`` read from memory (row-major)."""
        offset = Affine(0)
        base: Node | None = None
        stride = 1
        for extent, node in zip(reversed(list(buffer.ty.shape)), reversed(indices), strict=True):
            value = as_affine(node)
            if value is not None:
                offset = offset + value.scale(stride)
            else:
                wide = node if node.dtype == "int64" else self.make(prim.Cast, "int64", (node,))
                part = wide
                if stride != 1:
                    factor = self.make("const", "int64", (), stride)
                    part = self.make(prim.Mul, "int64", (wide, factor))
                base = part if base is None else self.make(prim.Add, "int64", (base, part))
            stride *= int(extent)
        args = () if base is None else (base,)
        return self.make("load", str(buffer.ty.dtype), args, (buffer, offset))

    def convert(
        self, expr: tirx.Expr, env: Mapping[tirx.Var, Node], read: Reader, memo: dict[Any, Node]
    ) -> Node:
        """The node of a TIR expression.

        Parameters
        ----------
        expr
            A scalar TIR expression.
        env
            Nodes of its free variables.
        read
            What ``buffer[indices]`` means.
        memo
            Nodes of sub-expressions seen before under the same `env`.

        Raises
        ------
        ValueError
            For an expression this graph cannot hold.
        """
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):  # equal ones of two types are equal keys
            return self.make("const", str(expr.ty.dtype), (), expr.value)
        found = memo.get(expr)
        if found is not None:
            return found
        node = self._convert(expr, env, read, memo)
        memo[expr] = node
        return node

    def _convert(
        self, expr: tirx.Expr, env: Mapping[tirx.Var, Node], read: Reader, memo: dict[Any, Node]
    ) -> Node:
        cls = type(expr)
        if cls is tirx.Var:
            if expr not in env:
                raise ValueError(f"free variable {expr} in a stage; only its own axes are allowed")
            return env[expr]
        if cls is tvm.ir.TensorLoad:
            indices = tuple(self.convert(i, env, read, memo) for i in expr.indices)
            return read(expr.source, indices)
        dtype = str(expr.ty.dtype)
        if isinstance(expr, prim.BinaryOpExpr | prim.CmpExpr) or cls in (prim.And, prim.Or):
            left = self.convert(expr.a, env, read, memo)
            right = self.convert(expr.b, env, read, memo)
            return self.binary(cls, dtype, left, right)
        if cls is prim.Select:
            parts = (expr.condition, expr.true_value, expr.false_value)
            return self.select(dtype, *(self.convert(p, env, read, memo) for p in parts))
        if cls is prim.Cast:
            return self.cast(dtype, self.convert(expr.value, env, read, memo))
        if cls in (prim.Not, prim.BitwiseNot):
            return self.make(cls, dtype, (self.convert(expr.a, env, read, memo),))
        if cls is tvm.ir.Call:
            args = [self.convert(a, env, read, memo) for a in expr.args]
            if expr.op.name.endswith("if_then_else"):
                return self.branch(dtype, expr.op, *args)
            return self.make(cls, dtype, args, expr.op)
        raise ValueError(f"no scalar form for {cls.__name__}: {expr}")

    def binary(self, cls: Any, dtype: str, left: Node, right: Node) -> Node:
        """A binary operation, folded when both sides are indices or constants."""
        if left.dtype in INDEX_TYPES:
            folded = self._fold(cls, dtype, as_affine(left), as_affine(right))
            if folded is not None:
                return folded
        if cls in (prim.And, prim.Or):
            for one, other in ((left, right), (right, left)):
                if one.kind == "const":
                    return one if bool(one.payload) == (cls is prim.Or) else other
        if cls is prim.LT and _is_zero(left) and right.kind is prim.Cast:
            (truth,) = right.args
            if truth.dtype == "bool":
                # A truth value that went through an integer. In some vector loops TVM fails on it.
                return truth
        if cls is prim.Div and right.kind == "const" and right.payload == 0:
            # TVM fails on a constant divisor of 0. The product is the same: infinite, or NaN for 0.
            infinite = self.make("const", dtype, (), math.copysign(math.inf, right.payload))
            return self.make(prim.Mul, dtype, (left, infinite))
        return self.make(cls, dtype, (left, right))

    def _fold(self, cls: Any, dtype: str, a: Affine | None, b: Affine | None) -> Node | None:
        if a is None or b is None:
            return None
        value: Affine | None = None
        if cls is prim.Add:
            value = a + b
        elif cls is prim.Sub:
            value = a + b.scale(-1)
        elif cls is prim.Mul and not (a.terms and b.terms):
            value = a.scale(b.const) if not b.terms else b.scale(a.const)
        elif cls in (prim.FloorDiv, prim.FloorMod) and not b.terms and b.const > 0:
            fold = a.floordiv if cls is prim.FloorDiv else a.floormod
            value = fold(b.const, self.bounds)
        elif cls in _COMPARE:
            low, high = (a + b.scale(-1)).range(self.bounds)
            decided = _COMPARE[cls](low, high)
            return None if decided is None else self.make("const", dtype, (), decided)
        return None if value is None else self.index(value, dtype)

    def cast(self, dtype: str, value: Node) -> Node:
        """A conversion; between index types it changes only the name of the type."""
        if value.dtype == dtype:
            return value
        affine = as_affine(value) if value.dtype in INDEX_TYPES else None
        if affine is not None and dtype in INDEX_TYPES:
            return self.index(affine, dtype)
        return self.make(prim.Cast, dtype, (value,))

    def select(self, dtype: str, condition: Node, yes: Node, no: Node) -> Node:
        """``condition ? yes : no``, both of which are evaluated unless that were unsafe."""
        if condition.kind == "const":
            return yes if condition.payload else no
        if yes.guarded or no.guarded:
            return self.branch(dtype, tvm.ir.Op.get("prim.if_then_else"), condition, yes, no)
        return self.make(prim.Select, dtype, (condition, yes, no))

    def branch(self, dtype: str, op: tvm.ir.Op, condition: Node, yes: Node, no: Node) -> Node:
        """``condition ? yes : no`` that evaluates one side only, a select where both are safe."""
        if condition.kind == "const":
            return yes if condition.payload else no
        if not (yes.guarded or no.guarded):
            return self.make(prim.Select, dtype, (condition, yes, no))
        return self.make(tvm.ir.Call, dtype, (condition, yes, no), op)


def _is_zero(node: Node) -> bool:
    return node.kind == "const" and bool(node.payload == 0)


def as_affine(node: Node) -> Affine | None:
    """The index expression of an index or integer constant node, else None."""
    if node.kind == "index":
        value: Affine = node.payload
        return value
    if node.kind == "const" and node.dtype in INDEX_TYPES:
        return Affine(int(node.payload))
    return None


_COMPARE: dict[Any, Callable[[int, int], bool | None]] = {
    prim.LT: lambda low, high: True if high < 0 else False if low >= 0 else None,
    prim.LE: lambda low, high: True if high <= 0 else False if low > 0 else None,
    prim.GT: lambda low, high: True if low > 0 else False if high <= 0 else None,
    prim.GE: lambda low, high: True if low >= 0 else False if high < 0 else None,
    prim.EQ: lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    prim.NE: lambda low, high: False if low == high == 0 else True if low > 0 or high < 0 else None,
}
