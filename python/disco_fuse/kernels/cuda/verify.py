"""What a rule must have written to be taken: everything inside launches that a device can run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.tirx import ForKind

from ..stages import element_bytes, num_elements
from .context import Limits

MAX_BLOCKS = 2**31 - 1  # CUDA programming guide: x dimension of a grid, compute capability 3.0 on


class RefusedError(Exception):
    """Why a kernel is no kernel."""


def verify(statements: Sequence[tirx.Stmt], limits: Limits) -> int:
    """Check launches and count them.

    Parameters
    ----------
    statements
        Body of a PrimFunc, or a part of it.
    limits
        Of the device.

    Returns
    -------
    int
        Launches.

    Raises
    ------
    RefusedError
        A store stands outside a launch (it would run on the host, on device memory), or a launch
        has too many threads, blocks, or bytes of shared memory, or no threads at all.
    """
    return sum(_host(statement, limits, ()) for statement in statements)


def _host(statement: tirx.Stmt, limits: Limits, allocated: tuple[tirx.Buffer, ...]) -> int:
    """Launches of a statement of the host."""
    if isinstance(statement, s_tir.SBlockRealize):
        block = statement.block
        if block.iter_vars or block.init is not None:
            raise RefusedError(f"block {block.name_hint} runs on the host")
        return _host(block.body, limits, (*allocated, *block.alloc_buffers))
    if isinstance(statement, tirx.SeqStmt):
        return sum(_host(child, limits, allocated) for child in statement.seq)
    if isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer):
        return 0
    if _thread_tag(statement) is not None:
        extents: dict[str, int] = {}
        shared: dict[tirx.Buffer, None] = {}
        _device(statement, extents, shared)
        for buffer in allocated:
            if _is_shared(buffer):
                shared[buffer] = None
        _check(extents, sum(num_elements(b) * element_bytes(b) for b in shared), limits)
        return 1
    if isinstance(statement, tirx.AttrStmt):
        return _host(statement.body, limits, allocated)
    raise RefusedError(f"{type(statement).__name__} runs on the host")


def _device(
    node: tirx.Stmt, extents: dict[str, int], shared: dict[tirx.Buffer, None]
) -> None:
    """Collect thread extents and shared buffers of a launch."""
    tag = _thread_tag(node)
    if tag is not None:
        extent = node.value if isinstance(node, tirx.AttrStmt) else node.extent
        if not isinstance(extent, tirx.IntImm):
            raise RefusedError(f"{tag} has extent {extent}, which is not constant")
        if extents.setdefault(tag, int(extent)) != int(extent):
            raise RefusedError(f"{tag} has extents {extents[tag]} and {int(extent)}")
    if isinstance(node, tirx.AllocBuffer) and _is_shared(node.buffer):
        shared[node.buffer] = None
    if isinstance(node, s_tir.SBlockRealize):
        shared.update({b: None for b in node.block.alloc_buffers if _is_shared(b)})
    for child in _children(node):
        _device(child, extents, shared)


def _children(node: tirx.Stmt) -> Sequence[tirx.Stmt]:
    if isinstance(node, tirx.SeqStmt):
        return list(node.seq)
    if isinstance(node, tirx.IfThenElse):
        return [node.then_case] + ([] if node.else_case is None else [node.else_case])
    if isinstance(node, s_tir.SBlockRealize):
        init = [] if node.block.init is None else [node.block.init]
        return [*init, node.block.body]
    if isinstance(node, tirx.For | tirx.AttrStmt | tirx.While):
        return [node.body]
    return []


def _check(extents: dict[str, int], shared_bytes: int, limits: Limits) -> None:
    threads = math.prod(n for tag, n in extents.items() if tag.startswith("threadIdx"))
    blocks = math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx"))
    if not any(tag.startswith("blockIdx") for tag in extents):
        raise RefusedError(f"bound to {sorted(extents)} only, not to blocks")
    if threads > limits.max_threads:
        raise RefusedError(f"{threads} threads a block; at most {limits.max_threads}")
    if not 1 <= blocks <= MAX_BLOCKS:
        raise RefusedError(f"{blocks} blocks; allowed: 1 to {MAX_BLOCKS}")
    if shared_bytes > limits.max_shared_bytes:
        raise RefusedError(f"{shared_bytes} bytes shared; at most {limits.max_shared_bytes}")


def _thread_tag(node: tirx.Stmt) -> str | None:
    """The thread axis that a statement opens."""
    if isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
        return str(node.node.thread_tag)
    if isinstance(node, tirx.For) and node.kind == ForKind.THREAD_BINDING:
        return str(node.thread_binding.thread_tag)
    return None


def _is_shared(buffer: tirx.Buffer) -> bool:
    return str(buffer.scope()).startswith("shared")
