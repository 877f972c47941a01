"""Rule `pointwise`: one thread per element, for all roots of a nest that reduce nothing.

::

    p = block * 256 + thread            # neighbours in a warp are neighbours in memory
    if p < count:
        a[p] = ...                      # every root of the nest; a value that another root
        b[p] = f(a's value)             # reads stays in a register
"""

from __future__ import annotations

from tvm import tirx

from ..cpu.affine import extent_of
from ..cpu.context import DeclinedError
from ..cpu.loops import int_imm
from ..cpu.rows import RowNest
from ..cpu.scope import count_uses
from .context import WARP, DeviceKernel, DeviceScope, ceil_div, guarded, launch, within

THREADS = 256


def emit(nest: RowNest, kernel: DeviceKernel) -> list[tirx.Stmt]:
    """The launch of a nest.

    Raises
    ------
    DeclinedError
        When the nest reduces, or its roots have rows of different lengths.
    """
    if len(nest.passes) != 1 or nest.passes[0].reductions:
        raise DeclinedError("more than one pass over a row")
    (only,) = nest.passes
    group = (*nest.row_axes, *only.group)
    count = extent_of(group)
    threads = min(THREADS, ceil_div(count, WARP) * WARP)
    blocks = ceil_div(count, threads)

    def body(block: tirx.Expr, x: tirx.Expr, _y: tirx.Expr) -> list[tirx.Stmt]:
        position = block * int_imm(threads) + x if blocks > 1 else x
        uses = count_uses(root.node for root in only.roots)
        scope = DeviceScope(None, group, position, buffers=kernel.buffers, uses=uses)
        stores: list[tirx.Stmt] = []  # after every load: an output may be one of the inputs
        for root in only.roots:
            value = scope.keep("e", scope.value(root.node))
            scope.values[root.result] = value
            if root.buffer in kernel.needed:
                stores.append(kernel.store(root.buffer, scope.offset(root.offset), value))
        inside = within(position, count, blocks * threads)
        return guarded(inside, [*scope.statements, *stores])

    return [launch(blocks, (threads, 1), body)]
