"""Inserts one AllReduce per gradient.

    g = backward(...)                    g = backward(...)
    w1 = update(w, g)             ->     r = R.ccl.allreduce(g, "avg", in_group=False)
                                         w1 = update(w, r)

Which variables of main are gradients is said by its attribute ``disco_fuse.gradients``, a list of
variable names; the attribute is dropped, so that a second run changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax

from disco_fuse.bindings import reduction_of

GRADIENTS = "disco_fuse.gradients"


@tvm.transform.module_pass(opt_level=0, name="InsertAllReduce")
class InsertAllReduce:
    """Average every gradient of main over all ranks; a pass from IRModule to IRModule.

    A gradient that is an AllReduce already, or that is read by one, is left alone, and so is one
    that nobody reads. A module without the attribute is returned unchanged.

    Raises
    ------
    ValueError
        If the attribute names a variable that main does not bind, or binds more than once.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Called by TVM."""
        if "main" not in [gvar.name_hint for gvar in mod.get_global_vars()]:
            return mod
        main = mod["main"]
        if not isinstance(main, relax.Function) or not main.attrs or GRADIENTS not in main.attrs:
            return mod
        names = [str(name) for name in main.attrs[GRADIENTS]]
        _check_names(main, names)
        inserter = _Inserter(mod, _to_average(main, set(names)))
        main = inserter.visit_expr(main).without_attr(GRADIENTS)
        inserter.builder_.update_func(mod.get_global_var("main"), main)
        return inserter.builder_.get()


def _bindings(main: relax.Function) -> list[Any]:
    return [binding for block in main.body.blocks for binding in block.bindings]


def _check_names(main: relax.Function, names: list[str]) -> None:
    bound = Counter(str(binding.var.name) for binding in _bindings(main))
    for name in names:
        if bound[name] != 1:
            raise ValueError(
                f"{GRADIENTS} names '{name}', which main binds {bound[name]} times; it must be the "
                "name of exactly one variable"
            )


def _to_average(main: relax.Function, names: set[str]) -> set[str]:
    """Those of the named gradients that are read, and not averaged yet."""
    averaged: set[str] = set()
    read: set[str] = set()

    def note_readers(binding: Any) -> None:
        for variable in relax.analysis.free_vars(binding.value):
            read.add(str(variable.name))
            if reduction_of(binding.value) is not None:
                averaged.add(str(variable.name))

    for binding in _bindings(main):
        note_readers(binding)
        if reduction_of(binding.value) is not None:
            averaged.add(str(binding.var.name))
    read |= {str(variable.name) for variable in relax.analysis.free_vars(main.body.body)}
    return (names & read) - averaged


@relax.expr_functor.mutator
class _Inserter(relax.PyExprMutator):  # type: ignore[misc]
    """Binds the average after the gradient and lets later uses read it."""

    def __init__(self, mod: tvm.IRModule, names: set[str]) -> None:
        super().__init__(mod)
        self.names = names

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Every ``var = value``."""
        super().visit_var_binding_(binding)
        if str(binding.var.name) in self.names:
            gradient = self.visit_expr(binding.var)
            average = relax.op.ccl.allreduce(gradient, "avg", in_group=False)
            emit = self.builder_.emit
            if self.builder_.current_block_is_dataflow():
                is_local = isinstance(binding.var, relax.DataflowVar)
                emit = self.builder_.emit if is_local else self.builder_.emit_output
            self.set_var_remap(binding.var, emit(average, name_hint=f"{binding.var.name}_avg"))
