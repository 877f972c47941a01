"""Writes a strategy back into Relax: fusion groups, bucketed allreduces, a fixed order.

    Strategy.units(graph), in order             main after apply
    --------------------------------            ----------------
    kernel  {op 3}                              lv = call_tir(op3, ...)
    kernel  {op 5, op 6}  outputs {6}           lv1 = fused_op5_op6(lv, ...)   (Primitive function)
    bucket  {allreduce 7, 9}                    allreduce_start(0, g7, g9)
    library {op 8}                              lv2 = call_dps_packed(matmul, ...)
    kernel  {op 10} reads allreduce 7           allreduce_wait(0, g7, g9)
                                                lv3 = call_tir(op10, (g7, ...))

The allreduce works in place, so after the wait the gradient variables themselves hold the average.
Both calls name the gradients: the memory planner would otherwise reuse a buffer in flight, and a
wait that returned aliases of its buffers would hide their use from it. Order is meaning here, hence
main becomes a plain binding block whenever there is an allreduce.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from disco_fuse.bindings import (
    allreduce_input,
    call_inputs,
    glue_source,
    reduction_of,
    with_inputs,
)
from disco_fuse.extract import Extraction
from disco_fuse.strategy import Strategy, Unit

# The name of the reduction is appended, except for the usual one.
START = "disco_fuse.runtime.allreduce_start"
_START_OF = {"avg": START, "sum": START + "_sum"}
WAIT = "disco_fuse.runtime.allreduce_wait"
_MAX_NAME_LENGTH = 60


def apply(mod: tvm.IRModule, extraction: Extraction, strategy: Strategy) -> tvm.IRModule:
    """The lowered module ``mod`` with the decisions of ``strategy`` made.

    Parameters
    ----------
    mod : tvm.IRModule
        The module ``extraction`` was read from; it is not changed.
    extraction : Extraction
    strategy : Strategy
        A strategy of ``extraction.graph``, with an order.

    Returns
    -------
    tvm.IRModule
        Input for FuseTIR. Attributes of main are kept.
    """
    units = strategy.units(extraction.graph)
    impure = any(unit.kind == "bucket" for unit in units)
    writer = _MainWriter(mod, extraction)
    builder = writer.builder
    groups = {
        unit.id: writer.add_group(unit)
        for unit in units
        if len(unit.ops) > 1 and unit.kind == "kernel"
    }
    attrs = {k: v for k, v in (writer.main.attrs or {}).items() if k != "global_symbol"}
    with builder.function("main", writer.params, attrs=attrs, pure=not impure):
        if impure:
            writer.write(units, groups)
            result = writer.finish()
        else:
            with builder.dataflow():
                writer.write(units, groups)
                result = builder.emit_output(writer.finish())
        builder.emit_func_output(result)
    return relax.transform.DeadCodeElimination()(builder.get().with_attrs(mod.attrs or {}))


class _Group:
    """One Primitive function: its parameters stand for what the group reads from outside."""

    def __init__(self, extraction: Extraction, unit: Unit) -> None:
        self.extraction = extraction
        self.unit = unit
        self.inputs: dict[relax.Expr, relax.Var] = {}
        self.local: dict[relax.Expr, relax.Expr] = {}
        self.body: list[tuple[relax.Var, relax.Expr]] = []

    def define(self, builder: relax.BlockBuilder) -> relax.GlobalVar:
        """Write the function into the module of ``builder``."""
        bindings = [self.extraction.bindings[op] for op in self.unit.ops]
        for binding in bindings:
            for leaf in call_inputs(binding.value):
                self._declare(leaf)
        outputs = set(self.unit.outputs)
        with builder.function(
            self._name(bindings), list(self.inputs.values()), {"Primitive": True}, private=True
        ):
            with builder.dataflow():
                results: list[relax.Expr] = []
                for op, binding in zip(self.unit.ops, bindings, strict=True):
                    inputs = [self._resolve(arg, builder) for arg in call_inputs(binding.value)]
                    value = builder.emit(with_inputs(binding.value, inputs))
                    self.local[binding.var] = value
                    if op in outputs:
                        results += _components(value, builder)
                results = [builder.emit_output(result) for result in results]
            result = results[0] if len(results) == 1 else relax.Tuple(results)
            return builder.emit_func_output(result)

    def _name(self, bindings: list[relax.VarBinding]) -> str:
        names = [b.value.args[0].name_hint.removeprefix("tir_") for b in bindings]
        return "fused_" + "_".join(names)[:_MAX_NAME_LENGTH].rstrip("_")

    def _is_inside(self, expr: relax.Expr) -> bool:
        return self.extraction.origin.get(expr, -1) in self.unit.ops

    def _declare(self, expr: relax.Expr) -> None:
        """Make a parameter of every tensor that comes from outside."""
        if isinstance(expr, relax.Tuple):
            for field in expr.fields:
                self._declare(field)
        elif self._is_inside(expr):
            binding = self.extraction.glue.get(expr)
            if binding is not None:
                source = glue_source(binding)
                self._declare(binding.value if source is None else source)
        elif expr not in self.inputs and isinstance(expr.ty, relax.TensorType):
            name = expr.name if isinstance(expr, relax.Var) else "const"
            self.inputs[expr] = relax.Var(name, expr.ty)

    def _resolve(self, expr: relax.Expr, builder: relax.BlockBuilder) -> relax.Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._resolve(field, builder) for field in expr.fields])
        if expr in self.local:
            return self.local[expr]
        if not self._is_inside(expr):
            return self.inputs.get(expr, expr)
        binding = self.extraction.glue[expr]
        source = glue_source(binding)
        value = binding.value
        if source is None or isinstance(value, relax.Var):
            return self._resolve(value, builder)
        resolved = self._resolve(source, builder)
        if isinstance(value, relax.TupleGetItem):
            value = relax.TupleGetItem(resolved, value.index)
        else:
            value = with_inputs(value, [resolved])
        self.local[expr] = builder.emit(value)
        return self.local[expr]


class _MainWriter:
    """The new main while it is written: what each old variable has become."""

    def __init__(self, mod: tvm.IRModule, extraction: Extraction) -> None:
        self.main: relax.Function = mod["main"]
        self.extraction = extraction
        kernels = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(kernels))
        self.params = [relax.Var(param.name, param.ty) for param in self.main.params]
        self.env: dict[relax.Expr, relax.Expr] = dict(
            zip(self.main.params, self.params, strict=True)
        )
        self.components: dict[relax.Expr, list[relax.Expr]] = {}
        self.pending: dict[int, int] = {}  # allreduce op -> bucket that was started
        self.gradients: list[list[relax.Expr]] = []  # of each started bucket

    def add_group(self, unit: Unit) -> tuple[relax.GlobalVar, list[relax.Expr]]:
        """The Primitive function of ``unit``, and the old expressions it takes as arguments."""
        group = _Group(self.extraction, unit)
        return group.define(self.builder), list(group.inputs)

    def write(
        self, units: list[Unit], groups: dict[int, tuple[relax.GlobalVar, list[relax.Expr]]]
    ) -> None:
        for unit in units:
            if unit.kind == "bucket":
                self._start(unit)
            elif unit.id in groups:
                self._call_group(unit, *groups[unit.id])
            else:
                binding = self.extraction.bindings[unit.ops[0]]
                inputs = [self._resolve(arg) for arg in call_inputs(binding.value)]
                call = with_inputs(binding.value, inputs)
                self.env[binding.var] = self.builder.emit(call, binding.var.name)

    def finish(self) -> relax.Expr:
        """The new outputs; every bucket has been waited for."""
        result = self._resolve(self.main.body.body)
        for bucket in sorted(set(self.pending.values())):
            self._wait(bucket)
        return result

    def _call_group(
        self, unit: Unit, function: relax.GlobalVar, arguments: list[relax.Expr]
    ) -> None:
        call = Call(function, [self._resolve(argument) for argument in arguments])
        results = _components(self.builder.emit(call), self.builder)
        for op in unit.outputs:
            var = self.extraction.bindings[op].var
            if isinstance(var.ty, relax.TupleType):
                self.components[var] = [results.pop(0) for _ in var.ty.fields]
            else:
                self.env[var] = results.pop(0)

    def _start(self, unit: Unit) -> None:
        bucket = len(self.gradients)
        bindings = [self.extraction.bindings[op] for op in unit.ops]
        gradients = [self._resolve(allreduce_input(binding.value)) for binding in bindings]
        self.gradients.append(gradients)
        reduction = reduction_of(bindings[0].value)
        assert reduction is not None
        self._packed(_START_OF[reduction], bucket)
        for op, binding, gradient in zip(unit.ops, bindings, gradients, strict=True):
            self.pending[op] = bucket
            self.env[binding.var] = gradient

    def _wait(self, bucket: int) -> None:
        self._packed(WAIT, bucket)
        self.pending = {op: b for op, b in self.pending.items() if b != bucket}

    def _packed(self, name: str, bucket: int) -> None:
        arguments = [relax.prim_value(bucket), *self.gradients[bucket]]
        nothing = relax.TupleType([])
        self.builder.emit(Call(relax.ExternFunc(name), arguments, ty_args=[nothing]), "_")

    def _resolve(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` of the old main is in the new one; writes views and waits on demand."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._resolve(field) for field in expr.fields])
        if not isinstance(expr, relax.Var):
            return expr
        op = self.extraction.origin.get(expr, -1)
        if op in self.pending:
            self._wait(self.pending[op])
        if expr not in self.env:
            if expr in self.components:
                return relax.Tuple(self.components[expr])
            assert expr in self.extraction.glue, f"{expr.name} is used before it is computed"
            self.env[expr] = self._write_glue(self.extraction.glue[expr])
        return self.env[expr]

    def _write_glue(self, binding: relax.VarBinding) -> relax.Expr:
        value, source = binding.value, glue_source(binding)
        if source is None or isinstance(value, relax.Var):
            return self._resolve(value)
        resolved = self._resolve(source)
        if not isinstance(value, relax.TupleGetItem):
            return self.builder.emit(relax.op.reshape(resolved, binding.var.ty.shape))
        if isinstance(resolved, relax.Tuple):
            return resolved.fields[value.index]
        return self.builder.emit(relax.TupleGetItem(resolved, value.index))


def _components(value: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """``value`` as a list of tensors."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    return [builder.emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]
