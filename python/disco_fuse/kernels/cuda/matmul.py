"""Rule `matmul`: tiles in shared memory, register tiles in threads.

::

              n  [64 of a block]                     c[m, n] = sum over k of a[m, k] * b[k, n]
           +----------+
         k | b panel  |  16 deep, in shared          A block owns 64 x 64 outputs, each of its 256
           +----------+                              threads 4 x 4 of them. Per 16 steps of k the
    +----+ +----------+                              block copies one panel of each operand to
  m | a  | | c tile   |                              shared memory, and every thread multiplies 4
    |    | | 4x4 each |                              values of each from there.
    +----+ +----------+

It reads its operands through their index expressions, so any product of two factors that is summed
is served, with batches, transposes and several summed axes: convolutions too (an implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.ir import prim
from tvm.tirx import ForKind

from ..cpu.affine import Axis, extent_of
from ..cpu.context import DeclinedError, affine_values, reachable
from ..cpu.loops import immediate, int_imm, loop, on_stack
from ..cpu.resolve import Root
from ..cpu.scalar import Node
from ..cpu.scope import count_uses
from .context import DeviceKernel, DeviceScope, ceil_div, launch
from .teams import sync

TILE = 64
DEPTH = 16
PER_THREAD = 4
SIDE = TILE // PER_THREAD
THREADS = SIDE * SIDE
PITCH = TILE + 1
"""Words from one row of a panel to the next: one more than a row, so that threads which store a
column hit different banks of shared memory."""
SMALL = 16
"""Below this many rows or columns most of a tile would be empty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """A sum of products, its axes sorted.

    Attributes
    ----------
    root
        The reduction.
    left, right
        The factors.
    batch, m, n, k
        Axes of both factors, of the left one, of the right one, and the summed ones.
    """

    root: Root
    left: Node
    right: Node
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    k: tuple[Axis, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Thread:
    """Where a thread stands in its block while its statements are written."""

    kernel: DeviceKernel
    batch: DeviceScope
    rank: tirx.Expr
    x: tirx.Expr
    y: tirx.Expr


def plan(root: Root) -> Product:
    """Read a root as a product.

    Raises
    ------
    DeclinedError
        When it is no sum of products, or too narrow for tiles.
    """
    if root.stage.combine is not prim.Add or root.node.kind is not prim.Mul:
        raise DeclinedError("not a sum of products")
    left, right = root.node.args
    outside = [axis for axis in root.axes if axis not in left.axes | right.axes]
    product = Product(
        root=root,
        left=left,
        right=right,
        batch=tuple(a for a in root.axes if a in left.axes and a in right.axes),
        m=tuple(a for a in root.axes if a in left.axes and a not in right.axes),
        n=tuple(a for a in root.axes if a in right.axes and a not in left.axes),
        k=root.reduce_axes,
    )
    if left.dtype != root.dtype or right.dtype != root.dtype:
        raise DeclinedError("factors and sum of different types")
    if outside or min(extent_of(product.m), extent_of(product.n)) < SMALL or not product.k:
        raise DeclinedError("too narrow for tiles")
    return product


def emit(product: Product, kernel: DeviceKernel) -> list[tirx.Stmt]:
    """The launch of a product."""
    m, n, k = (extent_of(axes) for axes in (product.m, product.n, product.k))
    tiles_n, tiles_m = ceil_div(n, TILE), ceil_div(m, TILE)
    dtype = product.root.dtype
    panels = [_panel(node, name) for node, name in ((product.left, "a"), (product.right, "b"))]
    total = tirx.decl_buffer((int_imm(PER_THREAD**2),), dtype, name="total", scope="local")

    def body(block: tirx.Expr, x: tirx.Expr, y: tirx.Expr) -> list[tirx.Stmt]:
        tile = tirx.floormod(block, int_imm(tiles_m * tiles_n))
        uses = count_uses([product.left, product.right])
        batch_position = tirx.floordiv(block, int_imm(tiles_m * tiles_n))
        batch = DeviceScope(None, product.batch, batch_position, buffers=kernel.buffers, uses=uses)
        first_n = tirx.floormod(tile, int_imm(tiles_n)) * int_imm(TILE)
        first_m = tirx.floordiv(tile, int_imm(tiles_n)) * int_imm(TILE)
        rank = y * int_imm(SIDE) + x
        thread = _Thread(kernel=kernel, batch=batch, rank=rank, x=x, y=y)

        def deep(step: tirx.Expr) -> list[tirx.Stmt]:
            first_k = step * int_imm(DEPTH)
            return [
                *_copy(product.left, panels[0], product.m, first_m, product.k, first_k, thread),
                *_copy(product.right, panels[1], product.n, first_n, product.k, first_k, thread),
                sync(),
                _multiply(total, panels, thread),
                sync(),
            ]

        steps = loop(ceil_div(k, DEPTH), deep, ForKind.SERIAL)
        return [
            *map(tirx.AllocBuffer, panels),
            on_stack(total),
            _unrolled(lambda i: tirx.BufferStore(total, product.root.identity, [i]), PER_THREAD**2),
            *batch.statements,
            steps,
            _finish(product, total, first_m, first_n, thread),
        ]

    blocks = extent_of(product.batch) * tiles_m * tiles_n
    return [launch(blocks, (SIDE, SIDE), body)]


def _panel(node: Node, name: str) -> tirx.Buffer:
    return tirx.decl_buffer((int_imm(PITCH * DEPTH),), node.dtype, name=name, scope="shared")


def _copy(
    factor: Node,
    panel: tirx.Buffer,
    side: tuple[Axis, ...],
    first_side: tirx.Expr,
    depth: tuple[Axis, ...],
    first_depth: tirx.Expr,
    thread: _Thread,
) -> list[tirx.Stmt]:
    """``panel[k, side] = factor`` for one tile; zero beyond the edges.

    Neighbours in a warp walk along whichever of both is contiguous in memory.
    """
    extents = extent_of(side), extent_of(depth)
    values = affine_values(reachable([factor]))
    along_depth = any(v.coefficient(depth[-1]) == 1 for v in values)

    def element(step: tirx.Expr) -> list[tirx.Stmt]:
        slot = step * int_imm(THREADS) + thread.rank
        if along_depth:
            in_side = tirx.floordiv(slot, int_imm(DEPTH))
            in_depth = tirx.floormod(slot, int_imm(DEPTH))
        else:
            in_side = tirx.floormod(slot, int_imm(TILE))
            in_depth = tirx.floordiv(slot, int_imm(TILE))
        at = (first_side + in_side, first_depth + in_depth)
        edge = [int_imm(extent - 1) for extent in extents]
        outer = DeviceScope(thread.batch, side, prim.Min(at[0], edge[0]))
        inner = DeviceScope(outer, depth, prim.Min(at[1], edge[1]))
        value = inner.value(factor)
        for position, last, unit in zip(at, edge, (TILE, DEPTH), strict=True):
            if (int(last) + 1) % unit:
                value = prim.Select(prim.LE(position, last), value, immediate(factor.dtype, 0))
        target = in_depth * int_imm(PITCH) + in_side
        store = tirx.BufferStore(panel, value, [target])
        return [*outer.statements, *inner.statements, store]

    return [loop(TILE * DEPTH // THREADS, element, ForKind.UNROLLED)]


def _multiply(total: tirx.Buffer, panels: Sequence[tirx.Buffer], thread: _Thread) -> tirx.Stmt:
    """Add the products of one pair of panels to a thread's 4 x 4 outputs."""
    dtype = str(total.ty.dtype)

    def step(k: tirx.Expr) -> list[tirx.Stmt]:
        registers = [
            tirx.decl_buffer((int_imm(PER_THREAD),), dtype, name=name, scope="local")
            for name in ("ra", "rb")
        ]

        def load(
            panel: tirx.Buffer, register: tirx.Buffer, place: tirx.Expr, which: tirx.Expr
        ) -> tirx.Stmt:
            # Outputs of a thread lie SIDE apart: neighbours read neighbouring words.
            index = k * int_imm(PITCH) + which * int_imm(SIDE) + place
            return tirx.BufferStore(register, tirx.BufferLoad(panel, [index]), [which])

        loads = [
            _unrolled(partial(load, panel, register, place), PER_THREAD)
            for panel, register, place in zip(panels, registers, (thread.y, thread.x), strict=True)
        ]

        def outer(i: tirx.Expr) -> tirx.Stmt:
            def inner(j: tirx.Expr) -> tirx.Stmt:
                slot = i * int_imm(PER_THREAD) + j
                product = tirx.BufferLoad(registers[0], [i]) * tirx.BufferLoad(registers[1], [j])
                return tirx.BufferStore(total, tirx.BufferLoad(total, [slot]) + product, [slot])

            return _unrolled(inner, PER_THREAD)

        return [*map(on_stack, registers), *loads, _unrolled(outer, PER_THREAD)]

    return loop(DEPTH, step, ForKind.SERIAL)  # nvcc unrolls it; written out it is long


def _finish(
    product: Product,
    total: tirx.Buffer,
    first_m: tirx.Expr,
    first_n: tirx.Expr,
    thread: _Thread,
) -> tirx.Stmt:
    """Store a thread's outputs."""
    extents = extent_of(product.m), extent_of(product.n)

    def outer(i: tirx.Expr) -> tirx.Stmt:
        def inner(j: tirx.Expr) -> tirx.Stmt:
            m = first_m + i * int_imm(SIDE) + thread.y
            n = first_n + j * int_imm(SIDE) + thread.x
            rows = DeviceScope(thread.batch, product.m, m)
            scope = DeviceScope(rows, product.n, n)
            value = tirx.BufferLoad(total, [i * int_imm(PER_THREAD) + j])
            offset = scope.offset(product.root.offset)
            statement: tirx.Stmt = thread.kernel.store(product.root.buffer, offset, value)
            for position, extent in zip((m, n), extents, strict=True):
                if extent % TILE:
                    inside = prim.LT(position, int_imm(extent))
                    statement = tirx.IfThenElse(inside, statement, None)
            return statement

        return _unrolled(inner, PER_THREAD)

    return _unrolled(outer, PER_THREAD)


def _unrolled(body: Callable[[tirx.Expr], tirx.Stmt], extent: int) -> tirx.Stmt:
    return loop(extent, lambda i: [body(i)], ForKind.UNROLLED)
