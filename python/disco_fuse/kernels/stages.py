"""Reading a PrimFunc made of schedulable blocks as a list of stages.

A legalised operator, and a fusion group after `FuseTIR`, is a sequence of perfect loop nests
around one block each::

    for i, k in grid(4, 8):            Stage(output=m, axes=[i], reduce_axes=[k],
        with sblock("m"):        ->          combine=max, identity=-inf, value=x[i, k])
            m[i] = max(m[i], x[i, k])

What does not have that shape (scatter loops, sorting, several outputs at once) becomes an opaque
stage: its statement is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import prim

OP_PATTERN = "disco_fuse.op_pattern"
"""Block annotation on the last block of an operator: its pattern (see `MarkOps`)."""

NUM_NESTS = "disco_fuse.num_nests"
"""Function attribute: how many loop nests the schedules wrote."""

COMBINERS = (prim.Add, prim.Mul, prim.Max, prim.Min, prim.And, prim.Or)
SPATIAL, REDUCE = 0, 2  # tvm.tirx.IterVar.DataPar, CommReduce


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One block: every element of `output` computed by one expression.

    Attributes
    ----------
    name
        The block's name.
    statement
        The loop nest as found.
    reads, writes
        All buffers touched, in order of appearance.
    op_pattern
        Pattern of the operator that ends with this block; -1 when it does not end here or is not
        marked.
    output
        The buffer written; None for an opaque stage.
    axes, reduce_axes
        Iteration variables with their extents. ``output[axes]`` is what is written.
    value
        The element, or the term that is combined into it when there are reduce axes.
    combine
        TIR class of the reduction (`tvm.ir.prim.Add` ...); None without reduce axes.
    identity
        Initial value of the reduction.
    """

    name: str
    statement: tirx.Stmt
    reads: tuple[tirx.Buffer, ...]
    writes: tuple[tirx.Buffer, ...]
    op_pattern: int
    output: tirx.Buffer | None = None
    axes: tuple[tuple[tirx.Var, int], ...] = ()
    reduce_axes: tuple[tuple[tirx.Var, int], ...] = ()
    value: tirx.Expr | None = None
    combine: Any = None
    identity: tirx.Expr | None = None

    @property
    def is_opaque(self) -> bool:
        """Whether only the statement as a whole is known."""
        return self.output is None


@dataclass(frozen=True, kw_only=True, eq=False)
class StageList:
    """A PrimFunc as stages.

    Attributes
    ----------
    parameters
        Buffers of the caller, in order.
    intermediates
        Buffers that the function allocates.
    stages
        In execution order.
    """

    parameters: tuple[tirx.Buffer, ...]
    intermediates: tuple[tirx.Buffer, ...]
    stages: tuple[Stage, ...]


def parse(func: tirx.PrimFunc) -> StageList:
    """The stages of `func`.

    Raises
    ------
    ValueError
        When a parameter is not a buffer of constant shape, or a buffer is not compact.
    """
    for param in func.params:
        if not tirx.is_buffer_var(param):
            raise ValueError(f"parameter {param.name} is no buffer; only buffers are scheduled")
    body = func.body
    intermediates: list[tirx.Buffer] = []
    if isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root":
        intermediates.extend(body.block.alloc_buffers)
        body = body.block.body
    for buffer in (*func.params, *intermediates):
        _check_compact(buffer)
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return StageList(
        parameters=tuple(func.params),
        intermediates=tuple(intermediates),
        stages=tuple(_stage(statement) for statement in statements),
    )


def shape_of(buffer: tirx.Buffer) -> tuple[int, ...]:
    """The constant shape of a buffer."""
    return tuple(int(extent) for extent in buffer.ty.shape)


def num_elements(buffer: tirx.Buffer) -> int:
    """How many elements a buffer has (1 for a scalar)."""
    count = 1
    for extent in buffer.ty.shape:
        count *= int(extent)
    return count


def element_bytes(buffer: tirx.Buffer) -> int:
    """Size of one element in bytes; a bool takes one."""
    dtype = tvm.DataType(str(buffer.ty.dtype))
    return max(1, (int(dtype.bits) * int(dtype.lanes) + 7) // 8)


def _check_compact(buffer: tirx.Buffer) -> None:
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.ty.shape):
        raise ValueError(f"buffer {buffer.name} has shape {buffer.ty.shape}; it must be constant")
    if len(buffer.ty.strides) > 0:
        raise ValueError(f"buffer {buffer.name} has strides; only compact buffers are scheduled")


def _stage(statement: tirx.Stmt) -> Stage:
    realize = statement
    while isinstance(realize, tirx.For):
        realize = realize.body
    reads, writes = _touched(statement)
    pattern = -1
    if isinstance(realize, s_tir.SBlockRealize):
        pattern = int(realize.block.annotations.get(OP_PATTERN, -1))
        fields = _structure(statement, realize)
        if fields is not None:
            return Stage(
                name=realize.block.name_hint,
                statement=statement,
                reads=reads,
                writes=writes,
                op_pattern=pattern,
                **fields,
            )
    return Stage(name="opaque", statement=statement, reads=reads, writes=writes, op_pattern=pattern)


def _touched(
    statement: tirx.Stmt,
) -> tuple[tuple[tirx.Buffer, ...], tuple[tirx.Buffer, ...]]:
    """Buffers that a statement reads and writes."""
    reads: dict[tirx.Buffer, None] = {}
    writes: dict[tirx.Buffer, None] = {}

    def load(node: tvm.ir.TensorLoad) -> None:
        reads.setdefault(node.source)

    def store(node: tirx.BufferStore) -> None:
        writes.setdefault(node.buffer)

    tvm_ffi.structural_walk(statement, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return tuple(reads), tuple(writes)


def _structure(statement: tirx.Stmt, realize: s_tir.SBlockRealize) -> dict[str, Any] | None:
    """The fields of a perfect loop nest around one store, None for anything else."""
    block = realize.block
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.alloc_buffers or block.match_buffers:
        return None
    if not (isinstance(realize.predicate, tirx.IntImm) and realize.predicate.value):
        return None
    spatial: list[tuple[tirx.Var, int]] = []
    reduce: list[tuple[tirx.Var, int]] = []
    loops = _loop_extents(statement)
    for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True):
        low, extent = iter_var.dom.min, iter_var.dom.extent
        if not (isinstance(low, tirx.IntImm) and low.value == 0):
            return None
        if not isinstance(extent, tirx.IntImm):
            return None
        if isinstance(value, tirx.Var):
            if loops.pop(value, None) != int(extent):
                return None
        elif not (int(extent) == 1 and isinstance(value, tirx.IntImm) and value.value == 0):
            return None
        if int(iter_var.iter_type) not in (SPATIAL, REDUCE):
            return None
        kind = spatial if int(iter_var.iter_type) == SPATIAL else reduce
        kind.append((iter_var.var, int(extent)))
    if loops:
        return None
    fields = {
        "output": store.buffer,
        "axes": tuple(spatial),
        "reduce_axes": tuple(reduce),
        "value": store.value,
    }
    if not _writes_own_axes(store, spatial):
        return None
    if not reduce:
        reads, _ = _touched(statement)
        own = any(buffer.same_as(store.buffer) for buffer in reads)
        return None if own or block.init is not None else fields
    return _reduction(fields, block, store)


def _loop_extents(statement: tirx.Stmt) -> dict[tirx.Var, int]:
    """Extents of the loops around a block; an extent of -1 marks a loop that is not plain."""
    loops: dict[tirx.Var, int] = {}
    while isinstance(statement, tirx.For):
        plain = isinstance(statement.extent, tirx.IntImm) and isinstance(statement.min, tirx.IntImm)
        plain = plain and statement.min.value == 0 and statement.thread_binding is None
        loops[statement.loop_var] = int(statement.extent) if plain else -1
        statement = statement.body
    return loops


def _writes_own_axes(store: tirx.BufferStore, spatial: list[tuple[tirx.Var, int]]) -> bool:
    if len(store.indices) == 0:  # a scalar's block has at most one axis, of extent 1
        return all(extent == 1 for _, extent in spatial)
    if len(store.indices) != len(spatial):
        return False
    shape = shape_of(store.buffer)
    return all(
        index.same_as(var) and extent == size
        for index, (var, extent), size in zip(store.indices, spatial, shape, strict=True)
    )


def _reduction(
    fields: dict[str, Any], block: s_tir.SBlock, store: tirx.BufferStore
) -> dict[str, Any] | None:
    """Split ``out = combine(out, term)`` into its parts."""
    init = block.init
    if not isinstance(init, tirx.BufferStore) or not isinstance(
        init.value, tirx.IntImm | tirx.FloatImm
    ):
        return None
    value = store.value
    if type(value) not in COMBINERS:
        return None
    for own, term in ((value.a, value.b), (value.b, value.a)):
        if isinstance(own, tvm.ir.TensorLoad) and own.source.same_as(store.buffer):
            reads, _ = _touched(tirx.Evaluate(term))
            if any(buffer.same_as(store.buffer) for buffer in reads):
                return None
            return {**fields, "value": term, "combine": type(value), "identity": init.value}
    return None
