"""Measuring kernels beside a copy: what is counted, and which kernels are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disco_fuse.bench.kernels import groups
from disco_fuse.bench.kernels.groups import GroupTime, has_transcendental, time_kernels
from disco_fuse.bench.kernels.synthetic import synthetic_kernels
from disco_fuse.target import host_target

SCALE = 32  # 2.5 MiB instead of 80


@pytest.fixture(scope="module")
def kernels() -> dict[str, Any]:
    return synthetic_kernels(host_target(), SCALE)


def group_time(**changes: Any) -> GroupTime:
    values = {
        "model": "m",
        "name": "g",
        "rule": "rows",
        "bytes": 100 * 2**20,
        "flops": 1e6,
        "transcendental": False,
        "ms": 10.0,
        "copy_ms": 6.0,
        "arithmetic_ms": 8.0,
    }
    return GroupTime(**{**values, **changes})


def test_big_groups_are_measured_against_the_copy_alone() -> None:
    assert group_time().share == pytest.approx(0.6)
    assert group_time(bytes=64 * 2**20).share == pytest.approx(0.8)
    assert group_time(transcendental=True).share == pytest.approx(0.8)
    assert group_time().to_json()["big"] is True


def test_the_copy_moves_as_many_bytes_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []

    def copyto(sink: np.ndarray, source: np.ndarray) -> None:
        moved.append(sink.nbytes + source.nbytes)

    monkeypatch.setattr(groups.np, "copyto", copyto)
    groups._copy(2**20)()
    assert moved == [2**20]


def test_best_times_leave_the_first_call_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 1, 1, 2, 2, 7, 7, 10, 10, 14, 14, 19])  # 1 1 | 5 3 | 4 5
    monkeypatch.setattr(groups.time, "thread_time", lambda: float(next(clock)))
    assert groups._in_turn(lambda: None, lambda: None, 2) == [4.0, 3.0]


def test_transcendental_functions_are_found(kernels: dict[str, Any]) -> None:
    found = {name for name, func in kernels.items() if has_transcendental(func)}
    assert found == {"gelu", "softmax"}


def test_every_kind_of_rule_is_measured(kernels: dict[str, Any]) -> None:
    chosen = ["bias_gradient", "transpose", "scatter", "momentum", "layer_norm"]
    some = {name: kernels[name] for name in chosen}
    times = time_kernels(some, host_target(), 80.0, "synthetic", 2)
    assert {t.name for t in times} == set(chosen)
    assert [t.bytes for t in times] == sorted((t.bytes for t in times), reverse=True)
    by_name = {t.name: t for t in times}
    assert by_name["bias_gradient"].rule == "columns"
    assert by_name["transpose"].rule == "transpose"
    assert by_name["scatter"].rule.endswith("opaque")
    momentum = by_name["momentum"]
    assert (momentum.rule, momentum.bytes) == ("rows", 5 * 640 * 1024 * 4)  # three in, two out
    assert all(t.ms > 0 and t.copy_ms > 0 and t.share > 0 for t in times)


def test_kernels_below_a_mebibyte_are_left_out() -> None:
    small = synthetic_kernels(host_target(), 2048)["elementwise"]
    assert time_kernels({"small": small}, host_target(), 80.0, "synthetic", 1) == []
