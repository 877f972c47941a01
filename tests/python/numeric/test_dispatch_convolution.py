"""Dispatched and generated convolutions in whole steps: what becomes a call, and its numbers."""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name used everywhere
import tvm
from eager_reference import assert_close
from lowered_steps import step as small_step
from test_strategies import run_in_place
from torch import nn
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.build import build
from disco_fuse.extract import extract
from disco_fuse.frontend.optimizer import SGD
from disco_fuse.frontend.torch import to_torch_optimizer, training_step
from disco_fuse.graph import OpClass, OpKind
from disco_fuse.kernels.generate_convolution import GenerateConvolution
from disco_fuse.kernels.library import (
    convolution_facts,
    convolution_plan_of,
    convolution_signature,
    is_library_convolution,
    library_available,
    load_library,
)
from disco_fuse.lower import lower
from disco_fuse.needs import check_needs
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, choose_generated, profile_ops
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.target import gpu_target, host_target

TARGET = host_target()
needs_torch_library = pytest.mark.skipif(
    not library_available(), reason="needs the library inside torch"
)


class Residual(nn.Module):  # type: ignore[misc]
    """ResNet18's parts in small: 3x3 convolutions, a strided 1x1 shortcut, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.first = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.grouped = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4)
        self.up = nn.ConvTranspose2d(16, 6, 2, stride=2)
        self.classifier = nn.Linear(6, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 2)
        y = self.second(F.relu(self.first(x)))
        y = F.relu(y + self.shortcut(x))
        y = self.up(F.relu(self.grouped(y)))
        logits: torch.Tensor = self.classifier(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits


@functools.cache
def model_step(dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...], Any]:
    torch.manual_seed(0)
    model = Residual().to(dtype)
    batch = (torch.randn(4, 3, 16, 16, dtype=dtype), torch.randint(0, 5, (4,)))
    optimizer = SGD(lr=0.05, momentum=0.9)
    return model, batch, training_step(model, batch, loss=F.cross_entropy, optimizer=optimizer)


def convolutions(mod: tvm.IRModule) -> list[Any]:
    values = (b.value for block in mod["main"].body.blocks for b in block.bindings)
    return [value for value in values if is_library_convolution(value)]


@needs_torch_library
@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_a_step_equals_eager_torch(generated: bool, dtype: torch.dtype, tolerance: float) -> None:
    load_library()
    model, batch, step = model_step(dtype)
    mod = lower(step.mod, TARGET, library=True)
    results = Counter(convolution_plan_of(call).result for call in convolutions(mod))
    # Six layers, one of them transposed: its input gradient is a convolution, its result "large".
    # The images need no gradient.
    assert results == {"small": 6, "large": 5, "weight": 6}
    if generated:
        mod = GenerateConvolution(None, TARGET)(mod)
        assert convolutions(mod) == []
    extraction = extract(mod)
    of_class = [op for op in extraction.graph.ops if op.op_class == OpClass.CONVOLUTION]
    assert len(of_class) == 17
    assert all(op.flops > 0 and op.bytes_read > 0 for op in of_class)
    assert {op.kind for op in of_class} == {OpKind.COMPUTE if generated else OpKind.LIBRARY}
    built = build(apply(mod, extraction, baseline("op_fusion", mod, extraction)), TARGET)
    arguments = [part.numpy() for part in batch] + list(step.initial_values())
    loss, *state = run_in_place(built, arguments, len(batch))
    reference = copy.deepcopy(model)
    theirs = to_torch_optimizer(SGD(lr=0.05, momentum=0.9), list(reference.parameters()))
    value = F.cross_entropy(reference(batch[0]), batch[1])
    value.backward()
    theirs.step()
    assert_close(loss, value.detach(), "loss", tolerance)
    tensors = dict(reference.named_parameters()) | dict(reference.named_buffers())
    compared = 0
    for name, ours in zip(step.names, state, strict=True):
        if name in tensors:
            assert_close(ours, tensors[name].detach(), name, tolerance)
            compared += 1
    assert compared == len(tensors)


def test_dispatching_needs_no_library_and_leaves_its_input() -> None:
    _, _, step = model_step(torch.float32)
    before = step.mod.script()
    kept = lower(step.mod, TARGET, library=False)
    on_gpu = lower(step.mod, gpu_target(), library=False)
    assert convolutions(kept) == convolutions(on_gpu) == []
    assert len(convolutions(lower(step.mod, TARGET, library=True))) == 17
    marked = lower(step.mod, TARGET, library=True, library_convolutions=True)
    assert convolutions(marked) == []
    assert step.mod.script() == before


@pytest.mark.parametrize(
    ("shapes", "options", "reason"),
    [
        ([(2, 3, 8, 8), (4, 3, 3, 3)], {"padding": [0, 1, 1, 1]}, "differs between both sides"),
        ([(2, 8, 8, 3), (4, 3, 3, 3)], {"data_layout": "NHWC"}, r"\['NHWC'\] and OIHW"),
        ([(2, 3, 8, 8), (3, 3, 3, 4)], {"kernel_layout": "HWIO"}, r"\['NCHW'\] and HWIO"),
    ],
)
def test_what_the_library_cannot_do_stays(
    shapes: list[tuple[int, ...]],
    options: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mod = small_step(lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, **options)), *shapes)
    with caplog.at_level("DEBUG", logger="disco_fuse"):
        lowered = lower(mod, TARGET, library=True)
    assert convolutions(lowered) == []
    assert [record for record in caplog.messages if "is not dispatched" in record]
    assert re.search(reason, caplog.text)


def single(*, padding: int = 1) -> Any:
    mod = small_step(
        lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, padding=padding, groups=2)),
        (2, 4, 6, 7),
        (8, 2, 3, 3),
    )
    (call,) = convolutions(lower(mod, TARGET, library=True))
    return call


def test_facts_and_signature_of_a_call() -> None:
    call = single()
    item = 4
    flops, read, written = convolution_facts(call)
    assert flops == 2 * (2 * 8 * 6 * 7) * (2 * 3 * 3)
    assert read == item * (2 * 4 * 6 * 7 + 8 * 2 * 9)
    assert written == item * 2 * 8 * 6 * 7
    assert convolution_signature(call) == (
        "convolution/float32/2x4x6x7/8x2x3x3/2x8x6x7/0,2,2,1,1,1,1,1,1"
    )
    assert convolution_signature(call) == convolution_signature(single())
    assert convolution_signature(call) != convolution_signature(single(padding=2))
    with pytest.raises(ValueError, match=r"expected a call of disco_fuse\.kernels\.convolution"):
        convolution_plan_of(call.args[1].fields[0])


@needs_torch_library
def test_the_faster_candidate_is_measured_once(tmp_path: Path) -> None:
    load_library()
    mod = small_step(
        lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, padding=1)), (2, 8, 8, 8), (32, 8, 3, 3)
    )
    mod = lower(mod, TARGET, library=True)
    (call,) = convolutions(mod)
    measured: list[str] = []
    with ProfileDatabase(tmp_path / "profile.sqlite") as database:
        for _ in range(2):
            chosen = choose_generated(mod, TARGET, database, lambda *args: measured.append(args[2]))
        assert measured == [convolution_signature(call)]
        assert chosen <= set(measured)
        for signatures in (frozenset(), frozenset(measured)):
            variant = GenerateConvolution(signatures, TARGET)(mod)
            assert len(convolutions(variant)) == 1 - len(signatures)
            (time_us,) = profile_ops(variant, extract(variant), TARGET, database)
            assert time_us > 0


def test_an_empty_convolution_stays_a_call() -> None:
    mod = small_step(
        lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, padding=1)), (0, 8, 8, 8), (32, 8, 3, 3)
    )
    assert (
        len(convolutions(GenerateConvolution(None, TARGET)(lower(mod, TARGET, library=True)))) == 1
    )


@needs_torch_library
def test_a_plan_says_that_it_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, batch, step = model_step(torch.float32)
    mod = lower(step.mod, TARGET, library=True)
    for name, variant in (("calls", mod), ("none", GenerateConvolution(None, TARGET)(mod))):
        extraction = extract(variant)
        plan = write_plan(
            tmp_path / name,
            name="none",
            model="residual",
            mod=variant,
            extraction=extraction,
            strategy=baseline("none", variant, extraction),
            target=TARGET,
            world_size=1,
            cost_model={"name": "roofline", "digest": "d"},
            predicted={"makespan_us": 1.0},
            names=(*step.input_names, *step.names),
        )
        assert plan.needs.get("torch") == ("convolution" if name == "calls" else None)
    runner = StepRunner(tmp_path / "calls", loopback(), step.values)
    assert np.isfinite(runner.step([part.numpy() for part in batch])[0])
    monkeypatch.setattr("disco_fuse.needs.library_available", lambda: False)
    with pytest.raises(ValueError, match=r"convolution of torch's libtorch_cpu\.so, and torch is"):
        StepRunner(tmp_path / "calls", loopback(), step.values)
    check_needs({})


def test_a_gpu_step_cannot_call_it() -> None:
    _, _, step = model_step(torch.float32)
    mod = lower(step.mod, TARGET, library=True)
    with pytest.raises(ValueError, match=r"calls the .* of the CPU; for a GPU lower"):
        build(mod, gpu_target())
