"""Which loads of a row loop are fetched ahead, and the row that they are fetched for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx

from ..stages import element_bytes, num_elements
from .affine import Axis, extent_of, merged_coefficient
from .context import reachable
from .loops import int_imm
from .rows import Pass, RowNest
from .scalar import Node, is_guard
from .scope import Scope
from .traffic import AHEAD_BYTES, MAX_ROW_BYTES, MIN_FETCHED_BYTES, MIN_ROW_BYTES


def loads_ahead(nest: RowNest, rows: Sequence[Axis]) -> dict[Pass, list[Node]]:
    """What each pass fetches for a later row of the loop over `rows`, the innermost row loop.

    A load is fetched in the last pass that uses it, if the processor would not do so by itself:
    several passes read the row, or the rows do not follow each other in memory.
    """
    last: dict[Node, Pass] = {}
    passes: dict[Node, int] = {}
    for one in nest.passes:
        nodes = reachable(root.node for root in one.roots)
        if not one.group or one.outer or any(is_guard(node) for node in nodes):
            continue
        for node in nodes:
            if node.kind == "load":
                last[node] = one
                passes[node] = passes.get(node, 0) + 1
    found: dict[Pass, list[Node]] = {}
    for load, one in last.items():
        if _is_worth_it(load, one, rows, passes[load] > 1):
            found.setdefault(one, []).append(load)
    return found


def _is_worth_it(load: Node, one: Pass, rows: Sequence[Axis], is_reread: bool) -> bool:
    buffer, offset = load.payload
    size = element_bytes(buffer)
    if num_elements(buffer) * size < MIN_FETCHED_BYTES:
        return False
    if not MIN_ROW_BYTES <= one.length * size <= MAX_ROW_BYTES:
        return False
    if load.args and load.args[0].axes & frozenset(one.group):
        return False
    if merged_coefficient(offset, one.group) != 1:
        return False
    if load.args and load.args[0].axes & frozenset(rows):
        return True
    step = merged_coefficient(offset, rows)
    return step is not None and step != 0 and (is_reread or step != one.length)


def row_ahead(scope: Scope, fetched: Mapping[Pass, Sequence[Node]]) -> Scope:
    """The loop of `scope` some rows later; behind its end, its last row.

    What it computes is computed in `scope`.
    """
    assert scope.position is not None
    row_bytes = max(
        one.length * element_bytes(load.payload[0])
        for one, loads in fetched.items()
        for load in loads
    )
    distance = max(1, AHEAD_BYTES // row_bytes)
    end = int_imm(extent_of(scope.group) - 1)
    position = scope.keep("ahead", tirx.min(scope.position + int_imm(distance), end))
    later = Scope(scope.parent, scope.group, position)
    later.statements = scope.statements
    return later
