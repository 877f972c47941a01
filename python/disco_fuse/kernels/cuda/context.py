"""What every CUDA rule knows while it writes a kernel: limits, buffers, launches, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Range, prim
from tvm.target import Target
from tvm.tirx import ForKind

from ..cpu.loops import int_imm, sequence
from ..cpu.scope import FlatBuffers, Scope

WARP = 32
_THREAD_INDEX = 4  # tvm.tirx.IterVar.ThreadIndex


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a block of threads may take.

    Attributes
    ----------
    max_threads
        Threads of one block.
    max_shared_bytes
        Statically declared shared memory of one block.
    """

    max_threads: int
    max_shared_bytes: int

    @staticmethod
    def of(target: Target) -> Limits:
        """Read ``max_threads_per_block`` and ``max_shared_memory_per_block`` of a CUDA target."""
        return Limits(
            max_threads=int(target.attrs["max_threads_per_block"]),
            max_shared_bytes=int(target.attrs["max_shared_memory_per_block"]),
        )


@dataclass(kw_only=True)
class DeviceKernel:
    """State shared by the nests of one PrimFunc; each nest becomes one launch.

    Attributes
    ----------
    limits
        Of the device.
    needed
        Buffers that some nest or the caller reads from memory.
    buffers
        Flat forms of all buffers.
    """

    limits: Limits
    needed: set[tirx.Buffer]
    buffers: FlatBuffers

    def store(self, buffer: tirx.Buffer, offset: tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        """``buffer[offset] = value`` on the flat view."""
        return tirx.BufferStore(self.buffers.view(buffer), value, [offset])


class DeviceScope(Scope):
    """A scope whose exp, tanh and erf are CUDA's own functions, which are fast as they are."""

    fast_functions = False


Threads = tuple[int, int]
"""Threads of a block in x, whose neighbours share a warp, and in y."""

Body = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], Sequence[tirx.Stmt]]
"""Statements of one thread, from its block, its x and its y."""


def launch(blocks: int, threads: Threads, body: Body) -> tirx.Stmt:
    """One kernel launch of ``blocks`` blocks."""
    block, x, y = (tirx.Var(name, "int64") for name in ("block", "x", "y"))
    statement = sequence(body(block, x, y if threads[1] > 1 else int_imm(0)))
    if threads[1] > 1:
        statement = _bound(y, threads[1], "threadIdx.y", statement)
    statement = _bound(x, threads[0], "threadIdx.x", statement)
    return _bound(block, blocks, "blockIdx.x", statement)


def _bound(var: tirx.Var, extent: int, tag: str, body: tirx.Stmt) -> tirx.Stmt:
    """A loop whose iterations are blocks or threads."""
    domain = Range.from_min_extent(int_imm(0), int_imm(extent))
    thread = tirx.IterVar(domain, tirx.Var(tag, "int64"), _THREAD_INDEX, tag)
    return tirx.For(var, int_imm(0), int_imm(extent), ForKind.THREAD_BINDING, body, thread)


def guarded(condition: tirx.Expr | None, statements: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """The statements under a condition; None holds always."""
    if condition is None or not statements:
        return list(statements)
    return [tirx.IfThenElse(condition, sequence(statements), None)]


def within(position: tirx.Expr, extent: int, covered: int) -> tirx.Expr | None:
    """``position < extent``, None where the launch covers exactly ``extent`` positions."""
    return None if covered == extent else prim.LT(position, int_imm(extent))


def clamped(position: tirx.Expr, extent: int, covered: int) -> tirx.Expr:
    """``position``, or the last one for threads beyond it, so that they load what exists."""
    return position if covered == extent else prim.Min(position, int_imm(extent - 1))


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``, from 1."""
    return 1 << max(0, value - 1).bit_length()


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor``, rounded up."""
    return -(-value // divisor)
