"""Kernels that no rule can read, or whose rule raises, are served by the last rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from lowered_steps import lowered, step
from numpy.typing import NDArray
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.baselines import baseline
from disco_fuse.build import build
from disco_fuse.kernel_cache import KernelCache
from disco_fuse.target import host_target

X = np.random.default_rng(0).standard_normal((6, 37)).astype(np.float32)


def _run(emit_body: Callable[..., Any], cache: KernelCache | None) -> NDArray[Any]:
    mod, extraction = lowered(step(emit_body, X.shape))
    fused = apply(mod, extraction, baseline("op_fusion", mod, extraction))
    built = build(fused, host_target(), cache)
    main = relax.VirtualMachine(built.executable, tvm.cpu())["main"]
    return main(tvm.runtime.tensor(X)).numpy()


@pytest.mark.parametrize("cached", [False, True])
def test_a_rule_that_raises_is_passed_over(
    cached: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def raises(*_: Any) -> None:
        raise RuntimeError("a rule of mine")

    monkeypatch.setattr("disco_fuse.kernels.cpu.driver.plan_nests", raises)
    with caplog.at_level(logging.DEBUG, logger="disco_fuse"):
        found = _run(
            lambda emit, x: emit(relax.op.sum(emit(relax.op.multiply(x, x)), axis=1)),
            KernelCache(folder=tmp_path) if cached else None,
        )
    np.testing.assert_allclose(found, (X * X).sum(axis=1), rtol=1e-5)
    assert "plain: served a kernel that no other rule could read: a rule of mine" in caplog.text


@pytest.mark.parametrize("cached", [False, True])
def test_an_op_without_a_rule(
    cached: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sorting is a call of a function of TVM's runtime, inside of a kernel."""
    with caplog.at_level(logging.DEBUG, logger="disco_fuse"):
        found = _run(
            lambda emit, x: emit(relax.op.sort(emit(relax.op.negative(x)), axis=1)),
            KernelCache(folder=tmp_path) if cached else None,
        )
    np.testing.assert_array_equal(found, np.sort(-X, axis=1))
    assert "plain: served a kernel that no other rule could read" in caplog.text
