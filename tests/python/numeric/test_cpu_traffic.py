"""Rows fetched ahead, outputs stored past the caches, and float32 sums over many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from cpu_kernels import TARGETS, Build, TensorSpec, check, f32, f64, group, i64, kernel
from tvm import relax
from tvm.target import Target

from disco_fuse.kernels.cpu import BUILD_CONFIG, ScheduleCPU, context, rows_ahead, transpose

op = relax.op


def layer_norm(dtype: str) -> Build:
    def build(emit: Any, x: Any) -> Any:
        mean = emit(op.mean(x, [1], keepdims=True))
        centred = emit(op.subtract(x, mean))
        variance = emit(op.mean(emit(op.multiply(centred, centred)), [1], keepdims=True))
        shifted = emit(op.add(variance, relax.const(1e-5, dtype)))
        return emit(op.multiply(centred, emit(op.rsqrt(shifted))))

    return build


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def embedding(emit: Any, table: Any, tokens: Any) -> Any:
    return emit(op.negative(emit(op.take(table, tokens, axis=0))))


def turned(emit: Any, x: Any) -> Any:
    return emit(op.permute_dims(x))


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All outputs count as larger than the cache."""
    monkeypatch.setattr(context, "STREAMED_BYTES", 1)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs count as larger than the cache, and all rows as long enough."""
    monkeypatch.setattr(rows_ahead, "MIN_FETCHED_BYTES", 0)
    monkeypatch.setattr(rows_ahead, "MIN_ROW_BYTES", 0)


def streams(func: tvm.tirx.PrimFunc) -> bool:
    return "disco_fuse_stream" in func.script()


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("spec", [f32, f64])
def test_outputs_past_the_caches(
    monkeypatch: pytest.MonkeyPatch, spec: Any, target: Target
) -> None:
    monkeypatch.setattr(transpose, "MIN_BYTES", 0)
    x = spec(9, 133)
    assert streams(check(layer_norm(x[1]), [x], normalized, target=target))
    assert streams(check(turned, [spec(40, 70)], np.transpose, target=target))


def test_other_outputs_stay_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def scheduled(spec: TensorSpec, target: Target = TARGETS["avx2"]) -> tvm.tirx.PrimFunc:
        return kernel(ScheduleCPU(target)(group(turned, [spec])))

    monkeypatch.setattr(transpose, "MIN_BYTES", 0)
    assert not streams(scheduled(f32(40, 70)))
    monkeypatch.setattr(context, "STREAMED_BYTES", 1)
    assert streams(scheduled(f32(40, 70)))
    assert not streams(scheduled(i64(40, 70)))
    assert not streams(scheduled(f32(3, 1)))  # less than a vector
    cores = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    assert not streams(scheduled(f32(40, 70), cores))
    arm = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"})
    assert not streams(scheduled(f32(40, 70), arm))


@pytest.mark.usefixtures("streamed")
def test_one_fence_follows_all_streams() -> None:
    func = kernel(ScheduleCPU(TARGETS["avx2"])(group(layer_norm("float32"), [f32(9, 64)])))
    with tvm.transform.PassContext(config=BUILD_CONFIG):
        named = tvm.IRModule({"k": func.with_attr("global_symbol", "k")})
        assembly = tvm.compile(named, target=TARGETS["avx2"]).mod.inspect_source("s")
    assert assembly.count("sfence") == 1
    assert 0 <= assembly.rindex("vmovntps") < assembly.index("sfence")


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize("spec", [f32, f64])
def test_rows_ahead(rows: int, spec: Any) -> None:
    x = spec(rows, 45)
    func = check(layer_norm(x[1]), [x], normalized)
    assert ("T.prefetch" in func.script()) == (rows > 1)
    table = np.random.default_rng(0).standard_normal((11, 45)).astype(x[1])
    tokens = np.arange(rows) * 7 % 11
    inputs = [table, tokens]
    specs = [spec(11, 45), i64(rows)]
    func = check(embedding, specs, lambda t, i: -t[i], inputs=inputs)
    assert ("T.prefetch" in func.script()) == (rows > 1)


def test_what_is_small_or_one_walk_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "T.prefetch" not in check(layer_norm("float32"), [f32(9, 1024)], normalized).script()
    monkeypatch.setattr(rows_ahead, "MIN_FETCHED_BYTES", 0)

    def row_sum(emit: Any, x: Any) -> Any:
        return emit(op.sum(x, [1]))

    assert "T.prefetch" in check(layer_norm("float32"), [f32(9, 1024)], normalized).script()
    assert "T.prefetch" not in check(row_sum, [f32(9, 1024)], lambda x: x.sum(1)).script()


@pytest.mark.parametrize("shape", [(2**18, 8), (2**13, 32, 8)], ids=str)
def test_sums_over_many_rows_keep_their_digits(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape, np.float32)
    axes = tuple(range(len(shape) - 1))

    def build(emit: Any, x: Any) -> Any:
        return emit(op.sum(x, list(axes)))

    # One float32 sum after another is off by 2e-5 here.
    check(build, [f32(*shape)], lambda x: x.sum(axes), inputs=[x], rtol=2e-6)
