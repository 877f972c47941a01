"""Gradients as the variables that are averaged over ranks, and the update that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from torch import fx
from tvm import relax

from disco_fuse.frontend.optimizer import Optimizer, Scalars, Trained
from disco_fuse.frontend.torch.converters.registry import Expr, dtype_of
from disco_fuse.frontend.torch.export import JointGraph
from disco_fuse.frontend.torch.layout import HALF_DTYPES, Layout, identifier
from disco_fuse.frontend.torch.micro_batches import Values

op = relax.op


def emit_gradients(
    joint: JointGraph, results: Sequence[Values], builder: relax.BlockBuilder
) -> dict[str, relax.Var]:
    """The variable that is averaged over ranks, for every trained parameter.

    It is the sum over micro-batches. A gradient that the backward pass reads again (or that is no
    computed value) gets a copy of its own: averaging it in place would change what the backward
    pass reads. Half-precision gradients are summed and averaged in float32, where a sum cannot
    overflow.
    """
    gradients: dict[str, relax.Var] = {}
    emitted: dict[fx.Node, relax.Var] = {}
    for name, node in joint.gradients.items():
        if node not in emitted:
            own = [values[node] for values in results]
            emitted[node] = _emit_gradient(joint, node, own, builder, identifier(f"grad_{name}"))
        gradients[name] = emitted[node]
    return gradients


def _emit_gradient(
    joint: JointGraph, node: fx.Node, own: Sequence[Expr], builder: relax.BlockBuilder, hint: str
) -> relax.Var:
    read_again = set(node.users) != {joint.graph.output_node()} or node in (
        joint.loss,
        *joint.outputs,
    )
    if dtype_of(own[0]) in HALF_DTYPES:
        own = [builder.emit(op.astype(value, "float32"), name_hint=hint) for value in own]
    elif len(own) == 1 and (read_again or not isinstance(own[0], relax.DataflowVar)):
        one = relax.const(1, own[0].ty.dtype)
        return builder.emit(op.multiply(own[0], one), name_hint=hint)
    return reduce(lambda a, b: builder.emit(op.add(a, b), name_hint=hint), own)


def emit_total_weight(
    weight: relax.Var, gradients: Mapping[str, relax.Var], builder: relax.BlockBuilder
) -> relax.Var:
    """The sum of a rank's weights, to be averaged over ranks in the gradients' dtype."""
    dtype = dtype_of(next(iter(gradients.values())))
    return builder.emit(op.sum(op.astype(weight, dtype)), name_hint="total_weight")


def emit_weighted_mean(
    gradients: Mapping[str, relax.Var], total: relax.Var, builder: relax.BlockBuilder
) -> dict[str, Expr]:
    """Averages of weighted gradients over the average weight: the weighted mean of all ranks."""
    scalars = Scalars(builder)
    inverse = builder.emit(op.divide(relax.const(1, dtype_of(total)), total))
    return {
        name: builder.emit(op.multiply(gradient, scalars.cast(inverse, dtype_of(gradient))))
        for name, gradient in gradients.items()
    }


def emit_update(
    gradients: Mapping[str, Expr],
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
