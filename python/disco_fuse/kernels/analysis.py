"""What one operator costs and how it may share loops, read from its PrimFunc.

The roofline cost model and the CPU schedules use the same numbers: floating point operations,
bytes, and `rows`, the number of independent rows of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import prim

from .stages import NUM_NESTS, Stage, element_bytes, num_elements, parse, shape_of

TRANSCENDENTAL_FLOPS = 16
DIVISION_FLOPS = 4
CHEAP_FLOPS_PER_ELEMENT = 4
SMALL_ROW = 4096  # elements: a vector this short is one row, a longer one is no row at all

_DIVISIONS = frozenset({"sqrt", "rsqrt", "fmod", "floor_div"})
_FREE = frozenset({"if_then_else", "likely", "reinterpret"})
_SIMPLE = frozenset(
    {"fabs", "floor", "ceil", "round", "trunc", "isnan"}
    | {"bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"}
)


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """Cost facts of one operator.

    Attributes
    ----------
    flops
        Floating point operations; a transcendental function counts 16, a division or square
        root 4, everything else 1.
    num_elements
        Elements of all outputs.
    bytes_read, bytes_written
        Bytes of the inputs that are read, once each (a slice reads what it keeps, not the whole
        input), and sizes of the outputs.
    rows
        Number of independent rows: row i of the outputs depends only on row i of each input
        that is not broadcast. 0 when there are none.
    """

    flops: float
    num_elements: int
    bytes_read: int
    bytes_written: int
    rows: int


def analyze(func: tirx.PrimFunc) -> KernelFacts:
    """Facts of one legalised operator.

    Parameters
    ----------
    func
        The operator before scheduling: its parameters are buffers of constant shape.

    Returns
    -------
    KernelFacts

    Raises
    ------
    ValueError
        When a parameter is not a buffer of constant shape.
    """
    stages = parse(func)
    read = {b for stage in stages.stages for b in stage.reads}
    written = {b for stage in stages.stages for b in stage.writes}
    outputs = [b for b in stages.parameters if b in written]
    inputs = [b for b in stages.parameters if b in read and b not in written]
    return KernelFacts(
        flops=float(sum(stage_flops(stage) for stage in stages.stages)),
        num_elements=sum(num_elements(b) for b in outputs),
        bytes_read=sum(_bytes_read(b, stages.stages) for b in inputs),
        bytes_written=sum(num_bytes(b) for b in outputs),
        rows=rows(stages.stages),
    )


def num_bytes(buffer: tirx.Buffer) -> int:
    """Size of a buffer in bytes; a bool takes one."""
    return num_elements(buffer) * element_bytes(buffer)


def _bytes_read(buffer: tirx.Buffer, stages: Sequence[Stage]) -> int:
    """No more than the buffer holds, and no more than is loaded from it."""
    num_loads = 0
    for stage in stages:
        if buffer not in stage.reads:
            continue
        if stage.is_opaque:
            return num_bytes(buffer)
        num_loads += _loads_of(buffer, stage.value) * _trips(stage)
    return min(num_bytes(buffer), num_loads * element_bytes(buffer))


def _loads_of(buffer: tirx.Buffer, value: tirx.Expr | None) -> int:
    num_loads = 0

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal num_loads
        num_loads += node.source.same_as(buffer)

    tvm_ffi.structural_walk(tirx.Evaluate(value), [(tvm.ir.TensorLoad, load)])
    return num_loads


def _trips(stage: Stage) -> int:
    return math.prod(extent for _, extent in (*stage.axes, *stage.reduce_axes))


def stage_flops(stage: Stage) -> int:
    """Operations of one stage (see `KernelFacts.flops`)."""
    if stage.is_opaque or stage.value is None:
        return _opaque_flops(stage.statement)
    return (expression_flops(stage.value) + (stage.combine is not None)) * _trips(stage)


def expression_flops(expr: tirx.Expr) -> int:
    """Operations to evaluate an expression once; index arithmetic is free.

    Equal subexpressions count once, as the schedules compute them once.
    """
    costs: dict[tuple[Any, ...], int] = {}

    def visit(node: tirx.Expr) -> tuple[Any, ...]:
        own, children, identity = _operation(node)
        key = (type(node), identity, *(id_of.setdefault(visit(c), len(id_of)) for c in children))
        costs[key] = own
        return key

    id_of: dict[tuple[Any, ...], int] = {}
    visit(expr)
    return sum(costs.values())


def _operation(expr: tirx.Expr) -> tuple[int, tuple[tirx.Expr, ...], Any]:
    """Operations of one node, its operands, and what else tells it from another node."""
    dtype = str(expr.ty.dtype) if hasattr(expr.ty, "dtype") else ""
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return 0, (), (expr.value, dtype)
    if isinstance(expr, tvm.ir.TensorLoad):
        return 0, (), (expr.source, str(expr.indices))
    if isinstance(expr, prim.Div | prim.FloorDiv | prim.Mod | prim.FloorMod):
        return DIVISION_FLOPS, (expr.a, expr.b), None
    if isinstance(expr, prim.Not | prim.BitwiseNot):
        return 1, (expr.a,), None
    if isinstance(expr, prim.BinaryOpExpr | prim.CmpExpr | prim.LogicalExpr):
        return 1, (expr.a, expr.b), None
    if isinstance(expr, prim.Select):
        return 1, (expr.condition, expr.true_value, expr.false_value), None
    if isinstance(expr, prim.Cast):
        return 1, (expr.value,), dtype
    if isinstance(expr, tvm.ir.Call):
        name = expr.op.name.rpartition(".")[2]
        own = TRANSCENDENTAL_FLOPS
        if name in _DIVISIONS:
            own = DIVISION_FLOPS
        elif name in _FREE or name in _SIMPLE:
            own = 1
        return own, tuple(expr.args), name
    return (0 if isinstance(expr, tirx.Var) else 1), (), expr


def _opaque_flops(statement: tirx.Stmt) -> int:
    """Operations of a statement: stores times the loops around them."""
    total = 0

    def visit(node: object, trips: int) -> None:
        nonlocal total
        if isinstance(node, tirx.For):
            extent = int(node.extent) if isinstance(node.extent, tirx.IntImm) else 1
            visit(node.body, trips * extent)
        elif isinstance(node, tirx.SeqStmt):
            for child in node.seq:
                visit(child, trips)
        elif isinstance(node, tirx.IfThenElse):
            visit(node.then_case, trips)
            if node.else_case is not None:
                visit(node.else_case, trips)
        elif isinstance(node, tirx.AttrStmt):
            visit(node.body, trips)
        elif isinstance(node, s_tir.SBlockRealize):
            visit(node.block.body, trips)
        elif isinstance(node, (tirx.BufferStore, tirx.Bind)):
            total += trips * expression_flops(node.value)

    visit(statement, 1)
    return total


def rows(stages: Sequence[Stage]) -> int:
    """Independent rows of an operator made of these stages (see `KernelFacts.rows`).

    An elementwise stage with output ``[d0 .. dn]`` has ``d0 * .. * dn-1`` rows; a vector has one
    row when it is short and none when it is long; a reduction over exactly the last axis has one
    row per result. All stages must agree, where an elementwise stage with one element per row
    (the division of a mean) agrees with any reduction. Everything else has none; so has a slice,
    even if it starts at 0: its row is shorter than the one it reads, and no loop runs over both.
    """
    per_row: set[int] = set()
    per_element: set[int] = set()
    for stage in stages:
        if stage.is_opaque:
            return 0
        assert stage.output is not None
        if stage.combine is not None:
            if not _reduces_last_axis(stage):
                return 0
            per_row.add(num_elements(stage.output))
            continue
        if not is_elementwise(stage) or _reads_part(stage):
            return 0
        shape = shape_of(stage.output)
        count = num_elements(stage.output)
        length = shape[-1] if shape else 1
        if count and len(shape) <= 1 and length > SMALL_ROW:
            return 0
        per_element.add(count)
        per_row.add(count // length if count else 0)
    if len(per_row) == 1:
        return per_row.pop()
    reduced = {num_elements(s.output) for s in stages if s.combine is not None}
    if len(reduced) != 1:
        return 0
    (result,) = reduced
    fits = all(
        s.combine is not None or result in (num_elements(s.output), _leading(s)) for s in stages
    )
    return result if fits else 0


def _reads_part(stage: Stage) -> bool:
    """Whether an elementwise stage reads only the first elements along some axis of an input."""
    extents = dict(stage.axes)
    found = False

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal found
        for index, extent in zip(node.indices, shape_of(node.source), strict=True):
            if isinstance(index, tirx.Var) and extents.get(index, extent) < extent:
                found = True

    tvm_ffi.structural_walk(tirx.Evaluate(stage.value), [(tvm.ir.TensorLoad, load)])
    return found


def _leading(stage: Stage) -> int:
    shape = shape_of(stage.output)
    return num_elements(stage.output) // shape[-1] if shape and shape[-1] else 0


def _reduces_last_axis(stage: Stage) -> bool:
    """One reduce axis, which is the last index of some input, after the spatial axes in order."""
    if len(stage.reduce_axes) != 1:
        return False
    order = [var for var, extent in stage.axes if extent > 1]
    order.append(stage.reduce_axes[0][0])
    return _reads_in_order(stage, order)


def is_elementwise(stage: Stage) -> bool:
    """Whether every input is read at the output's own index or a broadcast of it."""
    if stage.is_opaque or stage.combine is not None:
        return False
    return _reads_in_order(stage, [var for var, extent in stage.axes if extent > 1])


def _reads_in_order(stage: Stage, order: Sequence[tirx.Var]) -> bool:
    """Whether each load's indices are constants and distinct axes in the given order."""
    rank = {var: position for position, var in enumerate(order)}
    fine = True

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal fine
        last = -1
        for index, extent in zip(node.indices, shape_of(node.source), strict=True):
            if extent == 1:
                continue
            position = rank.get(index, -1) if isinstance(index, tirx.Var) else -1
            if position <= last:
                fine = False
            last = position

    tvm_ffi.structural_walk(tirx.Evaluate(stage.value), [(tvm.ir.TensorLoad, load)])
    return fine


def num_nests(func: tirx.PrimFunc) -> int:
    """Number of outer loop nests of a scheduled function.

    Parameters
    ----------
    func
        A PrimFunc; one that was not scheduled has a nest per block.

    Returns
    -------
    int
    """
    if func.attrs and NUM_NESTS in func.attrs:
        return int(func.attrs[NUM_NESTS])
    return len(parse(func).stages)
