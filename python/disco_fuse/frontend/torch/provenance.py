"""Says where in the user's model an operator comes from.

Torch records module path and source line on the exported forward graph but loses both when it
retraces it into the joint graph, so a joint node is matched with its forward counterpart: the k-th
call of an operator in one is the k-th in the other. A node of the backward pass is described by
the nearest forward node or parameter that it reads.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from disco_fuse.errors import UnsupportedOperatorError

_ADVICE = (
    "Rewrite the model without it, or add a converter (disco_fuse/frontend/torch/converters), a "
    "numeric test, and its name in disco_fuse/frontend/torch/verified.py."
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Module path ("" is the model itself) and source position of a forward operator."""

    module: str
    source: str

    def __str__(self) -> str:
        where = f"module '{self.module}'" if self.module else "the model itself"
        return f"{where}, {self.source}" if self.source else where


def origin_of(node: fx.Node) -> Origin:
    """What torch recorded on a node of an exported forward graph."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    path = "" if path == "model" else path.removeprefix("model.")
    return Origin(module=path, source=_innermost_user_line(node.meta.get("stack_trace") or ""))


def _innermost_user_line(stack_trace: str) -> str:
    """The last frame outside torch's own files, as ``file:line: code``."""
    frames: list[tuple[str, str]] = []
    for line in stack_trace.splitlines():
        stripped = line.strip()
        if stripped.startswith('File "'):
            file, number = stripped.split('"')[1], stripped.split("line ")[1].split(",")[0]
            frames.append((f"{file}:{number}", ""))
        elif frames:
            frames[-1] = (frames[-1][0], stripped)
    outside = [frame for frame in frames if "/torch/" not in frame[0]]
    position, code = (outside or frames or [("", "")])[-1]
    return f"{position}: {code}" if code else position


def number_calls(graph: fx.Graph) -> None:
    """Record how many calls of the same operator come before each node.

    Must run before anything removes nodes; :func:`unsupported` matches nodes by it.
    """
    counts: dict[Any, int] = defaultdict(int)
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["call_number"] = counts[node.target]
            counts[node.target] += 1


def unsupported(
    node: fx.Node, reason: str, forward: torch.export.ExportedProgram
) -> UnsupportedOperatorError:
    """The error for a node of the joint graph; `forward` is the program it was traced from."""
    origins = _forward_origins(node.graph, forward)
    if node in origins:
        where = str(origins[node])
    else:
        where = f"the backward pass of {_nearest(node, origins)}"
    return UnsupportedOperatorError(
        f"operator {node.target} (node '{node.name}', from {where}): {reason} {_ADVICE}"
    )


def _forward_origins(
    joint: fx.Graph, forward: torch.export.ExportedProgram
) -> dict[fx.Node, Origin]:
    """Origins of those nodes of the joint graph that compute the loss and have a counterpart."""
    from torch._decomp import core_aten_decompositions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decomposed = forward.run_decompositions(core_aten_decompositions())
    recorded: dict[Any, list[fx.Node]] = defaultdict(list)
    for node in decomposed.graph.nodes:
        if node.op == "call_function":
            recorded[node.target].append(node)
    origins = {}
    for node in joint.nodes:
        # The forward part comes first in the joint graph, so surplus calls are backward ones.
        if node.op == "call_function" and node.meta["call_number"] < len(recorded[node.target]):
            origins[node] = origin_of(recorded[node.target][node.meta["call_number"]])
    return origins


def _nearest(node: fx.Node, origins: dict[fx.Node, Origin]) -> str:
    """Breadth first through the arguments to something the user wrote."""
    queue, visited = [node], {node}
    for current in queue:
        for argument in current.all_input_nodes:
            if "tensor_name" in argument.meta:
                return f"what uses '{argument.meta['tensor_name']}'"
            if argument in origins:
                return str(origins[argument])
            if argument not in visited:
                visited.add(argument)
                queue.append(argument)
    return "the model"
