"""From the node graph back to TIR statements.

A `Scope` is one loop body under construction.  Scopes are nested like the loops; a value is
computed in the outermost scope that has all the axes it depends on, so what does not change in
the inner loop is hoisted, and it gets a name when it is used more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tvm
from tvm import tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from ..stages import num_elements
from .affine import Affine, Axis, extent_of, merged_coefficient
from .fast_math import fast_call
from .loops import Lanes, immediate, int_imm, loop, on_stack
from .scalar import Node, is_guard


class FlatBuffers:
    """One-dimensional stand-ins for N-dimensional buffers, so that an offset is an index.

    A parameter gets a view of its memory. An intermediate is allocated flat: of a view TVM's
    StorageRewrite would not know that it uses the allocation, and give its memory away.

    Parameters
    ----------
    intermediates
        Buffers that the function allocates.
    """

    def __init__(self, intermediates: Iterable[tirx.Buffer]) -> None:
        self._intermediates = frozenset(intermediates)
        self._views: dict[tirx.Buffer, tirx.Buffer] = {}
        self.declarations: list[tirx.Stmt] = []

    def is_intermediate(self, buffer: tirx.Buffer) -> bool:
        """Whether the function allocates `buffer`."""
        return buffer in self._intermediates

    def view(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The flat form of `buffer`, declared at the top of the function."""
        if buffer not in self._views:
            size = int_imm(num_elements(buffer))
            flat = tirx.decl_buffer(
                (size,),
                buffer.ty.dtype,
                name=f"{buffer.name}_flat",
                elem_offset=buffer.ty.elem_offset,
            )
            if self.is_intermediate(buffer):
                self.declarations.append(tirx.AllocBuffer(flat))
            else:
                self.declarations.append(tirx.DeclBuffer(flat, data=buffer.data))
            self._views[buffer] = flat
        return self._views[buffer]


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

    Attributes
    ----------
    fast_functions
        Whether float32 exp, tanh and erf become polynomials (`fast_math`).
    """

    fast_functions = True

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
        self._reciprocals: dict[Node, tirx.Expr] = {}
        if parent is None:
            assert buffers is not None
            assert uses is not None
            self.axes = frozenset(self.group)
            self.buffers, self.uses = buffers, uses
        else:
            self.axes = parent.axes | frozenset(self.group)
            self.buffers, self.uses = parent.buffers, parent.uses

    def bind(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """Name a value read from memory in this scope."""
        if str(value.ty.dtype) == "bfloat16":
            # Where there is no bfloat16 TVM computes in float32 instead, and then refuses bound
            # variables whose values changed their type.
            return self._local(name, value)
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
        if str(value.ty.dtype) == "bool":  # TVM cannot keep a vector of bool in a variable
            kept = self.keep(name, prim.Cast("int32", value))
            return prim.NE(kept, tirx.IntImm("int32", 0))
        return self._local(name, value)

    def _local(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """The value from a local buffer that it is stored in."""
        width = self.lanes.width if self.lanes is not None else 1
        index = self.lanes.index if self.lanes is not None else int_imm(0)
        before = self.lanes.allocations if self.lanes is not None else self.statements
        buffer = tirx.decl_buffer((int_imm(width),), value.ty, name=name, scope="local")
        before.append(on_stack(buffer))
        self.statements.append(tirx.BufferStore(buffer, value, [index]))
        return tirx.BufferLoad(buffer, [index])

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

    def index(self, load: Node, inline: bool = False) -> tirx.Expr:
        """Where a load reads the flat view of its buffer; for `inline` see `_build`."""
        index = self.offset(load.payload[1])
        return self._operand(load.args[0], inline) + index if load.args else index

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
        home = self._home(node)
        if node.kind == "index":
            return home._index(node)
        expr = home._build(node)
        if home is not self or self.uses.get(node, 0) > 1:
            expr = home.bind("v", expr) if node.kind == "load" else home.keep("v", expr)
            home.values[node] = expr
        return expr

    def _home(self, node: Node) -> Scope:
        """The outermost scope that has all axes of `node`."""
        home = self
        while home.parent is not None and node.axes <= home.parent.axes:
            home = home.parent
        return home

    def _reciprocal(self, divisor: Node) -> tirx.Expr:
        """``1 / divisor``, computed once in this scope."""
        if divisor not in self._reciprocals:
            quotient = prim.Div(immediate(divisor.dtype, 1.0), self.value(divisor))
            self._reciprocals[divisor] = self.keep("inverse", quotient)
        return self._reciprocals[divisor]

    def _index(self, node: Node) -> tirx.Expr:
        expr = self.offset(node.payload)
        return expr if node.dtype == "int64" else prim.Cast(node.dtype, expr)

    def _build(self, node: Node, inline: bool = False) -> tirx.Expr:
        """The expression of `node` with operands from this scope.

        With `inline` nothing is hoisted or named: the operands belong to one side of a branch.
        """
        if node.kind == "load":
            return tirx.BufferLoad(self.buffers.view(node.payload[0]), [self.index(node, inline)])
        if node.kind == "index":
            return self._index(node)
        if is_guard(node):
            condition = self._operand(node.args[0], inline)
            yes, no = (self._operand(a, True) for a in node.args[1:])
            return tvm.ir.Call(node.payload, [condition, yes, no], ret_ty=node.dtype)
        if node.kind is prim.Div and node.dtype == "float32" and not inline:
            # A vector division takes ten times a product: divide once by what stays the same.
            # One more rounding; a divisor below 3e-39 would have no finite inverse.
            home = self._home(node.args[1])
            if home is not self and node.args[1].kind != "const":
                return prim.Mul(self.value(node.args[0]), home._reciprocal(node.args[1]))
        args = [self._operand(a, inline) for a in node.args]
        if node.kind is tvm.ir.Call:
            name = node.payload.name.rpartition(".")[2]
            polynomial = self.fast_functions and not inline
            fast = fast_call(name, node.dtype, args, self.keep) if polynomial else None
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


def nested(
    around: Scope,
    groups: Sequence[tuple[Axis, ...]],
    body: Callable[[Scope], Sequence[tirx.Stmt]],
) -> list[tirx.Stmt]:
    """Serial loops over groups of axes, outermost first, and ``body(innermost scope)`` in them."""
    if not groups:
        return list(body(around))

    def step(position: tirx.Expr) -> Sequence[tirx.Stmt]:
        inside = Scope(around, groups[0], position)
        statements = nested(inside, groups[1:], body)
        return [*inside.statements, *statements]

    return [loop(extent_of(groups[0]), step, ForKind.SERIAL)]


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
