"""What a training step says about parameters, buffers and outputs, and what it refuses."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import check_against_eager
from torch import nn
from tvm import relax

from disco_fuse.errors import UnsupportedOperatorError
from disco_fuse.frontend import SGD, TrainingStep
from disco_fuse.frontend.torch import training_step, translate
from disco_fuse.insert import InsertAllReduce

SGD_STEP = SGD(lr=0.05, momentum=0.9)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def batches(count: int = 3) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(4, 6).double(), torch.randn(4, 6).double()) for _ in range(count)]


class Odd(nn.Module):
    """Everything that makes parameters and buffers differ from one another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.weight.requires_grad_(False)
        self.never_read = nn.Linear(2, 2)
        self.detached = nn.Parameter(torch.randn(6))
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.register_buffer("positions", torch.arange(6), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("never_read_buffer", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        x = torch.tanh(self.first(x)) * self.scale + self.positions
        return self.frozen(self.tied(x)) + self.detached.detach()


def test_tied_frozen_unused_and_buffers() -> None:
    model = Odd().double()
    step = check_against_eager(model, batches(), loss=F.mse_loss)
    trained = ("first.weight", "first.bias", "tied.bias", "frozen.bias")
    assert set(step.parameter_names) == {*trained, "frozen.weight", "detached"}
    assert tuple(step.gradient_names) == trained
    assert step.unused_parameters == ("detached", "never_read.bias", "never_read.weight")
    assert step.buffer_names == ("scale", "positions", "steps")
    momenta = tuple(f"{name}.momentum_buffer" for name in trained)
    assert step.state_names == (*momenta, "optimizer.learning_rate")
    assert step.output_names == ("loss", *trained, "steps", *momenta)


def test_layout_of_main() -> None:
    step = training_step(Odd().double(), batches()[0], loss=F.mse_loss, optimizer=SGD_STEP)
    main = step.mod["main"]
    assert int(main.attrs["num_input"]) == 2
    assert step.input_names == ("x", "target")
    assert len(main.params) == 2 + len(step.names) == 2 + len(step.initial_values())
    for variable, value in zip(main.params[2:], step.initial_values(), strict=True):
        assert [int(extent) for extent in variable.ty.shape] == list(value.shape)
        assert str(variable.ty.dtype.dtype) == str(value.dtype)
    arguments = (*step.input_names, *step.names)
    donated = {arguments[p]: step.output_names[o] for p, o in step.donated.items()}
    assert donated == {name: name for name in step.output_names[1:]}
    assert set(step.names) - set(donated) == {
        "frozen.weight",
        "detached",
        "scale",
        "positions",
        "optimizer.learning_rate",
    }
    (block,) = main.body.blocks
    assert isinstance(block, relax.DataflowBlock)
    bound = [str(binding.var.name) for binding in block.bindings]
    gradients = [str(name) for name in main.attrs["disco_fuse.gradients"]]
    assert gradients == list(step.gradient_names.values())
    assert all(bound.count(name) == 1 for name in gradients)
    assert gradients[0] == "grad_first_weight"
    averaged = InsertAllReduce()(step.mod)
    assert averaged.script().count("R.ccl.allreduce(") == len(gradients)


def test_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).double()
    model[0].weight.grad = torch.ones(6, 6).double()
    before = copy.deepcopy(model)
    step = training_step(model, batches()[0], loss=F.mse_loss, optimizer=SGD_STEP)
    for (name, old), (_, new) in zip(
        before.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(old, new), name
    assert torch.equal(model[0].weight.grad, torch.ones(6, 6).double())
    assert model[0].bias.grad is None
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())
    values = step.initial_values()
    values[0][:] = 7  # a copy
    assert not np.array_equal(step.initial_values()[0], values[0])
    assert torch.equal(model[0].weight, before[0].weight)


class OwnLoss(nn.Module):
    """Returns the loss and something else, and lets two parameters share one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 6))
        self.b = nn.Parameter(torch.randn(4, 6))
        self.out = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.out(x) + self.a + self.b)
        return F.mse_loss(hidden, y), hidden


def test_model_that_returns_its_loss() -> None:
    step = check_against_eager(OwnLoss().double(), batches())
    assert step.output_names[:2] == ("loss", "output_0")
    assert step.input_names == ("x", "y")


def test_gradient_that_the_backward_pass_reads_again_has_a_variable_of_its_own() -> None:
    step = training_step(OwnLoss().double(), batches()[0], optimizer=SGD_STEP)
    assert step.gradient_names["a"] == step.gradient_names["b"]
    averaged = InsertAllReduce()(step.mod)["main"].body.blocks[0].bindings
    readers = [
        str(binding.var.name)
        for binding in averaged
        if f"{step.gradient_names['a']}_avg"
        in {str(v.name) for v in relax.analysis.free_vars(binding.value)}
    ]
    assert len(readers) == 2, readers  # the two momentum buffers, not the gradient of `out`


def test_loss_module_with_a_buffer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0]).double())
    data = (torch.randn(4, 6).double(), torch.tensor([0, 2, 1, 1]))
    step = training_step(Net(), data, loss=loss, optimizer=SGD_STEP)
    assert step.buffer_names == ("loss.weight",)


def test_nothing_constant_is_left_to_compute() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(self.q(x), x, x, is_causal=True)

    data = (torch.randn(2, 3, 16, 4), torch.randn(2, 3, 16, 4))
    step = training_step(Masked(), data, loss=F.mse_loss, optimizer=SGD_STEP)
    bindings = step.mod["main"].body.blocks[0].bindings
    for binding in bindings:
        assert relax.analysis.free_vars(binding.value), binding
        assert not isinstance(binding.value, relax.Var)
    constants: list[tuple[int, ...]] = []

    def note(expr: Any) -> None:
        if type(expr).__name__ == "GenericConst":
            constants.append(tuple(int(extent) for extent in expr.ty.shape))

    relax.analysis.post_order_visit(step.mod["main"], note)
    assert {shape for shape in constants if shape} == {(16, 16)}  # the causal mask, once


class Inner(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Outer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.inner = Inner(function)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.linear(x))


def refuse(function: Any) -> str:
    with pytest.raises(UnsupportedOperatorError) as caught:
        training_step(Outer(function).double(), batches()[0], loss=F.mse_loss, optimizer=SGD_STEP)
    return str(caught.value)


def test_unsupported_operator() -> None:
    message = refuse(lambda x: torch.logcumsumexp(x, 1))
    assert "operator aten.logcumsumexp.default" in message
    assert "module 'inner'" in message
    assert "test_frontend_step.py:" in message
    assert "return self.function(x)" in message
    assert "add a converter" in message


def test_unsupported_arguments() -> None:
    message = refuse(lambda x: x @ torch.cdist(x.T, x.T, p=3.0))
    assert "aten._cdist_forward.default" in message
    assert "norms of order 1 and 2, not 3.0" in message
    assert "module 'inner'" in message


def test_unsupported_operator_of_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = translate.VERIFIED_OPERATORS - {"aten.convolution_backward.default"}
    monkeypatch.setattr(translate, "VERIFIED_OPERATORS", fewer)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
    data = (torch.randn(1, 2, 6, 6), torch.randn(1, 3, 4, 4))
    with pytest.raises(UnsupportedOperatorError, match=r"aten\.convolution_backward") as caught:
        training_step(model, data, loss=F.mse_loss, optimizer=SGD_STEP)
    assert "the backward pass of" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x + torch.normal(0.0, 1.0, (4, 6)),
        lambda x: x + torch.randint(0, 5, (4, 6)),
        lambda x: x[torch.randperm(4)],
        lambda x: F.rrelu(x, training=True),
    ],
)
def test_random_operators(function: Any) -> None:
    message = refuse(function)
    assert "random numbers" in message
    assert "module 'inner'" in message
    assert "test_frontend_step.py:" in message


@pytest.mark.filterwarnings("ignore:The tensor attributes self.model.rnn:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_that_torch_loses(kind: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(6, 6, num_layers=2, dropout=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    with pytest.raises(UnsupportedOperatorError, match=r"(lstm|gru).*random numbers"):
        training_step(Net().double(), batches()[0], loss=F.mse_loss, optimizer=SGD_STEP)


def test_dropout_that_is_off() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Dropout(0.5).eval()).double()
    check_against_eager(model, batches(2), loss=F.mse_loss)


def test_wrong_converter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = translate.CONVERTERS["aten.tanh.default"]
    wrong = type(entry)(lambda node, x: node.emit(relax.op.sum(x)), False)
    monkeypatch.setitem(translate.CONVERTERS, "aten.tanh.default", wrong)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double()
    with pytest.raises(AssertionError, match=r"aten\.tanh\.default \(node 'tanh'\) gives \[\]"):
        training_step(model, batches()[0], loss=F.mse_loss, optimizer=SGD_STEP)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, t: (y - t) ** 2, r"scalar, got shape \[4, 6\]"),
        (lambda y, t: (y.detach() - t).sum(), "depends on no parameter"),
    ],
)
def test_unusable_losses(loss: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_step(nn.Linear(6, 6).double(), batches()[0], loss=loss, optimizer=SGD_STEP)


def test_unusable_arguments() -> None:
    with pytest.raises(TypeError, match=r"got \['int'\]"):
        training_step(nn.Linear(6, 6), [3], optimizer=SGD_STEP)  # type: ignore[list-item]
    for options in ({"lr": -1.0}, {"lr": 0.1, "momentum": -0.5}, {"lr": float("nan")}):
        with pytest.raises(ValueError, match="must be a finite number"):
            SGD(**options)
    with pytest.raises(ValueError, match="nesterov needs momentum"):
        SGD(lr=0.1, nesterov=True)


def test_only_the_frontend_of_torch_needs_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None;"
        "import disco_fuse, disco_fuse.frontend, disco_fuse.insert, disco_fuse.errors"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_step_is_a_value() -> None:
    step = training_step(
        nn.Linear(6, 6).double(), batches()[0], loss=F.mse_loss, optimizer=SGD_STEP
    )
    assert isinstance(step, TrainingStep)
    with pytest.raises(AttributeError):
        step.input_names = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        step.gradient_names["weight"] = "x"  # type: ignore[index]
