"""How ops and units are named to people, and which op somebody means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches

from disco_fuse.explain.roles import roles
from disco_fuse.graph import Op, OpGraph
from disco_fuse.strategy import Unit

_OWN = "disco_fuse.kernels."
_BUFFER = "buffer_"
# Signatures of library calls: kind, dtype, shapes of both operands and the result, and the plan.
_CALLS, _NUM_PARTS = ("matmul", "convolution"), 6
_NUM_NEAR = 5


def op_name(graph: OpGraph, op: int) -> str:
    """``#12 lv3:add``: the id is what can always be typed back."""
    return f"#{op} {graph.ops[op].name.replace(_OWN, '')}"


def unit_name(graph: OpGraph, unit: Unit, num_shown: int = 3) -> str:
    """The id of a unit, what it does, and the parameters it is about, if the graph tells."""
    return units_name(graph, [unit], num_shown)


def units_name(graph: OpGraph, units: Sequence[Unit], num_shown: int = 3) -> str:
    """:func:`unit_name` of the first unit, with the parameters that all of them are about.

    ``#643 add*2+sum and 4 more (grad_head_bias and 2 more)``. The units should do the same.
    """
    first = units[0]
    if first.kind == "bucket":
        names = [graph.ops[op].name.partition(":")[0] for op in first.ops]
        return f"#{first.id} {_listed(names, num_shown)}"
    text = f"#{first.id} {unit_text(graph, first, num_shown)}"
    known = roles(graph)
    about = list(dict.fromkeys(known[op] for unit in units for op in unit.ops if op in known))
    # What is made tells more than what is read.
    about.sort(key=lambda role: not role.startswith("grad_"))
    return f"{text} ({_listed(about, 1, ', ')})" if about else text


def unit_text(graph: OpGraph, unit: Unit, num_shown: int = 3) -> str:
    """What a kernel or library call does, the same for all that do the same: ``add*2+sum``."""
    counts = Counter(op_text(graph.ops[op]) for op in unit.ops)
    shown = [text if n == 1 else f"{text}*{n}" for text, n in list(counts.items())[:num_shown]]
    more = len(unit.ops) - sum(list(counts.values())[:num_shown])
    return "+".join(shown) + (f" and {more} more" if more > 0 else "")


def op_text(op: Op) -> str:
    """What an op does: ``add``, or ``matmul 6144x768 by 768x3072`` of a library call.

    Library calls have their operands in their signature, see
    :func:`disco_fuse.kernels.library.matmul_signature` and ``convolution_signature``; of a batch
    of matrices, ``576 matmul 128x64 by 64x128``. TVM numbers functions of one name.
    """
    parts = op.signature.split("/")
    if len(parts) == _NUM_PARTS and parts[0] == "matmul":
        num_axes, m, n, k, *rest = (int(number) for number in parts[5].split(","))
        many = math.prod(rest[:num_axes])
        return f"{'' if many == 1 else f'{many} '}matmul {m}x{k} by {k}x{n}"
    if len(parts) == _NUM_PARTS and parts[0] == "convolution":
        return f"convolution {parts[2]} by {parts[3]}"
    _, colon, text = op.name.rpartition(":")
    return text.removeprefix(_OWN).rstrip("0123456789") if colon else text


def unit_shape(graph: OpGraph, unit: Unit) -> str:
    """Elements of the largest value that a unit computes, with its axes or rows if known."""
    op = max((graph.ops[op] for op in unit.ops), key=lambda op: op.num_elements)
    parts = op.signature.split("/")
    if parts[0] in _CALLS and len(parts) == _NUM_PARTS:
        return parts[4]
    if op.rows > 1 and op.num_elements > op.rows and op.num_elements % op.rows == 0:
        return f"{op.rows}x{op.num_elements // op.rows}"
    return str(op.num_elements)


def contents(graph: OpGraph, unit: Unit) -> str:
    """How many gradients and buffers a bucket holds: ``20 gradients``, ``1 buffer``."""
    kinds = Counter(
        "buffer" if graph.ops[op].name.startswith(_BUFFER) else "gradient" for op in unit.ops
    )
    return ", ".join(counted(n, kind) for kind, n in sorted(kinds.items()))


def counted(number: int, what: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def bytes_text(num_bytes: int) -> str:
    """``512 B``, ``3.1 KB`` or ``93.76 MB``."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1e3:.1f} KB"
    return f"{num_bytes / 1e6:.2f} MB"


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
        some = ", ".join(op_name(graph, op) for op in found[:_NUM_NEAR])
        raise ValueError(f"{len(found)} ops are called {text!r}, for instance {some}: give an id")
    hint = ", ".join(op_name(graph, op) for op in _near(names, text))
    hint = hint or f"ids are #0 to #{graph.num_ops - 1}"
    raise ValueError(f"no op is called {text!r}; near: {hint}")


def _near(names: Sequence[str], text: str) -> list[int]:
    """Ops whose names contain ``text``, or else are alike."""
    inside = [i for i, name in enumerate(names) if text and text in name]
    if inside:
        return inside[:_NUM_NEAR]
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        for spelling in (name, *name.split(":")):
            first.setdefault(spelling, i)
    return list(dict.fromkeys(first[name] for name in get_close_matches(text, first, _NUM_NEAR)))


def _listed(names: Sequence[str], num_shown: int, between: str = "+") -> str:
    more = len(names) - num_shown
    return between.join(names[:num_shown]) + (f" and {more} more" if more > 0 else "")
