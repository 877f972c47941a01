"""From the node graph back to TIR statements.

A `Scope` is one loop body under construction.  Scopes are nested like the loops; a value is
computed in the outermost scope that has all the axes it depends on, so what does not change in
the inner loop is hoisted, and it gets a name when it is used more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from .affine import Affine, Axis, merged_coefficient
from .fast_math import fast_call
from .scalar import Node, is_guard
from ..stages import num_elements

def int_imm(value: int) -> tirx.IntImm:
    """A 64-bit index constant."""
    return tirx.IntImm("int64", value)


def immediate(dtype: str, value: Any) -> tirx.Expr:
    """A constant of a scalar type."""
    if dtype.startswith(("float", "bfloat")):
        return tirx.FloatImm(dtype, float(value))
    return tirx.IntImm(dtype, int(value))


def loop(extent: int, body: Callable[[tirx.Expr], Sequence[tirx.Stmt]], kind: int) -> tirx.Stmt:
    """``for i in range(extent): body(i)``."""
    var = tirx.Var("i", "int64")
    return tirx.For(var, int_imm(0), int_imm(extent), kind, sequence(body(var)))


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement out of several."""
    assert statements, "an empty loop body"
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


class FlatBuffers:
    """One-dimensional views of N-dimensional buffers, so that an offset is an index."""

    def __init__(self) -> None:
        self._views: dict[tirx.Buffer, tirx.Buffer] = {}
        self.declarations: list[tirx.Stmt] = []

    def view(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The flat view of `buffer`, declared at the top of the function."""
        if buffer not in self._views:
            size = int_imm(num_elements(buffer))
            flat = tirx.decl_buffer((size,), buffer.ty.dtype, name=f"{buffer.name}_flat")
            self.declarations.append(tirx.DeclBuffer(flat, data=buffer.data))
            self._views[buffer] = flat
        return self._views[buffer]


class Lanes:
    """The vector loop that a scope is the body of.

    Attributes
    ----------
    width
        Elements of the vector, 1 outside a vector loop.
    index
        The lane, ``0 .. width - 1``.
    allocations
        Statements that must come before the vector loop.
    """

    def __init__(self, width: int, index: tirx.Expr) -> None:
        self.width = width
        self.index = index
        self.allocations: list[tirx.Stmt] = []


class Scope:
    """A loop body being written.

    Parameters
    ----------
    parent
        The enclosing scope, None for the body of a nest.
    group
        Axes that this loop runs over, outermost first, fused into one loop.
    position
        Value of the fused loop variable.
    lanes
        The vector loop this scope is the body of, None for any other loop.
    """

    def __init__(
        self,
        parent: Scope | None,
        group: Sequence[Axis] = (),
        position: tirx.Expr | None = None,
        lanes: Lanes | None = None,
        *,
        buffers: FlatBuffers | None = None,
        uses: dict[Node, int] | None = None,
    ) -> None:
        self.parent = parent
        self.group = tuple(group)
        self.position = position
        self.lanes = lanes
        self.statements: list[tirx.Stmt] = []
        self.values: dict[Node, tirx.Expr] = {}
        if parent is None:
            assert buffers is not None and uses is not None
            self.axes = frozenset(self.group)
            self.buffers, self.uses = buffers, uses
        else:
            self.axes = parent.axes | frozenset(self.group)
            self.buffers, self.uses = parent.buffers, parent.uses

    def bind(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """Name a value read from memory in this scope."""
        var = tirx.Var(name, value.ty)
        self.statements.append(tirx.Bind(var, value))
        return var

    def keep(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """Name a computed value in this scope.

        It is kept in a local buffer, which LLVM turns into a register: TVM's simplifier replaces
        a bound variable by its value wherever it is used, and a chain of them explodes.
        """
        if isinstance(value, tirx.Var | tvm.ir.TensorLoad):
            return value
        width = self.lanes.width if self.lanes is not None else 1
        index = self.lanes.index if self.lanes is not None else int_imm(0)
        before = self.lanes.allocations if self.lanes is not None else self.statements
        # TVM keeps bools as int8, but loses the lanes on the way when the buffer is a local one.
        is_bool = str(value.ty.dtype) == "bool"
        if is_bool:
            value = prim.Cast("int8", value)
        buffer = tirx.decl_buffer((int_imm(width),), value.ty, name=name, scope="local")
        before.append(tirx.AllocBuffer(buffer))
        self.statements.append(tirx.BufferStore(buffer, value, [index]))
        kept = tirx.BufferLoad(buffer, [index])
        return prim.NE(kept, tirx.IntImm("int8", 0)) if is_bool else kept

    def offset(self, value: Affine) -> tirx.Expr:
        """The TIR expression of an index."""
        total: tirx.Expr | None = None
        scope: Scope | None = self
        seen = 0
        while scope is not None:
            if scope.group and scope.position is not None:
                part = _group_offset(value, scope.group, scope.position)
                seen += sum(1 for axis in scope.group if value.coefficient(axis) != 0)
                if part is not None:
                    total = part if total is None else part + total
            scope = scope.parent
        assert seen == len(value.terms), "an axis of the index is not a loop of this scope"
        if total is None:
            return int_imm(value.const)
        return total + int_imm(value.const) if value.const else total

    def known(self, node: Node) -> tirx.Expr | None:
        """The value of `node` if this scope or one around it has computed it."""
        scope: Scope | None = self
        while scope is not None:
            if node in scope.values:
                return scope.values[node]
            scope = scope.parent
        return None

    def value(self, node: Node) -> tirx.Expr:
        """The TIR expression of `node`, computed in the outermost scope that can."""
        if node.kind == "const":
            return immediate(node.dtype, node.payload)
        found = self.known(node)
        if found is not None:
            return found
        home = self
        while home.parent is not None and node.axes <= home.parent.axes:
            home = home.parent
        if node.kind == "index":
            return home._index(node)
        expr = home._build(node)
        if home is not self or self.uses.get(node, 0) > 1:
            expr = home.bind("v", expr) if node.kind == "load" else home.keep("v", expr)
            home.values[node] = expr
        return expr

    def _index(self, node: Node) -> tirx.Expr:
        expr = self.offset(node.payload)
        return expr if node.dtype == "int64" else prim.Cast(node.dtype, expr)

    def _build(self, node: Node, inline: bool = False) -> tirx.Expr:
        """The expression of `node` with operands from this scope.

        With `inline` nothing is hoisted or named: the operands belong to one side of a branch.
        """
        if node.kind == "load":
            buffer, offset = node.payload
            index = self.offset(offset)
            if node.args:
                index = self._operand(node.args[0], inline) + index
            return tirx.BufferLoad(self.buffers.view(buffer), [index])
        if node.kind == "index":
            return self._index(node)
        if is_guard(node):
            condition = self._operand(node.args[0], inline)
            yes, no = (self._operand(a, True) for a in node.args[1:])
            return tvm.ir.Call(node.payload, [condition, yes, no], ret_ty=node.dtype)
        args = [self._operand(a, inline) for a in node.args]
        if node.kind is tvm.ir.Call:
            name = node.payload.name.rpartition(".")[2]
            fast = None if inline else fast_call(name, node.dtype, args, self.keep)
            if fast is not None:
                return fast
            return tvm.ir.Call(node.payload, args, ret_ty=node.dtype)
        if node.kind is prim.Cast:
            return prim.Cast(node.dtype, args[0])
        return node.kind(*args)

    def _operand(self, node: Node, inline: bool) -> tirx.Expr:
        if not inline:
            return self.value(node)
        if node.kind == "const":
            return immediate(node.dtype, node.payload)
        found = self.known(node)
        return found if found is not None else self._build(node, inline=True)


def _group_offset(value: Affine, group: Sequence[Axis], position: tirx.Expr) -> tirx.Expr | None:
    """The part of an index that comes from the axes of one fused loop."""
    merged = merged_coefficient(value, group)
    if merged is not None:
        if merged == 0:
            return None
        return position if merged == 1 else position * int_imm(merged)
    total: tirx.Expr | None = None
    stride = 1
    for axis in reversed(group):
        factor = value.coefficient(axis)
        if factor != 0 and axis.extent > 1:
            part = tirx.floordiv(position, int_imm(stride)) if stride > 1 else position
            if axis is not group[0]:
                part = tirx.floormod(part, int_imm(axis.extent))
            part = part * int_imm(factor)
            total = part if total is None else total + part
        stride *= axis.extent
    return total


def count_uses(roots: Iterable[Node]) -> dict[Node, int]:
    """How many operands and roots refer to each node."""
    uses: dict[Node, int] = {}
    todo = list(roots)
    while todo:
        node = todo.pop()
        uses[node] = uses.get(node, 0) + 1
        if uses[node] == 1:
            todo.extend(node.args)
    return uses


def vector_pieces(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """Cut ``range(extent)`` into ``(start, count, width)``: `count` vectors of `width` elements.

    Full vectors first, then halves down to four elements, then single elements.
    """
    pieces: list[tuple[int, int, int]] = []
    start, width = 0, lanes
    while start < extent:
        if width < 4 and width != 1:
            width = 1
        count = (extent - start) // width
        if count > 0:
            pieces.append((start, count, width))
            start += count * width
        width //= 2
    return pieces


VectorBody = Callable[[tirx.Expr, Lanes], Sequence[tirx.Stmt]]


def vector(first: tirx.Expr | None, width: int, body: VectorBody) -> list[tirx.Stmt]:
    """One vector of `width` elements from `first` (None: 0): ``body(position, lanes)``."""
    if width == 1:
        lanes = Lanes(1, int_imm(0))
        statements = body(int_imm(0) if first is None else first, lanes)
        return [*lanes.allocations, *statements]
    lane = tirx.Var("lane", "int64")
    lanes = Lanes(width, lane)
    inner = sequence(body(lane if first is None else first + lane, lanes))
    vectorized = tirx.For(lane, int_imm(0), int_imm(width), ForKind.VECTORIZED, inner)
    return [*lanes.allocations, vectorized]


def vectors(start: int, count: int, width: int, body: VectorBody) -> list[tirx.Stmt]:
    """``count`` vectors of ``width`` elements from `start`."""
    if count == 1:
        return vector(int_imm(start) if start else None, width, body)

    def step(base: tirx.Expr) -> list[tirx.Stmt]:
        first = base * int_imm(width)
        return vector(first + int_imm(start) if start else first, width, body)

    return [loop(count, step, ForKind.SERIAL)]
