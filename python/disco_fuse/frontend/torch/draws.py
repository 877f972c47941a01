"""Which operators of a model draw random numbers, and whether torch's joint graph keeps them.

A dropout that is lost would leave a model that trains, only worse, so the draws are counted before
and after.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend.torch.provenance import origin_of
from disco_fuse.frontend.torch.verified import RANDOM_OPERATORS

# Operators of a forward graph that become exactly one of RANDOM_OPERATORS in the joint graph.
_KEPT = frozenset(
    {
        "aten.alpha_dropout.default",
        "aten.bernoulli.default",
        "aten.bernoulli.p",
        "aten.bernoulli_.float",
        "aten.dropout.default",
        "aten.dropout_.default",
        "aten.feature_alpha_dropout.default",
        "aten.feature_dropout.default",
        "aten.native_dropout.default",
        "aten.rand.default",
        "aten.rand_like.default",
        "aten.scaled_dot_product_attention.default",
    }
)


def check_draws(program: torch.export.ExportedProgram) -> int:
    """The number of draws in a forward program.

    Raises
    ------
    UnsupportedOperatorError
        If an operator draws, and is none that the joint graph is known to keep.
    """
    count = 0
    for node in program.graph.nodes:
        if node.op != "call_function" or not _draws(node):
            continue
        if str(node.target) not in _KEPT:
            raise UnsupportedOperatorError(
                f"operator {node.target} (from {origin_of(node)}) draws random numbers, and either "
                "torch's joint graph loses them or there is no verified translation; importing "
                "dropout as the identity would be wrong. Set its probability to 0, call .eval() on "
                "that module, or use nn.Dropout, F.dropout, bernoulli or rand."
            )
        count += 1
    return count


def check_no_draw_is_lost(joint: torch.export.ExportedProgram, expected: int) -> None:
    """UnsupportedOperatorError unless the joint graph has the forward program's number of draws."""
    found = [str(n.target) for n in joint.graph.nodes if n.op == "call_function" and _draws(n)]
    if len(found) != expected:
        raise UnsupportedOperatorError(
            f"the model draws random numbers in {expected} places, but torch's joint graph in "
            f"{len(found)} ({sorted(set(found))}): a dropout was lost or added"
        )


def draws_random_numbers(graph: fx.Graph) -> bool:
    """Whether a joint graph needs a source of random numbers."""
    return any(str(node.target) in RANDOM_OPERATORS for node in graph.nodes)


def _draws(node: fx.Node) -> bool:
    """Whether the operator is random, and not switched off by its probability or train flag."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    schema = target._schema.arguments
    values: dict[str, Any] = {a.name: a.default_value for a in schema if a.has_default_value()}
    values |= {a.name: value for a, value in zip(schema, node.args, strict=False)} | node.kwargs
    trains = values.get("train", values.get("training", True))
    names = [name for name in ("p", "dropout", "dropout_p") if name in values]
    if "bernoulli" in str(target) or not names:
        return True
    return values[names[0]] != 0 and trains is not False
