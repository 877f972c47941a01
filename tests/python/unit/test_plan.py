"""Plan folders: what is written, re-applied and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from disco_fuse.baselines import baseline
from disco_fuse.build import build
from disco_fuse.extract import Extraction, extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.plan import Plan, load_plan, save_plan, write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_arguments, mlp_step, run_functional


def _lowered(widths: tuple[int, ...] = (6, 16, 4)) -> tuple[tvm.IRModule, Extraction]:
    mod = lower(InsertAllReduce()(mlp_step(widths=widths)), host_target(), library=False)
    return mod, extract(mod)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    _write(folder)
    return folder


def _write(folder: Path) -> Plan:
    mod, extraction = _lowered()
    return write_plan(
        folder,
        name="default",
        model="mlp",
        mod=mod,
        extraction=extraction,
        strategy=baseline("default", mod, extraction),
        target=host_target(),
        world_size=2,
        cost_model={"name": "roofline", "digest": "d"},
        predicted={"makespan_us": 1.0},
    )


def _changed(folder: Path, target: Path, **fields: object) -> Path:
    target.mkdir(exist_ok=True)
    data = json.loads((folder / "plan.json").read_text()) | fields
    (target / "plan.json").write_text(json.dumps(data))
    (target / "step.so").write_bytes((folder / "step.so").read_bytes())
    return target


def test_round_trip(folder: Path) -> None:
    plan = load_plan(folder)
    assert (plan.name, plan.model, plan.num_inputs) == ("default", "mlp", 2)
    assert [t.name for t in plan.tensors] == ["x", "y", "w0", "w1", "v0", "v1"]
    assert plan.tensors[2].shape == (6, 16)
    assert plan.num_allreduces == 1
    assert plan.cost_model == {"name": "roofline", "digest": "d"}
    assert "apache-tvm" in plan.versions
    assert plan.digest == load_plan(folder).digest


def test_strategy_is_reapplied_without_searching(folder: Path) -> None:
    mod, extraction = _lowered()
    strategy = load_plan(folder).strategy_for(extraction.graph)
    assert strategy == baseline("default", mod, extraction)


def test_plan_for_another_module_is_refused(folder: Path) -> None:
    _, other = _lowered((6, 17, 4))
    with pytest.raises(ValueError, match="plan 'default' is for another module"):
        load_plan(folder).strategy_for(other.graph)


def test_runs_and_updates_in_place(folder: Path) -> None:
    mod = mlp_step(gradients=False)
    arguments = mlp_arguments(mod)
    values = dict(zip(["w0", "w1", "v0", "v1"], arguments[2:], strict=True))
    runner = StepRunner(folder, loopback(), values)
    expected = arguments
    for _ in range(3):
        outputs = run_functional(mod, expected)
        expected = [*arguments[:2], *outputs[1:]]
        (loss,) = runner.step(arguments[:2])
        np.testing.assert_allclose(loss, outputs[0], rtol=1e-5)
    for name, value in zip(["w0", "w1", "v0", "v1"], expected[2:], strict=True):
        np.testing.assert_allclose(runner.values()[name], value, rtol=1e-4, atol=1e-6)
    # the caller's arrays are not touched
    np.testing.assert_array_equal(values["w0"], mlp_arguments(mod)[2])
    events = runner.recorded_step(arguments[:2])
    assert len(events.kernel_names) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": 99}, "has schema version 99; this release reads 2"),
        ({"schema_version": None}, "has schema version None"),
        ({"step_sha256": "0" * 64}, "was changed after it was written, in step_sha256;"),
        (
            {"world_size": 3, "name": "ours"},
            "was changed after it was written, in name, world_size;",
        ),
        ({"surprise": 1}, "was changed after it was written, in surprise;"),
        ({"needs": {}}, "was changed after it was written, in needs;"),
        ({"digests": {}}, "not a complete plan: it has no digest of every entry"),
        ({"digests": None}, "not a complete plan: it has no digest of every entry"),
    ],
)
def test_damaged_plans_are_refused(
    folder: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(_changed(folder, tmp_path, **fields))


def test_entries_must_be_complete(folder: Path, tmp_path: Path) -> None:
    _changed(folder, tmp_path)
    data = json.loads((tmp_path / "plan.json").read_text())
    del data["needs"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="was changed after it was written, in needs;"):
        load_plan(tmp_path)


def test_a_saved_plan_is_whole_again(folder: Path, tmp_path: Path) -> None:
    _changed(folder, tmp_path)
    plan = replace(load_plan(folder), world_size=7)
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan


def test_another_step_is_refused(folder: Path, tmp_path: Path) -> None:
    (_changed(folder, tmp_path) / "step.so").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"step\.so is not the file .* its hash differs"):
        load_plan(tmp_path)


def test_another_tvm_is_refused(folder: Path, tmp_path: Path) -> None:
    _changed(folder, tmp_path)
    plan = load_plan(folder)
    assert plan.needs["tvm"] == tvm.__version__
    save_plan(tmp_path, replace(plan, needs={**plan.needs, "tvm": "0.26.0"}))
    message = f"it was compiled by TVM 0.26.0, here is TVM {tvm.__version__}"
    with pytest.raises(ValueError, match=message):
        StepRunner(tmp_path, loopback(), {})


def test_a_plan_that_cannot_be_made_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the library is linked."""
    plan = _write(tmp_path)
    before = (tmp_path / "step.so").read_bytes()

    def full(output: str, *_: object, **__: object) -> None:
        Path(output).write_bytes(b"half")
        raise RuntimeError("No space left on device")

    monkeypatch.setattr("tvm.support.cc.create_shared", full)
    with pytest.raises(RuntimeError, match="No space left on device"):
        _write(tmp_path)
    assert load_plan(tmp_path) == plan
    assert (tmp_path / "step.so").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plan.json", "step.so"]


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plan\.json cannot be read"):
        load_plan(tmp_path)
    (_changed(folder, tmp_path) / "step.so").unlink()
    with pytest.raises(ValueError, match=r"step\.so is missing"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json cannot be read"):
        load_plan(tmp_path)


def test_values_must_fit(folder: Path) -> None:
    arguments = mlp_arguments(mlp_step())
    values = dict(zip(["w0", "w1", "v0", "v1"], arguments[2:], strict=True))
    with pytest.raises(
        ValueError, match=r"'w1' is float64\[3\], but the plan wants float32\[16, 4"
    ):
        StepRunner(folder, loopback(), values | {"w1": np.zeros(3)})
    del values["v1"]
    with pytest.raises(ValueError, match="no value for 'v1'"):
        StepRunner(folder, loopback(), values)


def test_only_cpus_and_cuda_are_built() -> None:
    with pytest.raises(ValueError, match="'opencl' cannot be built; allowed: 'llvm', 'cuda'"):
        build(mlp_step(), tvm.target.Target("opencl", host="llvm"))
