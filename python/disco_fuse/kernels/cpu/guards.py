"""Cutting a row where a branch changes sides.

Concatenation and padding choose by position: ``if j < 12: a[j] else: b[j - 12]``. Between two such
positions the condition is constant, so each piece of the row is a plain vector loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tvm.ir import prim

from .affine import Axis
from .context import reachable
from .scalar import Node, ScalarGraph, as_affine, is_guard

MAX_PIECES = 8


def pieces(nodes: Iterable[Node], axis: Axis) -> list[tuple[int, int]]:
    """Half-open ranges of `axis` between the positions where a branch changes sides."""
    cuts = {0, axis.extent}
    for node in reachable(nodes):
        if is_guard(node):
            for condition in reachable([node.args[0]]):
                cut = _cut(condition, axis)
                if cut is not None and 0 < cut < axis.extent:
                    cuts.add(cut)
    if len(cuts) > MAX_PIECES + 1:
        return [(0, axis.extent)]
    ordered = sorted(cuts)
    return list(itertools.pairwise(ordered))


def _cut(condition: Node, axis: Axis) -> int | None:
    """First position on the other side of a comparison of `axis` with a constant."""
    if condition.kind not in (prim.LT, prim.LE, prim.GT, prim.GE):
        return None
    left, right = (as_affine(arg) for arg in condition.args)
    if left is None or right is None:
        return None
    difference = left + right.scale(-1)
    factor = difference.coefficient(axis)
    if difference.axes != {axis} or factor not in (1, -1):
        return None
    # j + c < 0 and j + c >= 0 change at j = -c; j + c <= 0 and j + c > 0 one later.
    position = -difference.const * factor
    strict = condition.kind in (prim.LT, prim.GE)
    return position if strict == (factor == 1) else position + 1


def specialize(graph: ScalarGraph, node: Node, axis: Axis, span: tuple[int, int]) -> Node:
    """`node` for positions of `axis` in the half-open range `span`: decided branches are gone."""
    graph.bounds[axis] = (span[0], span[1] - 1)
    try:
        return _rebuild(graph, node, {})
    finally:
        del graph.bounds[axis]


def _rebuild(graph: ScalarGraph, node: Node, done: dict[Node, Node]) -> Node:
    if node in done:
        return done[node]
    if not node.args:
        return node
    if is_guard(node):
        condition = _rebuild(graph, node.args[0], done)
        if condition.kind == "const":
            result = _rebuild(graph, node.args[1 if condition.payload else 2], done)
        else:
            result = node
    elif (
        isinstance(node.kind, type)
        and issubclass(node.kind, prim.BinaryOpExpr | prim.CmpExpr | prim.LogicalExpr)
        and len(node.args) == 2
    ):
        left, right = (_rebuild(graph, a, done) for a in node.args)
        result = graph.binary(node.kind, node.dtype, left, right)
    elif node.kind is prim.Select:
        result = graph.select(node.dtype, *(_rebuild(graph, a, done) for a in node.args))
    else:
        args = [_rebuild(graph, a, done) for a in node.args]
        result = graph.make(node.kind, node.dtype, args, node.payload)
    done[node] = result
    return result
