"""Simplifications of the joint graph that need torch's own view of shapes.

One walk in topological order; each call is looked at after its arguments were simplified:

    view(view(x)) -> view(x)            permute(permute(x)) -> permute(x)
    view, expand, clone, cast, ... that changes nothing -> x
    the same call on the same arguments a second time -> the first one

followed by the removal of what nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_IDENTITY = frozenset(
    {aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default}
)
# Shapes are fixed, so what is asserted of them holds; values (of indices, say) are not checked.
_CHECKS = frozenset({aten._assert_tensor_metadata.default, aten._assert_async.msg})
# Row-major positions do not change, so equal shapes mean equal tensors.
_KEEPS_ORDER = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten._to_copy.default,
    }
)


def simplify(graph: fx.Graph) -> None:
    """Simplify a functional ATen graph (no operator may write to an argument) in place."""
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _CHECKS:
            graph.erase_node(node)
            continue
        _compose_with_producer(node)
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue  # two draws are two draws
        same = node.args[0] if _is_identity(node) else seen.setdefault(_key(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
    graph.eliminate_dead_code()


def _compose_with_producer(node: fx.Node) -> None:
    """Let a view of a view, or a permutation of a permutation, read the original."""
    producer = node.args[0] if node.args else None
    if not isinstance(producer, fx.Node) or not producer.args:
        return
    if node.target is aten.view.default and producer.target is aten.view.default:
        node.args = (producer.args[0], list(node.meta["val"].shape))
    elif node.target is aten.permute.default and producer.target is aten.permute.default:
        inner, outer = _axes(producer), _axes(node)
        node.args = (producer.args[0], [inner[axis] for axis in outer])


def _axes(node: fx.Node) -> list[int]:
    rank = node.meta["val"].dim()
    dims: Sequence[Any] = node.args[1]
    return [int(dim) % rank for dim in dims]


def _is_identity(node: fx.Node) -> bool:
    if node.target in _IDENTITY:
        return True
    if node.target is aten.permute.default:
        axes = _axes(node)
        return axes == sorted(axes)
    if node.target is aten.mul.Tensor and node.args[1] == 1:
        pass  # a number (no node equals it); the dtype may still change
    elif node.target not in _KEEPS_ORDER or not isinstance(node.args[0], fx.Node):
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]
    return bool(before.shape == after.shape and before.dtype == after.dtype)


def _key(node: fx.Node) -> Any:
    """Equal for calls that compute the same; 1, 1.0 and True must not count as the same."""
    return (node.target, _hashable(node.args), _hashable(node.kwargs))


def _hashable(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in sorted(value.items()))
    return (type(value), repr(value))
