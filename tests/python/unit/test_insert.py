"""InsertAllReduce: what main looks like before and after."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from disco_fuse.insert import InsertAllReduce


def apply(mod: tvm.IRModule) -> tvm.IRModule:
    before = mod.script()
    after = InsertAllReduce()(mod)
    assert mod.script() == before, "the pass changed its input"
    relax.analysis.well_formed(after)
    return after


def check(before: tvm.IRModule, expected: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(apply(before), expected)


def test_later_uses_read_the_average() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
            R.func_attr({"disco_fuse.gradients": ["g"], "num_input": 1})
            with R.dataflow():
                g = R.multiply(x, w)
                w1 = R.subtract(w, g)
                gv = (w1, g)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                g = R.multiply(x, w)
                g_avg = R.ccl.allreduce(g, "avg", in_group=False)
                w1 = R.subtract(w, g_avg)
                gv = (w1, g_avg)
                R.output(gv)
            return gv

    check(Before, Expected)
    check(Expected, Expected)  # without the attribute nothing happens


def test_every_gradient_is_averaged_right_after_it_is_known() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            R.func_attr({"disco_fuse.gradients": ["g2", "g1"]})
            with R.dataflow():
                g1 = R.exp(x)
                y = R.tanh(x)
                g2 = R.exp(y)
                gv = (g1, g2)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                g1 = R.exp(x)
                a1 = R.ccl.allreduce(g1, "avg", in_group=False)
                y = R.tanh(x)
                g2 = R.exp(y)
                a2 = R.ccl.allreduce(g2, "avg", in_group=False)
                gv = (a1, a2)
                R.output(gv)
            return gv

    check(Before, Expected)


def test_gradient_that_leaves_the_dataflow_block() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            R.func_attr({"disco_fuse.gradients": ["g"]})
            with R.dataflow():
                g = R.exp(x)
                R.output(g)
            return g

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                g = R.exp(x)
                a = R.ccl.allreduce(g, "avg", in_group=False)
                R.output(g, a)
            return a

    check(Before, Expected)


def test_gradient_that_nobody_reads_is_not_sent() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            R.func_attr({"disco_fuse.gradients": ["g"]})
            with R.dataflow():
                g = R.exp(x)  # noqa: F841
                y = R.tanh(x)
                R.output(y)
            return y

    check(Before, _without_gradients(Before))


def _without_gradients(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.IRModule({"main": mod["main"].without_attr("disco_fuse.gradients")})


def _already_averaged(names: list[str]) -> tvm.IRModule:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
            with R.dataflow():
                g = R.exp(x)
                a = R.ccl.allreduce(g, "avg", in_group=False)
                w1 = R.subtract(w, a)
                R.output(w1)
            return w1

    return tvm.IRModule({"main": Before["main"].with_attr("disco_fuse.gradients", names)})


@pytest.mark.parametrize("name", ["g", "a"])
@pytest.mark.parametrize("legalize", [False, True])
def test_an_allreduce_is_not_doubled(name: str, legalize: bool) -> None:
    before = _already_averaged([name])
    if legalize:
        before = relax.transform.LegalizeOps()(before)
        assert "runtime.disco.allreduce" in before.script()
    after = apply(before)
    tvm.ir.assert_structural_equal(after["main"], _without_gradients(before)["main"])


def test_unknown_gradient() -> None:
    with pytest.raises(ValueError, match=r"names 'missing', which main binds 0 times"):
        InsertAllReduce()(_already_averaged(["a", "missing"]))


def test_ambiguous_gradient() -> None:
    x: Any = relax.Var("x", relax.TensorType([4], "float32"))
    first = relax.DataflowVar("g", x.ty)
    second = relax.DataflowVar("g", x.ty)
    out = relax.Var("y", x.ty)
    block = relax.DataflowBlock(
        [
            relax.VarBinding(first, relax.op.exp(x)),
            relax.VarBinding(second, relax.op.tanh(first)),
            relax.VarBinding(out, relax.op.exp(second)),
        ]
    )
    main = relax.Function([x], relax.SeqExpr([block], out), ret_ty=x.ty)
    mod = tvm.IRModule({"main": main.with_attr("disco_fuse.gradients", ["g"])})
    mod = relax.transform.Normalize()(mod)
    with pytest.raises(ValueError, match=r"names 'g', which main binds 2 times"):
        InsertAllReduce()(mod)


def test_module_without_gradients_is_unchanged() -> None:
    @I.ir_module
    class Before:
        @R.function
        def other(x: R.Tensor((4,), "float32")):
            with R.dataflow():
                y = R.exp(x)
                R.output(y)
            return y

    check(Before, Before)
