"""A generated matrix product with the strides of a library call: the other candidate for a matmul.

For each matrix of the batch, C (m x n) = A (m x k) B (k x n)::

    for block of columns:                        # two vectors wide
        panel[k, :] = B[k, block]                # contiguous, whatever B's strides are
        for tile of rows:                        # eight
            acc[8, 2 vectors] = 0                # in registers
            for k: acc[r, :] += A[r, k] * panel[k, :]
            C[tile, block] = acc

Packing pays where B's rows lie far apart: unpacked, each step of k would touch another page and
the lines of a panel would fall into few cache sets. A small B of contiguous rows is read as it is.
The scheme is the usual one of panels and register tiles (Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34, 2008), without blocking of k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.target import Target
from tvm.tirx import ForKind

from disco_fuse.graph import OpClass
from disco_fuse.kernels.cpu.context import Machine
from disco_fuse.kernels.cpu.driver import IS_SCHEDULED, in_root_block
from disco_fuse.kernels.cpu.loops import (
    Lanes,
    immediate,
    int_imm,
    loop,
    on_stack,
    sequence,
    vector,
)
from disco_fuse.kernels.cpu.scope import FlatBuffers
from disco_fuse.kernels.library.plan import GemmPlan, Operand
from disco_fuse.kernels.op_class import OP_CLASS_ATTR
from disco_fuse.kernels.stages import NUM_NESTS

FLOPS_ATTR = "disco_fuse.flops"
_ITEM_BYTES = {"float32": 4, "float64": 8}
_PANEL_VECTORS = 2
_TILE_ROWS = 8
# B is read in place below this size in bytes: it stays in a core's private cache.
_UNPACKED_BYTES = 128 * 1024
_PARALLEL_FLOPS = 1 << 21


def generate_gemm(
    plan: GemmPlan, dtype: str, shapes: Sequence[Sequence[int]], target: Target
) -> tirx.PrimFunc:
    """A kernel that does what ``disco_fuse.kernels.matmul`` does for ``plan``.

    Parameters
    ----------
    plan : GemmPlan
    dtype : str
        "float32" or "float64".
    shapes : three sequences of int
        Shapes of the tensors that hold A, B and C.
    target : Target
        An llvm target.

    Returns
    -------
    tirx.PrimFunc
        ``(a, b, c)``, scheduled; its flops are in the attribute ``disco_fuse.flops``.
    """
    machine = Machine.of(target)
    buffers = [
        tirx.decl_buffer([int_imm(d) for d in shape], dtype, name=name)
        for shape, name in zip(shapes, "abc", strict=True)
    ]
    a, b, c = buffers
    flat = FlatBuffers(())
    if plan.c.col_stride != 1 and plan.c.row_stride == 1:
        plan, a, b = _transposed(plan), b, a
    flops = 2.0 * plan.num_matrices * plan.m * plan.n * plan.k
    views = [flat.view(buffer) for buffer in (a, b, c)]
    body = _batch(plan, dtype, views, machine, flops)
    func = tirx.PrimFunc(buffers, in_root_block(sequence([*flat.declarations, *body])))
    return func.with_attrs(
        {
            "tirx.noalias": True,
            "op_pattern": 8,
            IS_SCHEDULED: True,
            NUM_NESTS: 1,
            FLOPS_ATTR: float(flops),
            OP_CLASS_ATTR: str(OpClass.MATMUL),
        }
    )


def _transposed(plan: GemmPlan) -> GemmPlan:
    """C^T = B^T A^T, which makes the contiguous axis of C its columns; A and B change places."""

    def turned(operand: Operand) -> Operand:
        return replace(operand, row_stride=operand.col_stride, col_stride=operand.row_stride)

    return replace(plan, m=plan.n, n=plan.m, a=turned(plan.b), b=turned(plan.a), c=turned(plan.c))


def _batch(
    plan: GemmPlan,
    dtype: str,
    views: Sequence[tirx.Buffer],
    machine: Machine,
    flops: float,
) -> list[tirx.Stmt]:
    """The loop over the matrices of the batch; ``views`` are A, B and C as flat buffers."""
    a, b, c = views
    lanes = machine.vector_bits // 8 // _ITEM_BYTES[dtype]

    def matrix(number: tirx.Expr) -> list[tirx.Stmt]:
        offsets = [
            _batch_offset(number, plan.batch_shape, operand) for operand in (plan.a, plan.b, plan.c)
        ]
        return _Matrix(plan=plan, dtype=dtype, lanes=lanes, a=a, b=b, c=c, offsets=offsets).emit()

    if plan.num_matrices == 1:
        return matrix(int_imm(0))
    parallel = machine.num_cores > 1 and flops >= _PARALLEL_FLOPS
    kind = ForKind.PARALLEL if parallel else ForKind.SERIAL
    return [loop(plan.num_matrices, matrix, kind)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Matrix:
    """Writes the loops of one matrix product of the batch."""

    plan: GemmPlan
    dtype: str
    lanes: int
    a: tirx.Buffer
    b: tirx.Buffer
    c: tirx.Buffer
    offsets: Sequence[tirx.Expr]

    def emit(self) -> list[tirx.Stmt]:
        """Blocks of columns: full ones in a loop, then what remains."""
        width = _PANEL_VECTORS * self.lanes
        full, rest = divmod(self.plan.n, width)
        statements: list[tirx.Stmt] = []
        if full:
            packed = not self._stays_in_cache()

            def block(number: tirx.Expr) -> list[tirx.Stmt]:
                return self._columns(number * int_imm(width), width, width, packed=packed)

            statements.append(loop(full, block, ForKind.SERIAL))
        if rest:
            padded = -(-rest // self.lanes) * self.lanes
            statements += self._columns(int_imm(full * width), rest, padded, packed=True)
        return statements

    def _stays_in_cache(self) -> bool:
        span = self.plan.k * self.plan.b.row_stride * _ITEM_BYTES[self.dtype]
        return self.plan.b.col_stride == 1 and span <= _UNPACKED_BYTES

    def _columns(
        self, first: tirx.Expr, num_columns: int, width: int, *, packed: bool
    ) -> list[tirx.Stmt]:
        """Columns ``first .. first + num_columns`` of C, computed ``width`` wide."""
        plan = self.plan
        statements: list[tirx.Stmt] = []

        def in_place(k: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
            return tirx.BufferLoad(self.b, [self._b_index(k, first + column)])

        read = in_place
        if packed:
            panel = tirx.decl_buffer((int_imm(plan.k * width),), self.dtype, name="panel")
            statements += [tirx.AllocBuffer(panel), self._pack(panel, first, num_columns, width)]

            def from_panel(k: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
                return tirx.BufferLoad(panel, [k * int_imm(width) + column])

            read = from_panel
        full, rest = divmod(plan.m, _TILE_ROWS)

        def tile(number: tirx.Expr) -> list[tirx.Stmt]:
            start = number * int_imm(_TILE_ROWS)
            return self._tile(start, _TILE_ROWS, first, num_columns, width, read)

        if full:
            statements.append(loop(full, tile, ForKind.SERIAL))
        if rest:
            start = int_imm(full * _TILE_ROWS)
            statements += self._tile(start, rest, first, num_columns, width, read)
        return statements

    def _b_index(self, k: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        return _index(self.offsets[1], k, self.plan.b.row_stride, column, self.plan.b.col_stride)

    def _pack(
        self, panel: tirx.Buffer, first: tirx.Expr, num_columns: int, width: int
    ) -> tirx.Stmt:
        """Copy a block of columns of B into the panel; missing columns become zero."""
        zero = immediate(self.dtype, 0.0)

        def row(k: tirx.Expr) -> list[tirx.Stmt]:
            def store(column: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
                value = tirx.BufferLoad(self.b, [self._b_index(k, first + column)])
                return [tirx.BufferStore(panel, value, [k * int_imm(width) + column])]

            def clear(column: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
                return [tirx.BufferStore(panel, zero, [k * int_imm(width) + column])]

            parts: list[tirx.Stmt] = []
            for start in range(0, width, self.lanes):
                if start + self.lanes <= num_columns:
                    parts += vector(int_imm(start), self.lanes, store)
                    continue
                for column in range(start, start + self.lanes):
                    body = store if column < num_columns else clear
                    parts += body(int_imm(column), Lanes(1, int_imm(0)))
            return parts

        return loop(self.plan.k, row, ForKind.SERIAL)

    def _tile(
        self,
        start: tirx.Expr,
        num_rows: int,
        first: tirx.Expr,
        num_columns: int,
        width: int,
        read: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    ) -> list[tirx.Stmt]:
        """Rows ``start .. start + num_rows`` of a block of columns, kept in registers."""
        plan, lanes = self.plan, self.lanes
        acc = tirx.decl_buffer((int_imm(num_rows * width),), self.dtype, name="acc", scope="local")

        def each(body: Callable[[int, tirx.Expr, tirx.Expr], list[tirx.Stmt]]) -> list[tirx.Stmt]:
            """Unrolled: ``body(row, column, slot of the accumulator)`` in vectors."""
            parts: list[tirx.Stmt] = []
            for row in range(num_rows):
                for shift in range(0, width, lanes):

                    def element(lane: tirx.Expr, _lanes: Lanes, row: int = row) -> list[tirx.Stmt]:
                        return body(row, lane, int_imm(row * width) + lane)

                    parts += vector(int_imm(shift) if shift else None, lanes, element)
            return parts

        def clear(_row: int, _column: tirx.Expr, slot: tirx.Expr) -> list[tirx.Stmt]:
            return [tirx.BufferStore(acc, immediate(self.dtype, 0.0), [slot])]

        def step(k: tirx.Expr) -> list[tirx.Stmt]:
            def add(row: int, column: tirx.Expr, slot: tirx.Expr) -> list[tirx.Stmt]:
                index = _index(
                    self.offsets[0], start + int_imm(row), plan.a.row_stride, k, plan.a.col_stride
                )
                product = tirx.BufferLoad(self.a, [index]) * read(k, column)
                return [tirx.BufferStore(acc, tirx.BufferLoad(acc, [slot]) + product, [slot])]

            return each(add)

        def c_index(row: int, column: tirx.Expr) -> tirx.Expr:
            return _index(
                self.offsets[2],
                start + int_imm(row),
                plan.c.row_stride,
                first + column,
                plan.c.col_stride,
            )

        def finish(row: int, column: tirx.Expr, slot: tirx.Expr) -> list[tirx.Stmt]:
            return [tirx.BufferStore(self.c, tirx.BufferLoad(acc, [slot]), [c_index(row, column)])]

        statements = [on_stack(acc), *each(clear)]
        if plan.k:
            statements.append(loop(plan.k, step, ForKind.SERIAL))
        if num_columns == width and plan.c.col_stride == 1:
            return [*statements, *each(finish)]
        for row in range(num_rows):  # cut short or scattered: element by element

            def single(column: tirx.Expr, row: int = row) -> list[tirx.Stmt]:
                return finish(row, column, int_imm(row * width) + column)

            statements.append(loop(num_columns, single, ForKind.SERIAL))
        return statements


def _index(
    offset: tirx.Expr, row: tirx.Expr, row_stride: int, column: tirx.Expr, column_stride: int
) -> tirx.Expr:
    return offset + row * int_imm(row_stride) + column * int_imm(column_stride)


def _batch_offset(number: tirx.Expr, shape: Sequence[int], operand: Operand) -> tirx.Expr:
    """Where matrix ``number`` of the batch begins, in elements."""
    offset: tirx.Expr = int_imm(operand.offset)
    inner = 1
    for extent, stride in zip(reversed(shape), reversed(operand.batch_strides), strict=True):
        position = tirx.floormod(tirx.floordiv(number, int_imm(inner)), int_imm(extent))
        offset = offset + position * int_imm(stride)
        inner *= extent
    return offset
