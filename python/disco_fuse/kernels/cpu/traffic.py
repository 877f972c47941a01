"""Memory traffic of what no cache holds: loads ahead of use, and stores past the caches.

A processor fetches ahead what is read along one line after another. It does not know the next row
of a gather, and it does not begin with the next row while several loops still go over this one;
so the last of these loops asks for that row::

    for j in vectors(n): prefetch(x[row + 1, j]); y[row, j] = f(x[row, j])

A store fetches the line that it then overwrites, and drives something else out of the cache. An
output larger than the last-level cache is gone before anybody reads it: its vectors go to memory
directly. TVM has no such store, so the kernel brings a function of LLVM text (`import_llvm`), which
is inlined. It tests the address, because such a store must be aligned and the rows of a tensor
need not be. The fence at the end of the kernel orders these stores before what other threads see.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import tirx

from .loops import int_imm

STREAMED_BYTES = 32 << 20
"""Outputs from this size on are stored past the caches (Zen 5: last-level cache of 32 MiB)."""
MIN_FETCHED_BYTES = 4 << 20
"""Less than this is in a core's own cache, or soon will be (Zen 5: 1 MiB)."""
MIN_ROW_BYTES, MAX_ROW_BYTES = 256, 64 << 10
AHEAD_BYTES = 4 << 10
"""How far ahead rows are fetched: 100 ns at 40 GB/s."""
_LLVM_TYPES = {"float32": "float", "float64": "double"}
_FENCE = "disco_fuse_fence"


def prefetch(source: tirx.Buffer, index: tirx.Expr) -> tirx.Stmt:
    """Ask for the line of ``source[index]``; any index is allowed."""
    read, keep, data = (tirx.IntImm("int32", value) for value in (0, 3, 1))  # as llvm.prefetch
    address = tirx.address_of(tirx.BufferLoad(source, [index]))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, read, keep, data))


def streams(dtype: str, width: int) -> bool:
    """Whether there is a store past the caches for vectors of `width` elements."""
    return dtype in _LLVM_TYPES and width * int(dtype.removeprefix("float")) >= 256


def stream(sink: tirx.Buffer, index: tirx.Expr, vector: tirx.Expr, width: int) -> tirx.Stmt:
    """``sink[index : index + width] = vector`` past the caches."""
    name = _function(str(sink.ty.dtype), width)
    address = tirx.address_of(tirx.BufferLoad(sink, [index]))
    return tirx.Evaluate(tirx.call_extern("void", name, address, vector))


def with_streams(body: tirx.Stmt, vectors: Iterable[tuple[str, int]]) -> tirx.Stmt:
    """A kernel's body with what its calls of :func:`stream` need.

    Parameters
    ----------
    vectors : iterable of (str, int)
        Types and widths that occur.
    """
    text = "".join(_definition(dtype, width) for dtype, width in sorted(vectors))
    text += f'define void @{_FENCE}() {{ call void asm sideeffect "sfence", "~{{memory}}"() '
    text += "ret void }\n!0 = !{i32 1}\n"
    fence = tirx.Evaluate(tirx.call_extern("void", _FENCE))
    body = tirx.SeqStmt([body, fence])
    return tirx.AttrStmt(int_imm(0), "pragma_import_llvm", tvm.ir.StringImm(text), body)


def _function(dtype: str, width: int) -> str:
    return f"disco_fuse_stream_{dtype}x{width}"


def _definition(dtype: str, width: int) -> str:
    """LLVM text of the store of one vector."""
    size = int(dtype.removeprefix("float")) // 8
    kind = f"<{width} x {_LLVM_TYPES[dtype]}>"
    return f"""define void @{_function(dtype, width)}(ptr %to, {kind} %value) {{
  %address = ptrtoint ptr %to to i64
  %rest = and i64 %address, {size * width - 1}
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %past, label %through
past:
  store {kind} %value, ptr %to, align {size * width}, !nontemporal !0
  ret void
through:
  store {kind} %value, ptr %to, align {size}
  ret void
}}
"""
