"""What a rule must have written to be taken: everything inside launches that a device can run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.tirx import ForKind

from ..stages import element_bytes, num_elements
from .context import Limits

MAX_BLOCKS = 2**31 - 1  # CUDA programming guide: x dimension of a grid, compute capability 3.0 on


class RefusedError(Exception):
    """Why a kernel is no kernel."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    extents
        Blocks and threads by axis, such as ``{"blockIdx.x": 12, "threadIdx.x": 256}``.
    shared_bytes
        Shared memory that a block declares.
    """

    extents: dict[str, int]
    shared_bytes: int

    def count(self, kind: str) -> int:
        """Blocks ("blockIdx") or threads of a block ("threadIdx") over all their axes."""
        return math.prod(n for tag, n in self.extents.items() if tag.startswith(kind))


def verify(statements: Sequence[tirx.Stmt], limits: Limits) -> list[Launch]:
    """Check launches.

    Parameters
    ----------
    statements
        Body of a PrimFunc, or a part of it.
    limits
        Of the device.

    Returns
    -------
    list of Launch
        In the order in which the host starts them.

    Raises
    ------
    RefusedError
        A statement stands outside a launch (it would run on the host, on device memory), or a
        launch has too many threads, blocks, or bytes of shared memory, or no blocks at all.
    """
    found = launches_of(statements)
    for one in found:
        _check(one, limits)
    return found


def launches_of(statements: Sequence[tirx.Stmt]) -> list[Launch]:
    """The launches of scheduled statements, in order; RefusedError for work of the host."""
    return [launch for statement in statements for launch in _host(statement, ())]


def _host(statement: tirx.Stmt, allocated: tuple[tirx.Buffer, ...]) -> list[Launch]:
    """Launches of a statement of the host."""
    if isinstance(statement, s_tir.SBlockRealize):
        block = statement.block
        if len(block.iter_vars) or block.init is not None:
            raise RefusedError(f"block {block.name_hint} runs on the host")
        return _host(block.body, (*allocated, *block.alloc_buffers))
    if isinstance(statement, tirx.SeqStmt):
        return [launch for child in statement.seq for launch in _host(child, allocated)]
    if isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer):
        return []
    if isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm):
        return []  # nothing to do
    if _thread_tag(statement) is not None:
        extents: dict[str, int] = {}
        shared = {buffer: None for buffer in allocated if _is_shared(buffer)}
        _device(statement, extents, shared)
        size = sum(num_elements(b) * element_bytes(b) for b in shared)
        return [Launch(extents=extents, shared_bytes=size)]
    if isinstance(statement, tirx.AttrStmt):
        return _host(statement.body, allocated)
    raise RefusedError(f"{type(statement).__name__} runs on the host")


def _device(node: tirx.Stmt, extents: dict[str, int], shared: dict[tirx.Buffer, None]) -> None:
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


def _check(launch: Launch, limits: Limits) -> None:
    threads, blocks = launch.count("threadIdx"), launch.count("blockIdx")
    if not any(tag.startswith("blockIdx") for tag in launch.extents):
        raise RefusedError(f"bound to {sorted(launch.extents)} only, not to blocks")
    if threads > limits.max_threads:
        raise RefusedError(f"{threads} threads a block; at most {limits.max_threads}")
    if not 1 <= blocks <= MAX_BLOCKS:
        raise RefusedError(f"{blocks} blocks; allowed: 1 to {MAX_BLOCKS}")
    if launch.shared_bytes > limits.max_shared_bytes:
        raise RefusedError(f"{launch.shared_bytes} bytes shared; at most {limits.max_shared_bytes}")


def _thread_tag(node: tirx.Stmt) -> str | None:
    """The thread axis that a statement opens."""
    if isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
        return str(node.node.thread_tag)
    if isinstance(node, tirx.For) and node.kind == ForKind.THREAD_BINDING:
        return str(node.thread_binding.thread_tag)
    return None


def _is_shared(buffer: tirx.Buffer) -> bool:
    return str(buffer.scope()).startswith("shared")
