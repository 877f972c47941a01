"""Addresses of flat indices, and the padded copy of a source that convolutions read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import ForKind

from disco_fuse.kernels.correlation import Axis, Padding
from disco_fuse.kernels.cpu.loops import Lanes, immediate, int_imm, loop, vector_pieces, vectors


def unravel(index: tirx.Expr, extents: Sequence[int]) -> list[tirx.Expr]:
    """Indices of every axis, outermost first, of one flat index."""
    places: list[tirx.Expr] = []
    inner = 1
    for number, extent in enumerate(reversed(extents)):
        place = tirx.floordiv(index, int_imm(inner)) if inner > 1 else index
        if number + 1 < len(extents):
            place = tirx.floormod(place, int_imm(extent))
        places.insert(0, place)
        inner *= extent
    return places


def _dot(places: Sequence[tirx.Expr], extents: Sequence[int], inner: int) -> tirx.Expr:
    """The flat index of a place in a row-major tensor whose rows hold ``inner`` elements."""
    flat: tirx.Expr = int_imm(0)
    for place, extent in zip(places, extents, strict=True):
        flat = flat * int_imm(extent) + place
    return flat * int_imm(inner)


def address(index: tirx.Expr, axes: Sequence[Axis], strides: Sequence[int]) -> tirx.Expr:
    """Where a flat index along some axes leads, in elements."""
    result: tirx.Expr = int_imm(0)
    for place, stride in zip(unravel(index, [a.extent for a in axes]), strides, strict=True):
        result = result + place * int_imm(stride)
    return result


def clear(buffer: tirx.Buffer, size: int, lanes: int) -> list[tirx.Stmt]:
    """Zero the first ``size`` elements of a flat buffer."""
    zero = immediate(str(buffer.dtype), 0.0)

    def store(position: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
        return [tirx.BufferStore(buffer, zero, [position])]

    pieces = vector_pieces(size, lanes)
    return [part for piece in pieces for part in vectors(*piece, store)]


def pad(
    source: tirx.Buffer, copy: tirx.Buffer, shape: Sequence[int], padding: Padding, lanes: int
) -> list[tirx.Stmt]:
    """Zeros in every plane of the copy, then the rows of the source over them."""
    num_planes, extents = shape[0] * shape[1], shape[2:]
    plane, copy_plane = math.prod(extents), math.prod(padding.extents)
    kept = [
        min(extent, room - zeros)
        for extent, room, zeros in zip(extents, padding.extents, padding.before, strict=True)
    ]
    zero = immediate(str(source.dtype), 0.0)

    def one(number: tirx.Expr) -> list[tirx.Stmt]:
        def blank(position: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
            return [tirx.BufferStore(copy, zero, [number * int_imm(copy_plane) + position])]

        statements: list[tirx.Stmt] = []
        for start, count, width in vector_pieces(copy_plane, lanes):
            statements += vectors(start, count, width, blank)

        def row(index: tirx.Expr) -> list[tirx.Stmt]:
            places = unravel(index, kept[:-1])
            theirs = _dot(places, extents[:-1], extents[-1]) + number * int_imm(plane)
            mine = _dot(
                [i + int_imm(zeros) for i, zeros in zip(places, padding.before[:-1], strict=True)],
                padding.extents[:-1],
                padding.extents[-1],
            ) + number * int_imm(copy_plane)

            def move(position: tirx.Expr, _lanes: Lanes) -> list[tirx.Stmt]:
                value = tirx.BufferLoad(source, [theirs + position])
                return [
                    tirx.BufferStore(copy, value, [mine + int_imm(padding.before[-1]) + position])
                ]

            parts: list[tirx.Stmt] = []
            for start, count, width in vector_pieces(kept[-1], lanes):
                parts += vectors(start, count, width, move)
            return parts

        return [*statements, loop(math.prod(kept[:-1]), row, ForKind.SERIAL)]

    return [loop(num_planes, one, ForKind.SERIAL)]
