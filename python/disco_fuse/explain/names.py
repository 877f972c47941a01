"""How ops and units are named to people, and which op somebody means."""

from __future__ import annotations

from disco_fuse.graph import OpGraph
from disco_fuse.strategy import Unit


def op_name(graph: OpGraph, op: int) -> str:
    """``#12 lv3:add``: the id is what can always be typed back."""
    return f"#{op} {graph.ops[op].name}"


def unit_name(graph: OpGraph, unit: Unit, num_shown: int = 3) -> str:
    """The id of a unit, what its first ops are called, and how many there are."""
    if unit.kind == "bucket":
        names = [graph.ops[op].name.partition(":")[0] for op in unit.ops]
    else:
        names = [graph.ops[op].name.rpartition(":")[2] for op in unit.ops]
    more = len(names) - num_shown
    return f"#{unit.id} " + "+".join(names[:num_shown]) + (f" and {more} more" if more > 0 else "")


def find_op(graph: OpGraph, text: str) -> int:
    """The op that ``text`` names: ``#12``, ``12``, ``lv3:add``, or ``lv3`` if that is unique.

    A group or bucket is named by any of its ops.

    Raises
    ------
    ValueError
        No op or several are called so.
    """
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit():
        if int(number) >= graph.num_ops:
            raise ValueError(f"no op {text!r}: ids are #0 to #{graph.num_ops - 1}")
        return int(number)
    names = [op.name for op in graph.ops]
    found = [i for i, name in enumerate(names) if name == text]
    found = found or [i for i, name in enumerate(names) if name.partition(":")[0] == text]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(op_name(graph, op) for op in found[:5])
        raise ValueError(f"{len(found)} ops are called {text!r}, for instance {some}: give an id")
    near = [i for i, name in enumerate(names) if text and text in name][:5]
    hint = ", ".join(op_name(graph, op) for op in near) or f"ids are #0 to #{graph.num_ops - 1}"
    raise ValueError(f"no op is called {text!r}; near: {hint}")
