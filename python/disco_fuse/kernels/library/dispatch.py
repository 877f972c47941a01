"""DispatchMatmul: relax.matmul becomes a library call that takes its neighbours' layout changes.

    before                                            after
    k2 = permute_dims(reshape(k), (0, 2, 3, 1))       y = matmul(q, k, strides)    # no copies left
    q2 = reshape(permute_dims(q, ...))
    y0 = matmul(q2, k2)
    y  = permute_dims(reshape(y0), (0, 2, 1, 3))

Towards the operands the pass follows permute, reshape, expand and squeeze, broadcast, slice and
split back to the tensor that is in memory, and reads that at the right strides. Behind the result
it follows permute and reshape forward, as long as each is the only consumer of its input, and
writes the last tensor directly. A layout op that others also read stays for them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from disco_fuse.kernels.library.calls import emit_call, static_shape
from disco_fuse.kernels.library.layout_ops import LayoutOp, parse_layout_op
from disco_fuse.kernels.library.plan import GemmPlan, plan_gemm
from disco_fuse.kernels.library.views import StridedView, contiguous

_LOGGER = logging.getLogger(__name__)
_DTYPES = ("float32", "float64")


def DispatchMatmul() -> Any:  # noqa: N802 - the name of a pass
    """Pass that turns each ``relax.matmul`` the library can do into a call of it.

    Run it before ``LegalizeOps``, where a BLAS library will be loaded at run time
    (:func:`disco_fuse.kernels.library.load_library`). Dispatched are float32 and float64 products
    of static shape in dataflow blocks; others stay, and the log says why (level DEBUG). Variables
    that the function names in ``disco_fuse.gradients`` keep their value and name.

    Returns
    -------
    tvm.transform.Pass
        A module pass; it does not change its input.
    """
    return tvm.transform.module_pass(_dispatch_module, opt_level=0, name="DispatchMatmul")


def _dispatch_module(module: Any, _context: Any) -> Any:
    result = module.clone()
    for global_var, function in module.functions_items():
        if isinstance(function, relax.Function) and not _is_closed(function):
            result.update_func(global_var, _dispatch_function(function))
    return result


def _is_closed(function: Any) -> bool:
    """Whether another pass has already claimed the function's body."""
    return any(name in function.attrs for name in ("Primitive", "Composite", "Codegen"))


def _dispatch_function(function: Any) -> Any:
    num_uses: Counter[Any] = Counter(relax.analysis.used_vars(function.body.body))
    for block in function.body.blocks:
        for binding in block.bindings:
            num_uses.update(relax.analysis.used_vars(binding.value))
    kept = frozenset(str(name) for name in function.attrs.get("disco_fuse.gradients", ()))
    blocks = [
        _BlockDispatch(block.bindings, num_uses, kept).run()
        if isinstance(block, relax.DataflowBlock)
        else block
        for block in function.body.blocks
    ]
    return relax.Function(
        function.params,
        relax.BlockBuilder().normalize(relax.SeqExpr(blocks, function.body.body)),
        function.ret_ty,
        function.is_pure,
        function.attrs,
        function.span,
    )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """One way to read an operand: a tensor in memory, a view of it, and what lies between."""

    tensor: Any
    view: StridedView
    bypassed: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """One way to write the result: into which variable, and the matmul's result as a view of it."""

    var: Any
    view: StridedView
    bypassed: tuple[Any, ...]


class _BlockDispatch:
    """Rewrites the bindings of one dataflow block, first to last."""

    def __init__(
        self, bindings: Sequence[Any], num_uses: Counter[Any], kept: frozenset[str]
    ) -> None:
        self._bindings = bindings
        self._num_uses = num_uses
        self._kept = kept
        self._definitions = {binding.var: binding.value for binding in bindings}
        self._layout_ops: dict[Any, LayoutOp] = {}
        self._consumers: dict[Any, Any] = {}
        self._overwritten: set[Any] = set()
        for binding in bindings:
            if _is_in_place(binding.value):
                self._overwritten.update(relax.analysis.used_vars(binding.value))
            op = parse_layout_op(binding.value, self._definitions)
            if op is not None and isinstance(binding, relax.VarBinding):
                self._layout_ops[binding.var] = op
                self._consumers[op.source] = binding.var

    def run(self) -> Any:
        """The block with its matmuls dispatched."""
        emitted: list[Any] = []
        written: set[Any] = set()
        bypassed: set[Any] = set()
        for binding in self._bindings:
            if binding.var in written:
                continue
            found = self._dispatch(binding)
            if found is None:
                emitted.append(binding)
                continue
            reads, writing, call = found
            emitted.append(relax.VarBinding(writing.var, call))
            # From here on the written tensor is in memory, and nothing before it exists.
            self._layout_ops.pop(writing.var, None)
            written.update((writing.var, *writing.bypassed))
            bypassed.update(var for reading in reads for var in reading.bypassed)
        return relax.DataflowBlock(self._without_unused(emitted, bypassed))

    def _dispatch(self, binding: Any) -> tuple[tuple[_Reading, _Reading], _Writing, Any] | None:
        """The library call for a binding, or None if it is no matmul or must stay one."""
        call = binding.value
        if not isinstance(call, tvm.ir.Call) or call.op != tvm.ir.Op.get("relax.matmul"):
            return None
        reason = _reason_to_stay(call)
        if not reason:
            a, b, c, plan = self._fold_layouts(binding)
            if isinstance(plan, GemmPlan):
                dispatched = emit_call(a.tensor, b.tensor, plan, c.var.ty)
                return (a, b), c, relax.BlockBuilder().normalize(dispatched)
            reason = plan
        _LOGGER.debug("matmul %s is not dispatched: %s", binding.var.name, reason)
        return None

    def _fold_layouts(self, binding: Any) -> tuple[_Reading, _Reading, _Writing, GemmPlan | str]:
        """Take in as many layout ops as the library's strides can express.

        The three chains hardly restrict each other, so each is shortened alone until it fits.
        """
        readings = [self._readings(argument) for argument in binding.value.args]
        writings = self._writings(binding)
        num_dims = [len(reading[0].view.axes) for reading in readings]

        def plan(a: _Reading, b: _Reading, c: _Writing) -> GemmPlan | str:
            return plan_gemm(*_as_matrices(a.view, b.view, c.view, num_dims))

        (a, *_), (b, *_), (c, *_) = readings[0], readings[1], writings
        a = next((r for r in reversed(readings[0]) if isinstance(plan(r, b, c), GemmPlan)), a)
        b = next((r for r in reversed(readings[1]) if isinstance(plan(a, r, c), GemmPlan)), b)
        c = next((w for w in reversed(writings) if isinstance(plan(a, b, w), GemmPlan)), c)
        return a, b, c, plan(a, b, c)

    def _readings(self, operand: Any) -> list[_Reading]:
        """Ways to read an operand, from the operand itself back to the tensor it stems from."""
        shape = static_shape(operand.ty)
        assert shape is not None
        readings = [_Reading(tensor=operand, view=contiguous(shape), bypassed=())]
        ops: list[LayoutOp] = []
        bypassed: list[Any] = []
        # A tensor that is overwritten may be gone when the matmul runs; its rearranged copy is not.
        while (op := self._layout_ops.get(operand)) and op.source not in self._overwritten:
            bypassed += [operand, *op.through]
            operand = op.source
            ops.insert(0, op)
            view: StridedView | None = contiguous(op.source_shape)
            for each in ops:
                view = None if view is None else each.apply(view)
            if view is not None:
                readings.append(_Reading(tensor=operand, view=view, bypassed=tuple(bypassed)))
        return readings

    def _writings(self, binding: Any) -> list[_Writing]:
        """Ways to write the result, from the matmul's own variable to the end of its layout ops."""
        var = binding.var
        shape = static_shape(var.ty)
        assert shape is not None
        writings = [_Writing(var=var, view=contiguous(shape), bypassed=())]
        ops: list[LayoutOp] = []
        bypassed: list[Any] = []
        while (
            isinstance(var, relax.DataflowVar)
            and var.name not in self._kept
            and self._num_uses[var] == 1
            and var in self._consumers
        ):
            bypassed.append(var)
            var = self._consumers[var]
            ops.append(self._layout_ops[var])
            view: StridedView | None = contiguous(ops[-1].shape)
            for op in reversed(ops):
                view = None if view is None else op.invert(view)
            if view is not None:
                writings.append(_Writing(var=var, view=view, bypassed=tuple(bypassed)))
        return writings

    def _without_unused(self, bindings: list[Any], bypassed: set[Any]) -> list[Any]:
        """Drop the layout ops that nobody reads any more."""
        num_uses = self._num_uses.copy()
        for binding in self._bindings:
            num_uses.subtract(relax.analysis.used_vars(binding.value))
        for binding in bindings:
            num_uses.update(relax.analysis.used_vars(binding.value))
        result = []
        for binding in reversed(bindings):
            is_unused = (
                binding.var in bypassed
                and num_uses[binding.var] == 0
                and isinstance(binding.var, relax.DataflowVar)
                and binding.var.name not in self._kept
            )
            if is_unused:
                num_uses.subtract(relax.analysis.used_vars(binding.value))
            else:
                result.append(binding)
        return result[::-1]


def _is_in_place(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call) and expr.op in (
        tvm.ir.Op.get("relax.call_tir_inplace"),
        tvm.ir.Op.get("relax.call_inplace_packed"),
    )


def _reason_to_stay(call: Any) -> str:
    """Why a matmul is nothing for the library, whatever its layout; empty if it is."""
    for ty in (call.args[0].ty, call.args[1].ty, call.ty):
        if static_shape(ty) is None:
            return "a shape is not static"
    dtypes = [str(argument.ty.dtype) for argument in (call.args[0], call.args[1], call)]
    if dtypes[0] not in _DTYPES or len(set(dtypes)) > 1:
        return (
            f"dtypes are {', '.join(dtypes)}; the library has only float32 and float64 throughout"
        )
    return ""


def _as_matrices(
    a: StridedView, b: StridedView, c: StridedView, num_dims: Sequence[int]
) -> tuple[StridedView, StridedView, StridedView]:
    """Give 1-d operands, and the result, the dimension of size 1 that matmul leaves out."""
    c_axes = list(c.axes)
    if num_dims[0] == 1:
        a = StridedView(axes=((), *a.axes), offset=a.offset)
        c_axes.insert(len(c_axes) - (num_dims[1] > 1), ())
    if num_dims[1] == 1:
        b = StridedView(axes=(*b.axes, ()), offset=b.offset)
        c_axes.append(())
    return a, b, StridedView(axes=tuple(c_axes), offset=c.offset)
