"""Gives every AllReduce a gradient of its own.

    g = ...                              g = ...
    a = allreduce(g)             ->      g1 = g * 1
    return (update(a), g)                a = allreduce(g1)
                                         return (update(a), g)

An AllReduce works in place. Where somebody else reads its input too (or a view of it, or main
returns it, or it is no computed value), that reader would see the average instead of the local one.
"""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax
from tvm.ir import Call

from disco_fuse.bindings import allreduce_input, is_op, reduction_of

# Relax operators whose result shares the memory of their first argument once they are lowered.
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


@tvm.transform.module_pass(opt_level=0, name="OwnGradients")
class OwnGradients:
    """Copy what an AllReduce of main reduces, unless the AllReduce is its only reader."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Called by TVM."""
        main = mod["main"]
        bindings = {b.var: b for block in main.body.blocks for b in block.bindings}
        reads: Counter[relax.Var] = Counter()
        for binding in bindings.values():
            reads.update(relax.analysis.used_vars(binding.value))
        reads.update(relax.analysis.used_vars(main.body.body))
        blocks = []
        for block in main.body.blocks:
            rewritten: list[relax.Binding] = []
            for binding in block.bindings:
                if reduction_of(binding.value) is None or _is_own(binding.value, bindings, reads):
                    rewritten.append(binding)
                else:
                    rewritten += _reduce_a_copy(binding)
            blocks.append(type(block)(rewritten))
        body = relax.SeqExpr(blocks, main.body.body)
        own = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        functions = {gv: own if func.same_as(main) else func for gv, func in mod.functions.items()}
        return relax.transform.Normalize()(tvm.IRModule(functions, attrs=mod.attrs))


def _is_own(
    allreduce: Call, bindings: dict[relax.Var, relax.VarBinding], reads: Counter[relax.Var]
) -> bool:
    """Whether nobody but ``allreduce`` reads the memory it reduces."""
    var = allreduce_input(allreduce)
    while isinstance(var, relax.Var) and var in bindings and reads[var] == 1:
        value = bindings[var].value
        if isinstance(value, relax.Var | relax.TupleGetItem):
            var = value.tuple_value if isinstance(value, relax.TupleGetItem) else value
        elif any(is_op(value, name) for name in _VIEWS) or _is_legalised_view(value):
            var = _first_argument(value)
        else:
            return isinstance(value, Call)
    return False


def _is_legalised_view(value: relax.Expr) -> bool:
    """A reshape that is a kernel already; its name is all that is known of it here."""
    if not is_op(value, "relax.call_tir"):
        return False
    name = value.args[0].name_hint
    return any(name.startswith(view.removeprefix("relax.")) for view in _VIEWS)


def _first_argument(call: Call) -> relax.Expr:
    if is_op(call, "relax.call_tir"):
        args = call.args[1]
        return args.fields[0] if isinstance(args, relax.Tuple) else args
    return call.args[0]


def _reduce_a_copy(binding: relax.VarBinding) -> list[relax.VarBinding]:
    call = binding.value
    gradient = allreduce_input(call)
    one = relax.const(1, str(gradient.ty.dtype.dtype))
    name = gradient.name if isinstance(gradient, relax.Var) else "gradient"
    copy = relax.DataflowVar(f"{name}_own", gradient.ty)
    if is_op(call, "relax.call_dps_packed"):
        arguments = relax.Tuple([copy, *call.args[1].fields[1:]])
        args = [call.args[0], arguments, *call.args[2:]]
    else:
        args = [copy, *call.args[1:]]
    reduced = Call(call.op, args, call.attrs, call.ty_args)
    return [
        relax.VarBinding(copy, relax.op.multiply(gradient, one)),
        relax.VarBinding(binding.var, reduced),
    ]
