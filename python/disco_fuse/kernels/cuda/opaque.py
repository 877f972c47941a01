"""Rule `opaque`: statements that are no expression per element (scatter, sort, running sums).

TVM writes most of them for CUDA with blocks and threads already (``T.launch_thread``); those are
kept. A loop nest that promises independent iterations (``T.parallel``) is spread over threads; the
rest is run by one thread, in order.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from ..cpu.loops import int_imm, sequence
from ..cpu.opaque import on_flat_buffers, opened
from ..cpu.plain import serial
from .context import DeviceKernel, ceil_div, launch

THREADS = 256


def emit(statement: tirx.Stmt, kernel: DeviceKernel) -> list[tirx.Stmt]:
    """The launches of one top-level statement.

    Raises
    ------
    DeclinedError
        When a block in it allocates or rebinds buffers.
    """
    parts = [bound(part) for part in _plain(statement)]
    return [on_flat_buffers(part, kernel.buffers) for part in parts]


def bound(statement: tirx.Stmt) -> tirx.Stmt:
    """The statement inside launches: its own, those of a parallel loop, or one thread."""
    if isinstance(statement, tirx.SeqStmt):
        return sequence([bound(part) for part in statement.seq])
    if has_threads(statement):
        return statement
    if isinstance(statement, tirx.For) and isinstance(statement.extent, tirx.IntImm):
        extent = int(statement.extent)
        if statement.kind == ForKind.PARALLEL and extent > 0:
            return _spread(statement, extent)
    body = serial(statement)
    return launch(1, (1, 1), lambda _block, _x, _y: [body])


def has_threads(statement: tirx.Stmt) -> bool:
    """Whether a statement launches threads itself."""
    found = False

    def attribute(node: tirx.AttrStmt) -> None:
        nonlocal found
        found = found or node.attr_key == "thread_extent"

    def loop(node: tirx.For) -> None:
        nonlocal found
        found = found or node.kind == ForKind.THREAD_BINDING

    tvm_ffi.structural_walk(statement, [(tirx.AttrStmt, attribute), (tirx.For, loop)])
    return found


def _spread(node: tirx.For, extent: int) -> tirx.Stmt:
    """Iterations of a parallel loop as threads."""
    body = serial(node.body)

    def thread(block: tirx.Expr, x: tirx.Expr, _y: tirx.Expr) -> list[tirx.Stmt]:
        position = block * int_imm(THREADS) + x

        def change(found: tirx.Var) -> tirx.Expr:
            return node.min + position if found.same_as(node.loop_var) else found

        inside = prim.LT(position, int_imm(extent))
        own = tvm_ffi.structural_map(body, [(tirx.Var, change)])
        return [tirx.IfThenElse(inside, own, None)]

    return launch(ceil_div(extent, THREADS), (THREADS, 1), thread)


def _plain(statement: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements of sequences, blocks and marks, in order, without them."""
    if isinstance(statement, tirx.SeqStmt):
        return [part for child in statement.seq for part in _plain(child)]
    if isinstance(statement, s_tir.SBlockRealize):
        return [part for child in opened(statement) for part in _plain(child)]
    if isinstance(statement, tirx.AttrStmt) and statement.attr_key == "pragma_scope":
        return _plain(statement.body)  # topi's mark that a scatter is not to be split; no effect
    if isinstance(statement, tirx.For):
        body = sequence(_plain(statement.body))
        kind, binding = statement.kind, statement.thread_binding
        loop = tirx.For(statement.loop_var, statement.min, statement.extent, kind, body, binding)
        return [loop]
    return [statement]
