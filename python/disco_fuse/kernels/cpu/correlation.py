"""A generated convolution or gradient: register tiles over a source that is read where it lies.

    padded = source with its zeros                             # once, where zeros are needed
    for block of columns:                                      # two vectors wide
        for block of k:                                        # of the outermost axes
            panel[k, :] = other[k, block of columns]           # stays in the private cache
            for tile of rows:                                  # eight
                acc[8, 2 vectors]                              # in registers
                for k: acc[r, :] += source[from(row r) + shift(k)] * panel[k, :]
                out[tile, block] = acc                         # or kept for the next block of k

Columns are channels, so a row of the tile reads single elements of the source and every vector is
full; nothing is gathered as in an explicit matrix of windows. The tiles and panels are those of
:mod:`disco_fuse.kernels.cpu.gemm`. The values are those of
:class:`disco_fuse.kernels.correlation.Correlation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target
from tvm.tirx import ForKind

from disco_fuse.kernels.correlation import Axis, Correlation, Panels, Product
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
from disco_fuse.kernels.cpu.padded import address, clear, pad
from disco_fuse.kernels.cpu.scope import FlatBuffers
from disco_fuse.kernels.stages import NUM_NESTS

_ITEM_BYTES = {"float32": 4, "float64": 8}
_PANEL_VECTORS = 2
_TILE_ROWS = 8
# A panel is at most so big that it stays in a core's private cache beside what a tile reads.
_PANEL_BYTES = 640 * 1024
# The inner axes of k are written out while they are at most so many terms together.
_UNROLLED_TERMS = 16


def generate_correlation(
    products: Correlation, dtype: str, shapes: Sequence[Sequence[int]], target: Target
) -> tirx.PrimFunc:
    """The kernel of a correlation.

    Parameters
    ----------
    products : Correlation
    dtype : str
        "float32" or "float64".
    shapes : three sequences of int
        Of source, other and result, none of them empty.
    target : Target
        An llvm target.

    Returns
    -------
    tirx.PrimFunc
        ``(source, other, out)``, scheduled.
    """
    machine = Machine.of(target)
    source, other, out = (
        tirx.decl_buffer([int_imm(d) for d in shape], dtype, name=name)
        for shape, name in zip(shapes, ("source", "other", "out"), strict=True)
    )
    flat = FlatBuffers(())
    views = [flat.view(buffer) for buffer in (source, other, out)]
    lanes = machine.vector_bits // 8 // _ITEM_BYTES[dtype]
    body: list[tirx.Stmt] = []
    if products.padding is not None:
        copy = tirx.decl_buffer(
            (int_imm(math.prod((*shapes[0][:2], *products.padding.extents))),), dtype, name="padded"
        )
        body = [tirx.AllocBuffer(copy), *pad(views[0], copy, shapes[0], products.padding, lanes)]
        views[0] = copy
    kind = ForKind.PARALLEL if machine.num_cores > 1 else ForKind.SERIAL
    met = [product for product in products.products if product.num_sums > 0]
    if len(met) < len(products.products):  # places that no tap meets
        body += clear(views[2], math.prod(shapes[2]), lanes)
    for product in met:

        def one(group: tirx.Expr, product: Product = product) -> list[tirx.Stmt]:
            return _Emitter(
                product=product,
                group=group,
                dtype=dtype,
                lanes=lanes,
                views=tuple(views),
                kind=kind,
            ).emit()

        groups = product.groups.extent
        body += one(int_imm(0)) if groups == 1 else [loop(groups, one, ForKind.SERIAL)]
    func = tirx.PrimFunc([source, other, out], in_root_block(sequence([*flat.declarations, *body])))
    return func.with_attrs({"tirx.noalias": True, IS_SCHEDULED: True, NUM_NESTS: 1})


@dataclass(frozen=True, kw_only=True, eq=False)
class _Emitter:
    """Writes the loops of one product."""

    product: Product
    group: tirx.Expr
    dtype: str
    lanes: int
    views: tuple[tirx.Buffer, ...]
    kind: int

    def emit(self) -> list[tirx.Stmt]:
        """Blocks of columns: full ones in a loop, then what remains."""
        width = _PANEL_VECTORS * self.lanes
        full, rest = divmod(self.product.columns.extent, width)
        statements: list[tirx.Stmt] = []
        if full:

            def block(number: tirx.Expr) -> list[tirx.Stmt]:
                return self._columns(number * int_imm(width), width, width)

            statements.append(loop(full, block, self.kind))
        if rest:
            padded = -(-rest // self.lanes) * self.lanes
            statements += self._columns(int_imm(full * width), rest, padded)
        return statements

    def _columns(self, first: tirx.Expr, num_columns: int, width: int) -> list[tirx.Stmt]:
        product = self.product
        sums = Panels.of(product.sums, _PANEL_BYTES // (width * _ITEM_BYTES[self.dtype]))
        block = _Block(
            product=product,
            group=self.group,
            sums=sums,
            dtype=self.dtype,
            lanes=self.lanes,
            views=self.views,
            first=first,
            num_columns=num_columns,
            width=width,
        )
        return block.emit()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """One block of columns: its panels, and the tiles of rows that read them."""

    product: Product
    group: tirx.Expr
    sums: Panels
    dtype: str
    lanes: int
    views: tuple[tirx.Buffer, ...]
    first: tirx.Expr
    num_columns: int
    width: int

    def emit(self) -> list[tirx.Stmt]:
        """With several panels the tiles of all rows wait in memory of their own between them."""
        panel = self._buffer("panel", self.sums.panel_length * self.width)
        if self.sums.num_panels == 1:
            body = [self._pack(panel, int_imm(0)), *self._tiles(panel, int_imm(0), None)]
            return [tirx.AllocBuffer(panel), *body]
        kept = self._buffer("kept", self.product.num_rows * self.width)

        def step(number: tirx.Expr) -> list[tirx.Stmt]:
            return [self._pack(panel, number), *self._tiles(panel, number, kept)]

        def row(index: tirx.Expr) -> list[tirx.Stmt]:
            def column(number: tirx.Expr) -> list[tirx.Stmt]:
                value = tirx.BufferLoad(kept, [index * int_imm(self.width) + number])
                return [tirx.BufferStore(self.views[2], value, [self._out(index, number)])]

            return [loop(self.num_columns, column, ForKind.SERIAL)]

        return [
            tirx.AllocBuffer(panel),
            tirx.AllocBuffer(kept),
            *clear(kept, self.product.num_rows * self.width, self.lanes),
            loop(self.sums.num_panels, step, ForKind.SERIAL),
            loop(self.product.num_rows, row, ForKind.SERIAL),
        ]

    def _buffer(self, name: str, size: int) -> tirx.Buffer:
        return tirx.decl_buffer((int_imm(size),), self.dtype, name=name)

    def _out(self, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        product = self.product
        start = address(row, product.rows, [axis.out for axis in product.rows])
        start = start + int_imm(product.out) + self.group * int_imm(product.groups.out)
        return start + (self.first + column) * int_imm(product.columns.out)

    def _pack(self, panel: tirx.Buffer, number: tirx.Expr) -> tirx.Stmt:
        """Copy the columns of one panel of ``other``; missing columns become zero.

        A vector's worth of k at a time, column by column: k is often the contiguous axis, and lines
        of many columns that are a power of two apart would push each other out of the cache.
        """
        product, sums = self.product, self.sums
        start = int_imm(product.other) + self.group * int_imm(product.groups.other)
        start = start + address(number, sums.outer, [axis.other for axis in sums.outer])
        zero = immediate(self.dtype, 0.0)

        chunk = math.gcd(sums.panel_length, self.lanes)

        def rows(number: tirx.Expr) -> list[tirx.Stmt]:
            first_k = number * int_imm(chunk)

            def column(at: tirx.Expr) -> list[tirx.Stmt]:
                shift = (self.first + at) * int_imm(product.columns.other)

                def store(part: tirx.Expr) -> list[tirx.Stmt]:
                    k = first_k + part
                    index = address(k, sums.inner, [axis.other for axis in sums.inner])
                    value = tirx.BufferLoad(self.views[1], [start + index + shift])
                    return [tirx.BufferStore(panel, value, [k * int_imm(self.width) + at])]

                return [loop(chunk, store, ForKind.SERIAL)]

            def absent(at: tirx.Expr) -> list[tirx.Stmt]:
                slot = first_k * int_imm(self.width) + at * int_imm(self.width)
                return [
                    tirx.BufferStore(panel, zero, [slot + int_imm(column)])
                    for column in range(self.num_columns, self.width)
                ]

            parts = [loop(self.num_columns, column, ForKind.SERIAL)]
            if self.num_columns < self.width:
                parts.append(loop(chunk, absent, ForKind.SERIAL))
            return parts

        return loop(sums.panel_length // chunk, rows, ForKind.SERIAL)

    def _tiles(
        self, panel: tirx.Buffer, number: tirx.Expr, kept: tirx.Buffer | None
    ) -> list[tirx.Stmt]:
        full, rest = divmod(self.product.num_rows, _TILE_ROWS)
        statements: list[tirx.Stmt] = []

        def tile(index: tirx.Expr) -> list[tirx.Stmt]:
            return self._tile(index * int_imm(_TILE_ROWS), _TILE_ROWS, panel, number, kept)

        if full:
            statements.append(loop(full, tile, ForKind.SERIAL))
        if rest:
            start = int_imm(full * _TILE_ROWS)
            statements += self._tile(start, rest, panel, number, kept)
        return statements

    def _tile(
        self,
        start: tirx.Expr,
        num_rows: int,
        panel: tirx.Buffer,
        number: tirx.Expr,
        kept: tirx.Buffer | None,
    ) -> list[tirx.Stmt]:
        """Rows ``start .. start + num_rows``, kept in registers over one panel."""
        width, sums = self.width, self.sums
        acc = tirx.decl_buffer((int_imm(num_rows * width),), self.dtype, name="acc", scope="local")
        bases = self._bases(start, num_rows)
        product = self.product
        base = int_imm(product.source) + self.group * int_imm(product.groups.source)
        base = base + address(number, sums.outer, [axis.source for axis in sums.outer])

        def each(body: Callable[[int, tirx.Expr], list[tirx.Stmt]]) -> list[tirx.Stmt]:
            """Unrolled: ``body(row, column)`` in vectors."""
            parts: list[tirx.Stmt] = []
            for row in range(num_rows):
                for shift in range(0, width, self.lanes):

                    def element(lane: tirx.Expr, _l: Lanes, row: int = row) -> list[tirx.Stmt]:
                        return body(row, lane)

                    parts += vector(int_imm(shift) if shift else None, self.lanes, element)
            return parts

        def slot(row: int, column: tirx.Expr) -> list[tirx.Expr]:
            return [int_imm(row * width) + column]

        def kept_at(row: int, column: tirx.Expr) -> list[tirx.Expr]:
            return [(start + int_imm(row)) * int_imm(width) + column]

        def begin(row: int, column: tirx.Expr) -> list[tirx.Stmt]:
            value: tirx.Expr = immediate(self.dtype, 0.0)
            if kept is not None:
                value = tirx.BufferLoad(kept, kept_at(row, column))
            return [tirx.BufferStore(acc, value, slot(row, column))]

        def term(k: tirx.Expr, shift: tirx.Expr) -> list[tirx.Stmt]:
            def add(row: int, column: tirx.Expr) -> list[tirx.Stmt]:
                left = tirx.BufferLoad(self.views[0], [base + bases[row] + shift])
                right = tirx.BufferLoad(panel, [k * int_imm(width) + column])
                at = slot(row, column)
                return [tirx.BufferStore(acc, tirx.BufferLoad(acc, at) + left * right, at)]

            return each(add)

        statements = [on_stack(acc), *each(begin), *_walk(sums.inner, term)]
        if kept is not None:

            def keep(row: int, column: tirx.Expr) -> list[tirx.Stmt]:
                value = tirx.BufferLoad(acc, slot(row, column))
                return [tirx.BufferStore(kept, value, kept_at(row, column))]

            return [*statements, *each(keep)]
        return [*statements, self._store(acc, start, num_rows)]

    def _bases(self, start: tirx.Expr, num_rows: int) -> list[tirx.Expr]:
        """Where each row of a tile begins in the source."""
        rows = self.product.rows
        strides = [axis.source for axis in rows]
        if rows and rows[-1].extent % _TILE_ROWS == 0:  # the tile does not leave the last axis
            first = address(start, rows, strides)
            return [first + int_imm(row * strides[-1]) for row in range(num_rows)]
        return [address(start + int_imm(row), rows, strides) for row in range(num_rows)]

    def _store(self, acc: tirx.Buffer, start: tirx.Expr, num_rows: int) -> tirx.Stmt:
        """The tile into the result, where its rows lie side by side."""
        rows = self.product.rows
        stays = bool(rows) and rows[-1].extent % _TILE_ROWS == 0
        step = rows[-1].out if stays else 0

        def place(row: int, number: tirx.Expr) -> tirx.Expr:
            if stays:
                return self._out(start, number) + int_imm(row * step)
            return self._out(start + int_imm(row), number)

        def column(number: tirx.Expr) -> list[tirx.Stmt]:
            if step == 1 and num_rows == _TILE_ROWS:
                first = self._out(start, number)

                def element(row: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
                    value = tirx.BufferLoad(acc, [row * int_imm(self.width) + number])
                    return [tirx.BufferStore(self.views[2], value, [first + row])]

                return vector(None, _TILE_ROWS, element)
            return [
                tirx.BufferStore(
                    self.views[2],
                    tirx.BufferLoad(acc, [int_imm(row * self.width) + number]),
                    [place(row, number)],
                )
                for row in range(num_rows)
            ]

        return loop(self.num_columns, column, ForKind.SERIAL)


def _walk(
    axes: Sequence[Axis], term: Callable[[tirx.Expr, tirx.Expr], list[tirx.Stmt]]
) -> list[tirx.Stmt]:
    """Loops over k, the innermost ones written out: ``term(k, shift in the source)``."""
    unrolled, num_terms = len(axes), 1
    while unrolled > 0 and num_terms * axes[unrolled - 1].extent <= _UNROLLED_TERMS:
        unrolled -= 1
        num_terms *= axes[unrolled].extent

    def nest(depth: int, k: tirx.Expr, shift: tirx.Expr) -> list[tirx.Stmt]:
        if depth == len(axes):
            return term(k, shift)
        axis = axes[depth]

        def step(i: tirx.Expr) -> list[tirx.Stmt]:
            return nest(depth + 1, k * int_imm(axis.extent) + i, shift + i * int_imm(axis.source))

        if depth >= unrolled:
            return [part for i in range(axis.extent) for part in step(int_imm(i))]
        return [loop(axis.extent, step, ForKind.SERIAL)]

    return nest(0, int_imm(0), int_imm(0))
