"""Modules of TVM's own training passes, in which main is not the function to optimise.

    relax.transform.Gradient makes      f_adjoint(...) -> (outputs of f, (gradient, ...))
    DisCoFuse decides on                main(...) -> (output, ..., averaged gradient, ...)
    the module gets back                f_adjoint(...) -> (outputs of f, (averaged gradient, ...))

relax.training.SetupTrainer makes such a function beside the backbone and the optimizer, which stay
as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from disco_fuse.bindings import reduction_of
from disco_fuse.insert import GRADIENTS

_SUFFIX = "_adjoint"


@dataclass(frozen=True, kw_only=True)
class Adjoint:
    """A function of a module that was taken out of it as main.

    Attributes
    ----------
    name : str
        In the module.
    structure : nested list of int
        Its result, with positions in main's flat result.
    """

    name: str
    structure: Any


def find_adjoint(mod: tvm.IRModule) -> str | None:
    """The function that Gradient made, or None if main is what is to be optimised.

    Main is, if its attribute names gradients or it holds AllReduces, or if nothing was made by
    Gradient.

    Raises
    ------
    ValueError
        If Gradient made several functions.
    """
    functions = {
        gvar.name_hint: func
        for gvar, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }
    main = functions.get("main")
    if main is not None and _is_prepared(main):
        return None
    made = sorted(name for name in functions if name.endswith(_SUFFIX))
    if len(made) > 1:
        raise ValueError(
            f"the module has the adjoint functions {made}; keep one, or call the one to optimise "
            f"'main' and name its gradients in the attribute {GRADIENTS!r}"
        )
    return made[0] if made else None


def _is_prepared(function: relax.Function) -> bool:
    if function.attrs and GRADIENTS in function.attrs:
        return True
    blocks = getattr(function.body, "blocks", [])
    return any(
        reduction_of(binding.value) is not None for block in blocks for binding in block.bindings
    )


def take_out(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, Adjoint]:
    """A module whose main is the function `name` with a flat result, its gradients averaged.

    Gradients are averaged here unless the function says by itself what is: by AllReduces, or by the
    attribute ``disco_fuse.gradients``.

    Raises
    ------
    ValueError
        If the function is not one dataflow block that returns a pair of outputs and gradients.
    """
    function = mod[name]
    blocks = [block for block in function.body.blocks if len(block.bindings) > 0]
    result = function.body.body
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        raise ValueError(f"{name} must be exactly one dataflow block")
    if not isinstance(result, relax.Tuple) or len(result.fields) != 2:
        raise ValueError(f"{name} must return a pair of outputs and gradients, got {result}")
    outputs, gradients = _leaves(result.fields[0]), _leaves(result.fields[1])
    bindings = list(blocks[0].bindings)
    if not _is_prepared(function):
        averages = [relax.DataflowVar(f"gradient_{i}", g.ty) for i, g in enumerate(gradients)]
        bindings += [
            relax.VarBinding(average, relax.op.ccl.allreduce(gradient, "avg", in_group=False))
            for average, gradient in zip(averages, gradients, strict=True)
        ]
        gradients = averages
    flat = [*outputs, *gradients]
    returned = relax.Var("flat", relax.TupleType([value.ty for value in flat]))
    bindings.append(relax.VarBinding(returned, relax.Tuple(flat)))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], returned)
    attrs = {k: v for k, v in (function.attrs or {}).items() if k != "global_symbol"}
    kernels = {g: f for g, f in mod.functions.items() if not isinstance(f, relax.Function)}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    main = relax.Function(function.params, body, returned.ty, function.is_pure)
    builder.add_func(main.with_attrs({**attrs, "global_symbol": "main"}), "main")
    structure = _numbered(result, iter(range(len(flat))))
    return relax.transform.Normalize()(builder.get()), Adjoint(name=name, structure=structure)


def put_back(mod: tvm.IRModule, fused: tvm.IRModule, adjoint: Adjoint) -> tvm.IRModule:
    """`mod` with the main of `fused` in the place that :func:`take_out` took it from.

    Parameters
    ----------
    mod : tvm.IRModule
        What :func:`take_out` was given; its other Relax functions stay.
    fused : tvm.IRModule
        Main with the flat result, and the functions it calls.
    """
    functions = {g: f for g, f in fused.functions.items() if g.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    main = _with_structure(fused["main"], adjoint.structure)
    builder.add_func(main.with_attr("global_symbol", adjoint.name), adjoint.name)
    moved = {
        gvar: builder.add_func(func, gvar.name_hint)
        for gvar, func in mod.functions.items()
        if not isinstance(func, relax.Function)
    }
    for gvar, func in mod.functions.items():
        if isinstance(func, relax.Function) and gvar.name_hint != adjoint.name:
            builder.add_func(_Rename(moved).visit_expr(func), gvar.name_hint)
    result = builder.get().with_attrs(mod.attrs or {})
    return relax.transform.DeadCodeElimination()(result)


def _leaves(expr: relax.Expr) -> list[relax.Expr]:
    if isinstance(expr, relax.Tuple):
        return [leaf for field in expr.fields for leaf in _leaves(field)]
    return [expr]


def _numbered(expr: relax.Expr, positions: Iterator[int]) -> Any:
    if isinstance(expr, relax.Tuple):
        return [_numbered(field, positions) for field in expr.fields]
    return next(positions)


def _with_structure(main: relax.Function, structure: Any) -> relax.Function:
    """The same function with its flat result as nested tuples."""
    flat = main.body.body

    def nested(part: Any) -> relax.Expr:
        if isinstance(part, list):
            return relax.Tuple([nested(one) for one in part])
        return (
            flat.fields[part] if isinstance(flat, relax.Tuple) else relax.TupleGetItem(flat, part)
        )

    result = nested(structure)
    body = relax.SeqExpr(list(main.body.blocks), result)
    attrs = {k: v for k, v in (main.attrs or {}).items() if k != "global_symbol"}
    return relax.Function(main.params, body, result.ty, main.is_pure).with_attrs(attrs)


@relax.expr_functor.mutator
class _Rename(relax.PyExprMutator):  # type: ignore[misc]
    """Lets a function call kernels by the names they have now."""

    def __init__(self, moved: dict[relax.GlobalVar, relax.GlobalVar]) -> None:
        super().__init__()
        self.moved = moved

    def visit_global_var_(self, gvar: relax.GlobalVar) -> relax.GlobalVar:
        """Every mention of a function."""
        return self.moved.get(gvar, gvar)
