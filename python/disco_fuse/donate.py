"""Updates in place: an output donated to a parameter is written into that parameter's buffer.

    before                                       after
    w_new = call_tir(update, (w, g), out=w's)    update(w, g, w)
    return (loss, w_new)                         return (loss,)

Runs on a non-dataflow main, after FuseTIR and before CallTIRRewrite would allocate the outputs.
Every reader of ``w`` stands before the update: extraction made that an edge of the graph; here it
is checked once more, because a wrong answer would be silent.
"""

from __future__ import annotations

from collections import defaultdict

import tvm
from tvm import relax
from tvm.ir import Call

from disco_fuse.bindings import call_inputs, is_op, returned_values
from disco_fuse.extract import DONATED_ATTR
from disco_fuse.kernels.cpu import without_noalias


@tvm.transform.module_pass(opt_level=0, name="DonateBuffers")
class DonateBuffers:
    """Write donated outputs in place and drop them from what main returns.

    The attribute ``disco_fuse.donated`` of main lists [parameter index, output index, ...].
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        main = mod["main"]
        if not main.attrs or DONATED_ATTR not in main.attrs:
            return mod
        return _Donation(mod).run()


class _Donation:
    """The rewrite of one main."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.main: relax.Function = mod["main"]
        self.bindings = [b for block in self.main.body.blocks for b in block.bindings]
        glue_types = relax.Var | relax.Tuple | relax.TupleGetItem
        self.glue = {b.var: b for b in self.bindings if isinstance(b.value, glue_types)}
        self.outputs = returned_values(self.main, self.glue)
        self.replaced: dict[relax.Expr, relax.Expr] = {}
        self.in_place: dict[relax.Var, dict[int, relax.Var]] = defaultdict(dict)
        self.donated_outputs: set[int] = set()

    def run(self) -> tvm.IRModule:
        flat = [int(i) for i in self.main.attrs[DONATED_ATTR]]
        for param_index, output_index in zip(flat[::2], flat[1::2], strict=True):
            self._plan(self.main.params[param_index], output_index)
        builder = relax.BlockBuilder(self._kernels())
        params = [relax.Var(param.name, param.ty) for param in self.main.params]
        self.replaced.update(zip(self.main.params, params, strict=True))
        hidden = ("global_symbol", DONATED_ATTR)
        attrs = {k: v for k, v in self.main.attrs.items() if k not in hidden}
        with builder.function("main", params, attrs=attrs, pure=False):
            written: set[relax.Var] = set()
            for binding in self.bindings:
                self._check_not_read_after_write(binding, written)
                self._write(binding, builder)
                written |= set(self.in_place.get(binding.var, {}).values())
            kept = [v for k, v in enumerate(self.outputs) if k not in self.donated_outputs]
            builder.emit_func_output(relax.Tuple([self._replace(value) for value in kept]))
        return builder.get().with_attrs(self.mod.attrs or {})

    def _plan(self, param: relax.Var, output_index: int) -> None:
        output = self.outputs[output_index]
        index = 0
        if isinstance(output, relax.Var) and output in self.glue:
            value = self.glue[output].value
            if isinstance(value, relax.TupleGetItem):
                output, index = value.tuple_value, value.index
        producer = next((b for b in self.bindings if b.var.same_as(output)), None)
        if producer is None or not is_op(producer.value, "relax.call_tir"):
            raise ValueError(
                f"output {output_index}, donated to parameter {param.name}, is not the result of a "
                "kernel, so it cannot be written into the parameter's buffer"
            )
        if index in self.in_place[producer.var]:
            raise ValueError(
                f"output {output_index} is donated to {param.name} and to "
                f"{self.in_place[producer.var][index].name}; one output updates one parameter"
            )
        self.in_place[producer.var][index] = param
        self.donated_outputs.add(output_index)

    def _kernels(self) -> tvm.IRModule:
        """All other functions; those that now write over an input may not assume no aliasing."""
        names = {b.value.args[0].name_hint for b in self.bindings if b.var in self.in_place}
        functions = {}
        for global_var, func in self.mod.functions.items():
            if global_var.name_hint != "main":
                aliased = global_var.name_hint in names
                functions[global_var] = without_noalias(func) if aliased else func
        return tvm.IRModule(functions)

    def _check_not_read_after_write(
        self, binding: relax.VarBinding, written: set[relax.Var]
    ) -> None:
        if not written:
            return
        reads = set(relax.analysis.free_vars(binding.value)) & written
        if reads:
            names = sorted(var.name for var in reads)
            raise ValueError(f"{binding.var.name} reads {names} after they were updated in place")

    def _write(self, binding: relax.VarBinding, builder: relax.BlockBuilder) -> None:
        call = binding.value
        if binding.var not in self.in_place:
            value = self._replace(call)
            if isinstance(call, relax.Var | relax.Tuple):
                self.replaced[binding.var] = value
            elif isinstance(value, relax.TupleGetItem) and isinstance(
                value.tuple_value, relax.Tuple
            ):
                self.replaced[binding.var] = value.tuple_value.fields[value.index]
            else:
                self.replaced[binding.var] = builder.emit(value, binding.var.name)
            return
        inputs = [self._replace(argument) for argument in call_inputs(call)]
        types = binding.var.ty
        fields = list(types.fields) if isinstance(types, relax.TupleType) else [types]
        outputs = []
        for index, ty in enumerate(fields):
            param = self.in_place[binding.var].get(index)
            outputs.append(builder.emit(_allocate(ty)) if param is None else self.replaced[param])
        nothing = relax.TupleType([])
        builder.emit(Call(call.args[0], inputs + outputs, ty_args=[nothing]), "_")
        is_tuple = isinstance(types, relax.TupleType)
        self.replaced[binding.var] = relax.Tuple(outputs) if is_tuple else outputs[0]

    def _replace(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._replace(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._replace(expr.tuple_value), expr.index)
        if isinstance(expr, Call):
            args = [self._replace(argument) for argument in expr.args]
            return Call(expr.op, args, expr.attrs, expr.ty_args)
        return self.replaced.get(expr, expr) if isinstance(expr, relax.Var) else expr


def _allocate(ty: relax.TensorType) -> Call:
    return relax.op.builtin.alloc_tensor(ty.shape, str(ty.dtype.dtype), 0)
