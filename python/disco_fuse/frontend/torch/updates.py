"""Gradients as the variables that are averaged over ranks, and the update that reads them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx
from tvm import relax

from disco_fuse.frontend.optimizer import Optimizer, Trained
from disco_fuse.frontend.torch.converters.registry import Expr, dtype_of
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.torch.layout import HALF_DTYPES, Layout, identifier

op = relax.op


def emit_gradients(
    joint: JointGraph, values: Mapping[fx.Node, Expr], builder: relax.BlockBuilder
) -> dict[str, relax.Var]:
    """The variable that is averaged over ranks, for every trained parameter.

    A gradient that the backward pass reads again (or that is no computed value) gets a copy of its
    own: averaging it in place would change what the backward pass reads. Half-precision gradients
    are averaged in float32, where a sum over ranks cannot overflow.
    """
    output = joint.graph.output_node()
    gradients: dict[str, relax.Var] = {}
    copies: dict[fx.Node, relax.Var] = {}
    for name, node in joint.gradients.items():
        value, hint = values[node], identifier(f"grad_{name}")
        read_again = set(node.users) != {output} or node in (joint.loss, *joint.outputs)
        if dtype_of(value) in HALF_DTYPES:
            if node not in copies:
                copies[node] = builder.emit(op.astype(value, "float32"), name_hint=hint)
        elif (read_again or not isinstance(value, relax.DataflowVar)) and node not in copies:
            one = relax.const(1, value.ty.dtype)
            copies[node] = builder.emit(op.multiply(value, one), name_hint=hint)
        gradients[name] = copies.get(node, value)
    return gradients


def emit_update(
    gradients: Mapping[str, relax.Var],
    arguments: Mapping[str, relax.Var],
    layout: Layout,
    builder: relax.BlockBuilder,
    optimizer: Optimizer,
) -> dict[str, Expr]:
    """Emit the update of all parameters; new parameters and new state by name.

    Raises
    ------
    ValueError
        If the optimizer returns other state than it declared.
    """
    trained = [
        Trained(
            parameter=_cast(builder, arguments[name], dtype_of(gradients[name])),
            gradient=gradients[name],
            state={s.name: arguments[full] for full, s in layout.states[name].items()},
        )
        for name in layout.trained
    ]
    shared = {s.name: full for full, s in layout.shared.items()}
    update = optimizer.emit(builder, trained, {s: arguments[full] for s, full in shared.items()})
    new: dict[str, Expr] = {}
    for name, parameter, state in zip(
        layout.trained, update.parameters, update.states, strict=True
    ):
        owned = {s.name: full for full, s in layout.states[name].items()}
        if set(state) != set(owned):
            raise ValueError(
                f"{optimizer} returned the state {sorted(state)} for '{name}', declared was "
                f"{sorted(owned)}"
            )
        new[name] = _cast(builder, parameter, dtype_of(arguments[name]))
        new |= {owned[short]: value for short, value in state.items()}
    unknown = set(update.shared) - set(shared)
    if unknown:
        raise ValueError(f"{optimizer} returned the shared state {sorted(unknown)} undeclared")
    return new | {shared[short]: value for short, value in update.shared.items()}


def _cast(builder: relax.BlockBuilder, value: Expr, dtype: str) -> Expr:
    return value if dtype_of(value) == dtype else builder.emit(op.astype(value, dtype))
