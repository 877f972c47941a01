"""What a user's own model, loss or batches do wrong is said in a line, with where."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="workloads are torch models")

import torch
from click.testing import CliRunner, Result

import disco_fuse.frontend.torch
from disco_fuse.cli.main import main
from disco_fuse.cluster import ClusterSpec
from disco_fuse.errors import UnsupportedOperatorError, WorkloadError
from disco_fuse.frontend import SGD, AdamW
from disco_fuse.frontend.torch import from_torch_optimizer, to_torch_optimizer
from disco_fuse.frontend.torch.export import without_reports_of_failure
from disco_fuse.user_code import user_code
from disco_fuse.workload import load_function, load_workload

MODEL = """
import sys
import numpy as np
import torch
from disco_fuse.frontend import SGD
from disco_fuse.workload import Workload

class Model(torch.nn.Module):
    def __init__(self, forward=lambda x: x):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.own = forward

    def forward(self, x):
        return self.linear(self.own(x))

def batch():
    return np.ones((3, 4), np.float32), np.zeros(3, np.int64)

def make(forward=lambda x: x, loss=torch.nn.functional.cross_entropy, batches=None):
    return Workload(
        name="mine", model=Model(forward), loss=loss, optimizer=SGD(lr=0.1),
        batches=batches or (lambda rank, size: iter([batch()])),
    )

def say(x):
    print("printed by the model")
    return x

def wrong(x):
    return {}["missing"]

def leave(x):
    sys.exit(0)

def of_strings(output, target):
    return output.no_such_thing

def breaks(output, target):
    raise AssertionError("two\\nlines")

def stop(rank, size):
    raise IndexError("beyond")
    yield

class Weird(Exception):
    def __str__(self):
        raise ValueError

def weird():
    raise Weird

fine = lambda: make(say)
forward_raises = lambda: make(wrong)
forward_leaves = lambda: make(leave)
forward_shape = lambda: make(lambda x: x[:, :3])
loss_attribute = lambda: make(loss=of_strings)
loss_raises = lambda: make(loss=breaks)
no_batch = lambda: make(batches=lambda rank, size: iter(()))
batch_raises = lambda: make(batches=stop)
parts = lambda: (Model(), tuple(map(torch.from_numpy, batch())), torch.nn.MSELoss(), SGD(lr=0.1))
named = lambda: dict(model=Model(), example_inputs=batch(), loss=of_strings, optimizer=SGD(lr=0.1))
three = lambda: parts()[:3]
one_input = lambda: (Model(), torch.ones(4), of_strings, SGD(lr=0.1))
of_torch = lambda: (m := Model(), batch(), of_strings, torch.optim.AdamW(m.parameters(), lr=0.5))
nadam = lambda: (m := Model(), batch(), of_strings, torch.optim.NAdam(m.parameters()))
amsgrad = lambda: (
    m := Model(), batch(), of_strings, torch.optim.Adam(m.parameters(), amsgrad=True)
)
no_loss = lambda: (Model(), batch(), None, SGD(lr=0.1))
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of a step only runs the model and the loss once."""

    def training_step(model: Any, example: Any, *, loss: Any, optimizer: Any) -> None:
        del optimizer
        loss(model(*example[:-1]), example[-1])
        raise UnsupportedOperatorError("this test goes no further")

    monkeypatch.setattr(disco_fuse.frontend.torch, "training_step", training_step)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("forward_raises", "the model or the loss of FILE:forward_raises raised KeyError at FILE,"),
        ("forward_leaves", "of FILE:forward_leaves raised SystemExit at FILE, line 34: 0"),
        ("forward_shape", "of FILE:forward_shape raised RuntimeError at FILE, line 15: mat1 and"),
        ("loss_attribute", "of FILE:loss_attribute raised AttributeError at FILE, line 37"),
        ("loss_raises", "of FILE:loss_raises raised AssertionError at FILE, line 40: two lines"),
        ("no_batch", "batches(0, 1) of workload 'mine' yields nothing"),
        ("batch_raises", "batches(0, 1) of workload 'mine' raised IndexError at FILE, line 43: be"),
        ("weird", "FILE:weird raised Weird at FILE, line 51: its text cannot be had: ValueError"),
        ("three", "FILE:three returned tuple of 3, not a Workload; allowed: a disco_fuse.workload"),
        ("batch", "FILE:batch returned tuple of 2, not a Workload"),
        ("one_input", "example_inputs must be a tuple of the model's inputs and the target, got"),
        ("nadam", "FILE:nadam: torch's NAdam with 1 groups of parameters has no counterpart here"),
        ("amsgrad", "FILE:amsgrad: Adam has no amsgrad here"),
        ("no_loss", "FILE:no_loss: loss must be a function (output, target) -> scalar, got None"),
    ],
)
@pytest.mark.parametrize("command", ["tune", "build", "extract"])
def test_each_is_a_wrong_call(command: str, function: str, message: str, file: Path) -> None:
    place = [] if command == "tune" else ["-O", str(file.with_name("out"))]
    done = run(command, f"{file}:{function}", *place)
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert message.replace("FILE", str(file)) in line
    assert [path.name for path in file.parent.iterdir() if path.suffix != ""] == ["mine.py"]


@pytest.mark.usefixtures("eager")
def test_what_a_model_prints_is_no_result(file: Path) -> None:
    done = run("tune", f"{file}:fine", "--json", "-")
    assert done.stdout == ""
    assert "printed by the model" in done.stderr
    assert (done.exit_code, "goes no further" in done.stderr) == (1, True)


def test_what_the_package_says_of_a_model_stays() -> None:
    with pytest.raises(ValueError, match=r"^no cluster 'mars'") as refused, user_code("a test"):
        ClusterSpec.load("mars")
    assert not isinstance(refused.value, WorkloadError)


def test_a_model_that_torch_cannot_export_shows_no_graph(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    error = RuntimeError("the model branches on values")
    error.partial_fx_graph = "graph():\n    %x\n    %y"  # type: ignore[attr-defined]

    log = logging.getLogger("torch._subclasses.fake_tensor")

    def fail() -> None:
        with without_reports_of_failure():
            print("said by the model", file=sys.stderr)
            print(error.partial_fx_graph, file=sys.stderr)  # type: ignore[attr-defined]
            log.error("a traceback of torch")
            raise error

    with pytest.raises(RuntimeError, match="branches"):
        fail()
    assert (caplog.text, log.disabled) == ("", False)
    with without_reports_of_failure():
        print("and again", file=sys.stderr)
    assert capsys.readouterr().err == "said by the model\nand again\n"


@pytest.mark.parametrize("function", ["parts", "named"])
def test_a_workload_in_parts(function: str, file: Path) -> None:
    workload = load_workload(f"{file}:{function}")
    assert workload.name == function
    batches = workload.batches(1, 2)
    for _ in range(2):
        x, target = next(batches)
        assert (x.shape, x.dtype, target.dtype) == ((3, 4), np.float32, np.int64)
    assert [x.shape for x in workload.example_batch()] == [(3, 4), (3,)]
    assert isinstance(workload.model, torch.nn.Module)


def test_an_optimizer_of_torch(file: Path) -> None:
    assert load_workload(f"{file}:of_torch").optimizer == AdamW(lr=0.5)
    momentum = torch.optim.SGD([torch.ones(2)], lr=0.1, momentum=0.9, nesterov=True)
    ours = SGD(lr=0.1, momentum=0.9, nesterov=True)
    assert from_torch_optimizer(momentum) == ours
    assert from_torch_optimizer(to_torch_optimizer(ours, [torch.ones(2)])) == ours


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return sys.path


def test_neighbours_and_the_current_folder(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_of_mine.py").write_text("def f():\n    return 3\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("def g():\n    return 4\n")
    (tmp_path / "sub" / "whole.py").write_text("from beside import g\n")
    first = path[0]
    monkeypatch.chdir(tmp_path)
    functions: list[Callable[..., Any]] = [
        load_function("parts_of_mine:f"),
        load_function("sub/whole.py:g"),
    ]
    assert [function() for function in functions] == [3, 4]
    assert path[0] == first
