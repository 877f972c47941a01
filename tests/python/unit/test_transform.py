"""``relax.transform.DisCoFuse`` as a pass among others."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from disco_fuse import DisCoFuse
from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import CostModel
from disco_fuse.testing import mlp_arguments, mlp_step, run_functional

QUICK = SearchConfig(max_steps=300)


def _packed_calls(mod: tvm.IRModule) -> list[str]:
    return [
        str(binding.value.op.global_symbol)
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call) and isinstance(binding.value.op, relax.ExternFunc)
    ]


def _primitives(mod: tvm.IRModule) -> list[relax.Function]:
    return [
        func
        for func in mod.functions.values()
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs
    ]


def test_fuses_ops_and_gradients_in_a_sequence_of_passes() -> None:
    passes = [DisCoFuse(search_config=QUICK), relax.transform.FuseTIR()]
    mod = tvm.transform.Sequential(passes)(mlp_step())
    calls = _packed_calls(mod)
    assert 1 <= calls.count("disco_fuse.runtime.allreduce_start") <= 2
    assert calls.count("disco_fuse.runtime.allreduce_wait") == calls.count(
        "disco_fuse.runtime.allreduce_start"
    )
    assert not _primitives(mod)  # FuseTIR has turned them into PrimFuncs
    relax.analysis.well_formed(mod)  # raises if not


def test_allreduces_that_are_there_already_are_found() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((16, 16), "float32")):
            with R.dataflow():
                a = R.exp(x)
                g = R.add(a, a)
                b = R.ccl.allreduce(g, "sum", False)
                c = R.multiply(b, b)
                R.output(c)
            return c

    mod = DisCoFuse(search_config=QUICK)(Module)
    assert _packed_calls(mod) == [
        "disco_fuse.runtime.allreduce_start_sum",
        "disco_fuse.runtime.allreduce_wait",
    ]
    assert len(_primitives(mod)) == 1


def test_without_gradients_it_is_an_op_fusion_pass() -> None:
    mod = mlp_step(gradients=False, donated=False)
    fused = DisCoFuse(search_config=QUICK)(mod)
    assert _packed_calls(fused) == []
    assert _primitives(fused)
    assert isinstance(fused["main"].body.blocks[0], relax.DataflowBlock)
    arguments = mlp_arguments(mod)
    built = relax.transform.FuseTIR()(fused)
    for one, other in zip(
        run_functional(built, arguments), run_functional(mod, arguments), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_input_is_not_changed_and_a_seed_means_one_result() -> None:
    mod = mlp_step()
    before = mod.script()
    first = DisCoFuse(search_config=QUICK)(mod)
    assert mod.script() == before
    tvm.ir.assert_structural_equal(first, DisCoFuse(search_config=QUICK)(mod))


def test_uses_the_current_target() -> None:
    with tvm.target.Target("llvm"):
        assert _primitives(DisCoFuse(search_config=QUICK)(mlp_step()))


class _Broken(CostModel):
    name = "broken"
    digest = "0"

    def predict(self, graph, groups):  # noqa: ARG002
        return np.full(len(groups), np.nan)


def test_nan_of_a_cost_model_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"broken.*nan"):
        DisCoFuse(cost_model=_Broken(), search_config=QUICK)(mlp_step())


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError):
        DisCoFuse("llvm")


def test_a_gradient_that_is_not_there_is_named() -> None:
    mod = mlp_step()
    mod["main"] = mod["main"].with_attr("disco_fuse.gradients", ["g0", "nowhere"])
    with pytest.raises(ValueError, match="nowhere"):
        DisCoFuse(search_config=QUICK)(mod)


def test_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="abacus"):
        DisCoFuse(target="abacus")


@pytest.mark.parametrize(
    "options", [{"cluster": "foo"}, {"cost_model": "roofline"}, {"search_config": {}}]
)
def test_options_of_a_wrong_type_are_named(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"{name} must be a"):
        DisCoFuse(**options)
