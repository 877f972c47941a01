"""Sampling measures real kernels of real groups, goes on where it ended, and notices noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax

from disco_fuse.cli.main import main
from disco_fuse.dataset import SampleFile, measure, sampling
from disco_fuse.dataset.collect import collect, open_samples
from disco_fuse.dataset.learning import load_examples
from disco_fuse.dataset.measure import Reference, measure_kernels, timing_of
from disco_fuse.profile.kernels import buffer_sets, kernel_evaluator
from disco_fuse.target import host_target

TINY = Path(__file__).parents[1] / "shared" / "small_workload.py"
MODELS = [(f"{TINY}:workload", f"{TINY}:workload")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.db"
    command = ["sample", str(path), "--models", MODELS[0][1], "--groups", "12", "--json", "-"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return path


def test_groups_are_measured_with_all_their_ops(filled: Path) -> None:
    with SampleFile(filled) as file:
        groups, op_times = file.groups(), file.op_times_us()
        assert len(groups) == 12
        assert not file.failures()
        examples = load_examples(file)
    for item in groups:
        assert len(item.group.ops) > 1
        assert 0 < item.sample.median_us < 1e6
        assert item.sample.repeats >= 2 * 4 * 3
        for median in (item.first_us, item.again_us):
            assert 0 < median < 1e6
        assert all(op_times[op.signature] > 0 for op in item.graph.ops)
    # Fused work is the work of its ops: no outlandish factor, whatever the machine does meanwhile.
    ratios = [example.training.log_ratio for example in examples]
    assert abs(float(np.median(ratios))) < np.log(10)


def test_a_second_call_measures_only_what_is_new(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = host_target()
    names: list[str] = []
    real = sampling.measure_kernels

    def spy(functions: dict[str, Any], *rest: Any) -> Any:
        names.extend(functions)
        return real(functions, *rest)

    monkeypatch.setattr(sampling, "measure_kernels", spy)
    with open_samples(filled, target) as file:
        before = file.known()
        seen: list[int] = []
        counts = collect(file, MODELS, 12, target, progress=lambda done, _: seen.append(done))
        assert (names, seen) == ([], [])
        counts = collect(file, MODELS, 15, target, progress=lambda done, _: seen.append(done))
        assert list(counts.values()) == [15]
        new = file.known() - before
    fused = {name.removeprefix("fused_") for name in names if name.startswith("fused_")}
    assert fused == new
    assert len(new) == 3
    assert seen[0] == 12


def test_what_cannot_be_compiled_is_kept_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = host_target()
    real = sampling.measure_kernels
    culprit: list[str] = []

    def failing(functions: dict[str, Any], *rest: Any) -> Any:
        fused = [name for name in functions if name.startswith("fused_")]
        culprit.extend(fused[:1] if not culprit else [])
        if culprit[0] in functions:
            raise RuntimeError("LLVM says no")
        return real(functions, *rest)

    monkeypatch.setattr(sampling, "measure_kernels", failing)
    with open_samples(tmp_path / "s.db", target) as file:
        counts = collect(file, MODELS, 5, target)
        assert list(counts.values()) == [5]
        assert file.failures() == {culprit[0].removeprefix("fused_"): "RuntimeError: LLVM says no"}


class FakeReference(Reference):
    """Quiet at 5 us, and then whatever the test says."""

    def __init__(self, times_us: list[float]) -> None:
        self._sorted_us = [5.0]
        self.times_us = times_us

    def measure(self) -> float:
        return self.times_us.pop(0) if self.times_us else 5.0


def test_disturbed_rounds_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes 3 us; while the reference is slow, 30."""
    reference = FakeReference([5.0, 5.0, 9.0, 5.0, 5.0, 9.0])
    monkeypatch.setattr(
        measure, "_calls", lambda *_: [30.0 if len(reference.times_us) in (3, 1) else 3.0]
    )
    rounds = measure._rounds(lambda *_: None, [[]], reference)
    assert len(rounds) == 6
    timing = timing_of([rounds, rounds], reference)
    assert timing.sample.median_us == timing.sample.p90_us == 3.0
    assert not timing.disturbed
    assert timing.reference_us == 5.0


def test_one_fast_moment_does_not_make_the_rest_disturbed() -> None:
    reference = FakeReference([])
    reference._sorted_us = [*[3.0] * 6, *[5.0] * 30, 9.0]
    assert reference.quiet_us == 5.0
    assert reference.is_quiet(5.2)
    assert not reference.is_quiet(9.0)


def test_what_stays_disturbed_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = FakeReference([9.0] * 1000)
    monkeypatch.setattr(measure, "_calls", lambda *_: [30.0])
    rounds = measure._rounds(lambda *_: None, [[]], reference)
    assert len(rounds) == measure._MOST_ROUNDS
    assert timing_of([rounds, rounds], reference).disturbed


def test_times_follow_the_work() -> None:
    """A kernel of 64 times the elements takes longer, by far more than noise."""
    target = host_target()
    kernels = {f"n{n}": _chain(n) for n in (2**12, 2**18)}
    timings = measure_kernels(kernels, target, Reference(target))
    assert timings["n262144"].sample.p10_us > 4 * timings["n4096"].sample.p10_us


def test_short_kernels_are_timed_several_calls_at_once() -> None:
    """A clock of 10 ns cannot tell the times of calls of 30 ns apart; that of many calls can."""
    target = host_target()
    library = measure.compile_kernels({"short": _chain(4), "long": _chain(2**18)}, target)
    calls: dict[str, int] = {}

    class Library:
        def time_evaluator(self, name: str, device: Any, number: int) -> Any:
            calls[name] = number
            return library.time_evaluator(name, device, number=number)

    for name, size in (("short", 4), ("long", 2**18)):
        (arguments, *_) = buffer_sets([relax.TensorType((size,), "float32")] * 2)
        kernel_evaluator(Library(), name, arguments)
    assert calls["short"] > 10
    assert calls["long"] == 1


def _chain(num_elements: int) -> Any:
    x = tvm.te.placeholder((num_elements,), "float32", "x")
    y = tvm.topi.exp(x)
    return tvm.te.create_prim_func([x, y])
