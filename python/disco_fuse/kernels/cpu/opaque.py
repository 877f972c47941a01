"""Rule `opaque`: statements kept as written (scatter, sorting), with their loops cleaned up.

TVM writes scatters with a parallel inner loop: starting threads once per row costs far more than
the row.  A parallel loop promises that its iterations are independent, so the innermost ones
become vector loops and the others run in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Range, prim
from tvm.tirx import ForKind

from ..stages import REDUCE, shape_of
from .context import DeclinedError, Kernel, Machine
from .loops import int_imm, sequence, vector_pieces, vectors
from .plain import serial
from .scope import FlatBuffers


def emit(statement: tirx.Stmt, kernel: Kernel) -> list[tirx.Stmt]:
    """The statement for one core.

    Parameters
    ----------
    statement
        One top-level statement of a kernel.
    kernel
        The kernel it belongs to.

    Returns
    -------
    list of tirx.Stmt

    Raises
    ------
    DeclinedError
        When a block in it allocates or rebinds buffers.
    """
    analyzer = sym.Analyzer()

    def visit(node: tirx.Stmt) -> list[tirx.Stmt]:
        if isinstance(node, tirx.SeqStmt):
            return [part for child in node.seq for part in visit(child)]
        if isinstance(node, s_tir.SBlockRealize):
            return [part for child in opened(node) for part in visit(child)]
        if isinstance(node, tirx.AttrStmt) and node.attr_key == "pragma_scope":
            return visit(node.body)  # topi's mark that a scatter is not to be split; no effect
        if not isinstance(node, tirx.For) or not isinstance(node.extent, tirx.IntImm):
            return [serial(node)]
        analyzer.bind(node.loop_var, Range.from_min_extent(node.min, node.extent))
        if node.kind == ForKind.PARALLEL and isinstance(node.body, tirx.BufferStore):
            return _vector_store(node, analyzer, kernel.machine)
        kind = ForKind.SERIAL if node.kind == ForKind.PARALLEL else node.kind
        body = sequence(visit(node.body))
        return [tirx.For(node.loop_var, node.min, node.extent, kind, body)]

    return [on_flat_buffers(part, kernel.buffers) for part in visit(statement)]


def opened(realize: s_tir.SBlockRealize) -> list[tirx.Stmt]:
    """The statements of a block, its variables replaced by the values they are bound to."""
    block = realize.block
    if block.alloc_buffers or block.match_buffers:
        raise DeclinedError(f"block {block.name_hint} allocates or rebinds buffers")
    body: list[tirx.Stmt] = [block.body]
    if block.init is not None:
        first: tirx.Expr = tirx.IntImm("bool", 1)
        for iter_var in block.iter_vars:
            if int(iter_var.iter_type) == REDUCE:
                first = tirx.And(first, prim.EQ(iter_var.var, iter_var.dom.min))
        body.insert(0, tirx.IfThenElse(first, block.init, None))
    if not (isinstance(realize.predicate, tirx.IntImm) and realize.predicate.value):
        body = [tirx.IfThenElse(realize.predicate, sequence(body), None)]
    values = {
        iter_var.var: value
        for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True)
    }

    def change(found: tirx.Var) -> tirx.Expr:
        return values.get(found, found)

    return [tvm_ffi.structural_map(part, [(tirx.Var, change)]) for part in body]


def on_flat_buffers(statement: tirx.Stmt, buffers: FlatBuffers) -> tirx.Stmt:
    """The statement with accesses of intermediates on their flat form."""

    def offset(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tirx.Expr:
        total: tirx.Expr = int_imm(0)
        for extent, index in zip(shape_of(buffer), indices, strict=True):
            total = total * int_imm(extent) + index
        return total

    def load(node: tvm.ir.TensorLoad) -> tirx.Expr:
        if not buffers.is_intermediate(node.source):
            return node
        return tirx.BufferLoad(buffers.view(node.source), [offset(node.source, node.indices)])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if not buffers.is_intermediate(node.buffer):
            return node
        index = offset(node.buffer, node.indices)
        return tirx.BufferStore(buffers.view(node.buffer), node.value, [index])

    callbacks = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]
    result: tirx.Stmt = tvm_ffi.structural_map(statement, callbacks, order="post")
    return result


def _vector_store(node: tirx.For, analyzer: sym.Analyzer, machine: Machine) -> list[tirx.Stmt]:
    """A parallel loop around one store as vectors."""
    store = node.body
    lanes = machine.lanes([], [str(store.buffer.ty.dtype)])
    extent = int(node.extent)

    def simplified(load: tirx.Expr) -> tirx.Expr:
        indices = [analyzer.simplify(i) for i in load.indices]
        return tirx.BufferLoad(load.source, indices)

    load_type = type(tirx.BufferLoad(store.buffer, store.indices))
    value = tvm_ffi.structural_map(tirx.Evaluate(store.value), [(load_type, simplified)]).value
    indices = [analyzer.simplify(i) for i in store.indices]
    simple = tirx.BufferStore(store.buffer, value, indices)
    statements: list[tirx.Stmt] = []
    for start, count, width in vector_pieces(extent, lanes):
        statements.extend(
            vectors(start, count, width, lambda at, _: [_replace(simple, node.loop_var, at)])
        )
    return statements


def _replace(statement: tirx.Stmt, var: tirx.Var, value: tirx.Expr) -> tirx.Stmt:
    def change(found: tirx.Var) -> tirx.Expr:
        return value if found.same_as(var) else found

    return tvm_ffi.structural_map(statement, [(tirx.Var, change)])
