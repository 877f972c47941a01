"""Rule `opaque`: statements kept as written (scatter, sorting), with their loops cleaned up.

TVM writes scatters with a parallel inner loop: starting threads once per row costs far more than
the row.  A parallel loop promises that its iterations are independent, so the innermost ones
become vector loops and the others run in order.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Range
from tvm.tirx import ForKind

from .context import Machine
from .loops import sequence, vector_pieces, vectors
from .plain import serial


def emit(statement: tirx.Stmt, machine: Machine) -> list[tirx.Stmt]:
    """The statement for one core.

    Parameters
    ----------
    statement
        One top-level statement of a kernel.
    machine
        The CPU.

    Returns
    -------
    list of tirx.Stmt
    """
    if isinstance(statement, s_tir.SBlockRealize) and not statement.iter_values:
        block = statement.block
        if block.init is None and not block.alloc_buffers and not block.match_buffers:
            statement = block.body
    analyzer = sym.Analyzer()

    def visit(node: tirx.Stmt) -> list[tirx.Stmt]:
        if isinstance(node, tirx.SeqStmt):
            return [part for child in node.seq for part in visit(child)]
        if not isinstance(node, tirx.For) or not isinstance(node.extent, tirx.IntImm):
            return [serial(node)]
        analyzer.bind(node.loop_var, Range.from_min_extent(node.min, node.extent))
        if node.kind == ForKind.PARALLEL and isinstance(node.body, tirx.BufferStore):
            return _vector_store(node, analyzer, machine)
        kind = ForKind.SERIAL if node.kind == ForKind.PARALLEL else node.kind
        body = sequence(visit(node.body))
        return [tirx.For(node.loop_var, node.min, node.extent, kind, body)]

    return visit(statement)


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
