"""Modules of TVM's own training passes go through DisCoFuse and compute what they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax.training import SetupTrainer, optimizer
from tvm.relax.training.loss import MSELoss
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from disco_fuse import DisCoFuse
from disco_fuse.config import SearchConfig
from disco_fuse.frontend import RelaxAdam
from disco_fuse.runtime import Session, loopback

QUICK = SearchConfig(max_steps=300)
PREDICTION = relax.TensorType((4, 3), "float32")


@I.ir_module
class Backbone:
    I.module_attrs({"param_num": 2, "state_num": 0})

    @R.function
    def backbone(
        x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 3), "float32"), b: R.Tensor((3,), "float32")
    ):
        with R.dataflow():
            product = R.matmul(x, w)
            out = R.tanh(R.add(product, b))
            R.output(out)
        return out


def arrays() -> list[Any]:
    """x, w, b, target."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype("float32") for s in ((4, 6), (6, 3), (3,), (4, 3))]


def machine(mod: tvm.IRModule) -> Any:
    return relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())


def trainer(kind: Any, legalize: bool) -> tvm.IRModule:
    setup = SetupTrainer(MSELoss(reduction="mean"), kind, [PREDICTION] * 2, legalize=legalize)
    return setup(Backbone)


def allreduces(mod: tvm.IRModule) -> int:
    return mod.script().count("allreduce_start")


@pytest.mark.parametrize("legalize", [False, True])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_training_with_setup_trainer(name: str, legalize: bool) -> None:
    """Five steps of a fused trainer against torch."""
    kinds = {
        "sgd": lambda: optimizer.SGD(0.1),
        "momentum": lambda: optimizer.MomentumSGD(0.1, 0.9),
        "adam": lambda: RelaxAdam(0.1),
    }
    mod = trainer(kinds[name](), legalize)
    passes = [DisCoFuse(search_config=QUICK), relax.transform.FuseTIR()]
    fused = tvm.transform.Sequential(passes)(mod)
    relax.analysis.well_formed(fused)
    assert 1 <= allreduces(fused) <= 2
    assert {g.name_hint for g in mod.get_global_vars() if isinstance(mod[g], relax.Function)} == {
        g.name_hint for g in fused.get_global_vars() if isinstance(fused[g], relax.Function)
    }
    vm, state = machine(fused), mod.attrs["optim_state"]
    x, w, b, target = (tvm.runtime.tensor(array) for array in arrays())
    theirs = [torch.tensor(array, requires_grad=i in (1, 2)) for i, array in enumerate(arrays())]
    torch_kinds = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    }
    reference = torch_kinds[name](theirs[1:3])
    session = Session(loopback())
    parameters = (w, b)
    for _ in range(5):
        with session.step():
            loss, gradients = vm["backbone_loss_adjoint"](x, *parameters, target)
        parameters, state = vm["optimizer"](parameters, gradients, state)
        reference.zero_grad()
        value = ((torch.tanh(theirs[0] @ theirs[1] + theirs[2]) - theirs[3]) ** 2).mean()
        value.backward()
        reference.step()
        np.testing.assert_allclose(loss.numpy(), value.item(), rtol=1e-5)
        for actual, expected in zip(parameters, theirs[1:3], strict=True):
            np.testing.assert_allclose(actual.numpy(), expected.detach(), rtol=1e-4, atol=1e-5)


def gradient_module() -> tvm.IRModule:
    """A main with a loss, and what Gradient makes of it."""

    @I.ir_module
    class Module:
        @R.function
        def main(w: R.Tensor((6, 3), "float32"), x: R.Tensor((4, 6), "float32")):
            with R.dataflow():
                out = R.sum(R.tanh(R.matmul(x, w)))
                R.output(out)
            return out

    mod = Module
    return relax.transform.Gradient("main", require_grads=mod["main"].params[0])(mod)


def test_module_of_gradient() -> None:
    mod = gradient_module()
    fused = DisCoFuse(search_config=QUICK)(mod)
    assert allreduces(fused) == 1
    assert "R.tanh" in fused["main"].script()  # as it was
    x, w, _, _ = arrays()
    vm = machine(relax.transform.FuseTIR()(fused))
    with Session(loopback()).step():
        loss, (gradient,) = vm["main_adjoint"](tvm.runtime.tensor(w), tvm.runtime.tensor(x))
    slope = 1.0 - np.tanh(x @ w) ** 2
    np.testing.assert_allclose(loss.numpy(), np.tanh(x @ w).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), x.T @ slope, rtol=1e-4, atol=1e-5)


def test_gradients_named_by_the_caller() -> None:
    mod = gradient_module()
    (name,) = [
        str(binding.var.name)
        for binding in mod["main_adjoint"].body.blocks[0].bindings
        if str(binding.var.name).startswith("w_adjoint") and "out" not in str(binding.var.name)
    ]
    mod["main_adjoint"] = mod["main_adjoint"].with_attr("disco_fuse.gradients", [name])
    assert allreduces(DisCoFuse(search_config=QUICK)(mod)) == 1
    mod["main_adjoint"] = mod["main_adjoint"].with_attr("disco_fuse.gradients", ["nothing"])
    with pytest.raises(ValueError, match="names 'nothing', which main binds 0 times"):
        DisCoFuse(search_config=QUICK)(mod)


def test_several_adjoint_functions_are_refused() -> None:
    mod = gradient_module()
    mod["other_adjoint"] = mod["main_adjoint"].with_attr("global_symbol", "other_adjoint")
    with pytest.raises(ValueError, match=r"\['main_adjoint', 'other_adjoint'\]; keep one"):
        DisCoFuse(search_config=QUICK)(mod)


def test_tvms_adam_is_broken() -> None:
    """Once this fails, RelaxAdam can go."""
    with pytest.raises(ValueError, match="NumPy dtype"):
        trainer(optimizer.Adam(0.1), legalize=True)
