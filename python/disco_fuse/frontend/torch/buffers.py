"""Buffers that the model writes (statistics of batch normalisation), made the same on all ranks.

    broadcast:  x' = average(x if rank == 0 else 0) / average(1 if rank == 0 else 0)
    average:    x' = average(x)
    local:      x' = x

An average over ranks is the one collective of a step, so rank 0's value travels as an average in
which the others take part with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tvm import relax

from disco_fuse.frontend.optimizer import Scalars
from disco_fuse.frontend.torch.converters.registry import Expr, dtype_of
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.torch.layout import HALF_DTYPES, identifier

op = relax.op

BufferMode = Literal["broadcast", "average", "local"]
BUFFER_MODES = ("broadcast", "average", "local")


def writes_statistics(joint: JointGraph) -> bool:
    """Whether the model writes buffers that ranks may disagree on."""
    return any(joint.tensors[name].is_floating_point() for name in joint.new_buffers)


def emit_buffers(
    new: Mapping[str, Expr], mode: BufferMode, rank: relax.Var | None, builder: relax.BlockBuilder
) -> tuple[dict[str, Expr], dict[str, relax.Var]]:
    """What is written to the buffers, and what is averaged over ranks for it, by name.

    Parameters
    ----------
    new : mapping
        A rank's own new values. Counters (integers) are the same on all ranks and stay.
    mode : str
    rank : relax.Var or None
        uint32 scalar; needed to broadcast.
    builder : relax.BlockBuilder
    """
    shared = [n for n, value in new.items() if dtype_of(value).startswith(("float", "bfloat"))]
    if mode == "local" or not shared:
        return dict(new), {}
    results, averaged = dict(new), {}
    first = share = None
    if mode == "broadcast":
        assert rank is not None
        first = builder.emit(op.equal(rank, relax.const(0, "uint32")))
        share = builder.emit(op.astype(first, "float32"), name_hint="share_of_rank_0")
        averaged["share_of_rank_0"] = share
    scalars = Scalars(builder)
    for name in shared:
        dtype, value = dtype_of(new[name]), new[name]
        if dtype in HALF_DTYPES:
            value = builder.emit(op.astype(value, "float32"))
        wide = dtype_of(value)
        if first is None:
            sent = op.multiply(value, relax.const(1, wide))
        else:
            sent = op.where(first, value, relax.const(0, wide))
        averaged[name] = builder.emit(sent, name_hint=identifier(f"buffer_{name}"))
        # A value of its own: the average stands in the buffer of what was sent.
        factor = relax.const(1, wide) if share is None else scalars.cast(share, wide)
        result = builder.emit(op.divide(averaged[name], factor))
        results[name] = result if wide == dtype else builder.emit(op.astype(result, dtype))
    return results, averaged
