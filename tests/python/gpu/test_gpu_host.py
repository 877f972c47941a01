"""The check of a GPU host: on one it must pass, elsewhere it says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import check_gpu_host
import numpy as np
import pytest
import tvm

from disco_fuse.plan import load_plan


def _arch() -> str:
    return "sm_" + str(tvm.cuda(0).compute_version).replace(".", "")


def test_plans_are_written_and_left_out_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_gpu_host.write(tmp_path, "sm_80", models=())
    assert load_plan(tmp_path / "mlp" / "gpu").needs["gpu"] == "sm_80"
    assert load_plan(tmp_path / "mlp_allreduce" / "gpu").num_allreduces > 0
    for name, value in np.load(tmp_path / "mlp" / "expected.npz").items():
        same = np.load(tmp_path / "mlp_allreduce" / "expected.npz")[name]
        np.testing.assert_allclose(same, value, rtol=1e-5, atol=1e-6)
    expected = dict(np.load(tmp_path / "mlp" / "expected.npz"))
    assert sorted(expected) == ["output0", "v0", "v1", "w0", "w1"]
    assert not np.array_equal(expected["w0"], np.load(tmp_path / "mlp" / "values.npz")["w0"])
    monkeypatch.setattr("tvm.runtime.enabled", lambda _name: False)
    assert check_gpu_host.main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "left out: TVM finds no CUDA driver\n"


def test_wrong_results_are_named() -> None:
    right = {"output0": np.float32(1.0), "w": np.ones(3, "float32")}
    assert check_gpu_host.differences(right, right) == []
    wrong = {"w": np.array([1.0, 1.5, 1.0], "float32")}
    assert check_gpu_host.differences(wrong, right) == ["output0 is missing", "w differs by 0.5"]


def test_this_gpu_host(tmp_path: Path) -> None:
    reason = check_gpu_host.reason_to_skip()
    if reason:
        pytest.skip(reason)
    check_gpu_host.write(tmp_path, _arch())
    assert check_gpu_host.main(["check", str(tmp_path)]) == 0
