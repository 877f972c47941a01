"""Buckets on host memory: bits of numpy, formulas of the optimizers, and refusal of bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from bucket_reference import (
    DTYPES,
    RULES,
    UPDATES,
    Buffers,
    assert_equal_values,
    assert_same,
    bucket_specs,
    float32_around,
    numpy_dtype,
    pack,
    random_buffers,
    unpack,
    update,
)
from hypothesis import given, settings
from tvm import relax

from disco_fuse.frontend import SGD, Adam, AdamW, Optimizer
from disco_fuse.frontend.optimizer import Trained
from disco_fuse.kernels.bucket import BucketSpec, BucketTensor, UpdateRule, dense_bucket


@given(spec=bucket_specs(rules=["none"]))
@settings(max_examples=200, deadline=None)
def test_pack_and_unpack(spec: BucketSpec) -> None:
    mine = random_buffers(spec)
    expected = mine.copy()
    spec.pack(mine.tensors, mine.bucket)
    pack(spec, expected.tensors, expected.bucket)
    assert_same(mine, expected)
    mine.bucket[:] = expected.bucket[:] = random_buffers(spec, seed=1).bucket
    spec.unpack(mine.bucket, mine.tensors)
    unpack(spec, expected.bucket, expected.tensors)
    assert_same(mine, expected)


@given(spec=bucket_specs(rules=UPDATES))
@settings(max_examples=200, deadline=None)
def test_updates(spec: BucketSpec) -> None:
    mine = random_buffers(spec)
    expected = mine.copy()
    for step in range(1, 5):
        scalars = spec.step_scalars(0.1, step)
        spec.unpack_update(mine.bucket, mine.tensors, mine.states, scalars)
        update(spec, expected, scalars)
    assert_same(mine, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_values_of_16_bits(dtype: str) -> None:
    spec = dense_bucket([2**16], ["float32"], dtype=dtype)
    every_value = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))
    tensor, bucket = np.empty(2**16, "float32"), every_value.copy()
    spec.unpack(bucket, [tensor])
    np.testing.assert_array_equal(tensor, every_value.astype("float32"))
    for values in float32_around(every_value):
        spec.pack([values], bucket)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(numpy_dtype(dtype))
        assert_equal_values(bucket, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tensor_dtype", DTYPES)
def test_nothing_is_read_beyond_the_end(tensor_dtype: str, dtype: str) -> None:
    """Arrays of odd length end where memory ends."""
    tensors = (BucketTensor(count=1043, dtype=tensor_dtype, offset=0),)
    spec = BucketSpec(tensors=tensors, dtype=dtype, count=1043, scale=0.5, update=RULES["adam"])
    mine = random_buffers(spec).guarded()
    expected = mine.copy()
    spec.pack(mine.tensors, mine.bucket)
    pack(spec, expected.tensors, expected.bucket)
    scalars = spec.step_scalars(0.1, 1)
    spec.unpack_update(mine.bucket, mine.tensors, mine.states, scalars)
    update(spec, expected, scalars)
    assert_same(mine, expected)


def _step_of(optimizer: Optimizer, dtype: str, count: int) -> Any:
    """The optimizer's own operators for one parameter, compiled: (p, g, states, shared) -> new."""
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((count,), dtype)
    p, g = relax.Var("p", tensor), relax.Var("g", tensor)
    states = {s.name: relax.Var(s.name, tensor) for s in optimizer.state((count,), dtype)}
    shared = {
        s.name: relax.Var(s.name, relax.TensorType((), s.dtype)) for s in optimizer.shared_state()
    }
    with builder.function("main", [p, g, *states.values(), *shared.values()]):
        with builder.dataflow():
            trained = Trained(parameter=p, gradient=g, state=states)
            made = optimizer.emit(builder, [trained], shared)
            results = [made.parameters[0], *(made.states[0][name] for name in states)]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    executable = tvm.compile(builder.finalize(), target="llvm")
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.1),
    "sgd with weight decay": SGD(lr=0.1, weight_decay=0.02),
    "momentum": SGD(lr=0.1, momentum=0.9),
    "nesterov": SGD(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.03),
    "adam": Adam(lr=0.1),
    "adam with weight decay": Adam(lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    "adamw": AdamW(lr=0.1, weight_decay=0.1),
    "adamw without weight decay": AdamW(lr=0.1, weight_decay=0.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_graph(name: str, dtype: str) -> None:
    """Ten steps of the optimizer's Relax operators; a compiler may contract products and sums."""
    count, optimizer = 100, OPTIMIZERS[name]
    spec = dense_bucket([count], [dtype], dtype=dtype, update=RULES[name])
    buffers = random_buffers(spec)
    for array in (one for arrays in buffers.states.values() for one in arrays):
        array[:] = 0
    main = _step_of(optimizer, dtype, count)
    theirs = [buffers.tensors[0].copy(), *(buffers.states[s][0].copy() for s in spec.state_names)]
    shared = {s.name: s.initial() for s in optimizer.shared_state()}
    for step in range(1, 11):
        buffers.bucket[:count] = np.random.default_rng(step).standard_normal(count)
        inputs = [theirs[0], buffers.bucket[:count].copy(), *theirs[1:], *shared.values()]
        theirs = [out.numpy() for out in main(*map(tvm.runtime.tensor, inputs))]
        if "step" in shared:
            shared["step"] = np.array(float(step))
        spec.unpack_update(
            buffers.bucket, buffers.tensors, buffers.states, spec.step_scalars(0.1, step)
        )
    mine = [buffers.tensors[0], *(buffers.states[s][0] for s in spec.state_names)]
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for actual, expected in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_shapes_do_not_matter_and_views_of_bits_do() -> None:
    """Tensors of TVM in bfloat16 and their bits in numpy are the same."""
    spec = dense_bucket([6], ["bfloat16"], dtype="bfloat16", scale=0.5)
    values = np.arange(6).reshape(2, 3).astype(numpy_dtype("bfloat16"))
    buckets = [np.zeros(8, np.uint16), np.zeros(8, numpy_dtype("bfloat16"))]
    spec.pack([tvm.runtime.tensor(values)], buckets[0])
    spec.pack([values], buckets[1])
    for bucket in buckets:
        np.testing.assert_array_equal(
            bucket.view(np.uint16)[:6], (values / 2).view(np.uint16).ravel()
        )


def test_scalars_of_a_step() -> None:
    def scalars(rule: str, step: int) -> dict[str, float]:
        spec = dense_bucket([1], ["float32"], update=RULES[rule])
        return dict(zip(spec.scalar_names, spec.step_scalars(0.5, step), strict=True))

    assert scalars("none", 1) == {}
    assert scalars("momentum", 3) == {"learning_rate": 0.5}
    assert scalars("adam", 2) == {
        "step_size": 0.5 / (1 - 0.9**2),
        "root": (1 - 0.999**2) ** 0.5,
    }
    assert scalars("adamw", 1)["kept"] == 1 - 0.5 * 0.1
    spec = dense_bucket([1], ["float32"], update=RULES["adam"])
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        spec.step_scalars(0.1, 0)
    for rate in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="learning_rate must be a finite number >= 0"):
            spec.step_scalars(rate, 1)


GOOD = BucketSpec(
    tensors=(BucketTensor(count=3, offset=0), BucketTensor(count=2, offset=4)), count=6
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": ()}, "bucket 'bucket': has no tensors; at least one is needed"),
        ({"tensors": (BucketTensor(count=-1, offset=0),)}, "tensor 0 has -1 elements; allowed: 0"),
        ({"tensors": (BucketTensor(count=1, offset=-2),)}, "offset -2 does not fit"),
        ({"count": 5}, "tensor 1 of 2 elements at offset 4 does not fit .* 5 elements"),
        ({"tensors": (BucketTensor(count=2**62, offset=3),)}, "does not fit"),
        ({"count": -1}, r"count must be 0 to 2\^40 elements, got -1"),
        ({"count": 2**41}, r"count must be 0 to 2\^40"),
        (
            {"tensors": (BucketTensor(count=2, offset=3), BucketTensor(count=4, offset=0))},
            "tensors 1 and 0 overlap in the bucket",
        ),
        (
            {"tensors": (BucketTensor(count=1, dtype="int8", offset=0),)},
            "dtype 'int8'; allowed: float32, float64, float16, bfloat16",
        ),
        ({"dtype": "f32"}, "dtype 'f32'; allowed"),
        ({"scale": 0.0}, "scale must be positive, from 1e-30 to 1e30, got 0"),
        ({"scale": -0.5}, "scale must be positive"),
        ({"scale": float("nan")}, "scale must be positive.* got nan"),
        ({"scale": float("inf")}, "scale must be positive"),
        ({"name": "2x"}, "must be an identifier"),
        ({"name": ""}, "must be an identifier"),
        ({"alignment_bytes": 4}, "power of two from 8 to 4096, got 4"),
        ({"alignment_bytes": 24}, "power of two from 8 to 4096, got 24"),
        ({"update": UpdateRule(kind="lion")}, "no update rule 'lion'; allowed: none, sgd, adam"),
        ({"update": UpdateRule(kind="sgd", momentum=-1.0)}, "momentum must be from 0 to 1e30"),
        ({"update": UpdateRule(kind="sgd", nesterov=True)}, "nesterov needs momentum > 0"),
        ({"update": UpdateRule(kind="adam", momentum=0.9)}, "momentum belongs to .* sgd only"),
        ({"update": UpdateRule(weight_decay=0.1)}, "weight_decay needs an update rule"),
        ({"update": UpdateRule(kind="adam", beta1=1.0)}, "beta1 must be from 0 to below 1, got 1"),
        ({"update": UpdateRule(kind="adamw", beta2=-0.1)}, "beta2 must be from 0 to below 1"),
        ({"update": UpdateRule(kind="adam", eps=float("nan"))}, "eps must be from 0 to 1e30"),
        ({"update": UpdateRule(kind="adam", weight_decay=1e31)}, "weight_decay must be from 0"),
    ],
)
def test_bad_specs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **change)


def test_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="2 counts need as many dtypes, got 1"):
        dense_bucket([1, 2], ["float32"])


def _arrays(*counts: int, dtype: str = "float32") -> list[Any]:
    return [np.zeros(count, dtype) for count in counts]


@pytest.mark.parametrize(
    ("tensors", "bucket", "error", "message"),
    [
        (_arrays(3), np.zeros(6, "f"), ValueError, "one of tensors for each of the 2 .*got 1"),
        (_arrays(3, 3), np.zeros(6, "f"), ValueError, r"tensors\[1\] must have 2 elements, got 3"),
        (_arrays(3, 2), np.zeros(7, "f"), ValueError, "the bucket must have 6 elements, got 7"),
        (_arrays(3, 2), np.zeros(6), TypeError, "the bucket must be of float32, got float64"),
        (
            _arrays(3, 2, dtype="i4"),
            np.zeros(6, "f"),
            TypeError,
            r"tensors\[0\] must be of float32",
        ),
        ([np.zeros(6, "f")[::2], np.zeros(2, "f")], np.zeros(6, "f"), ValueError, "contiguous"),
    ],
)
def test_bad_arrays(tensors: list[Any], bucket: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GOOD.pack(tensors, bucket)
    with pytest.raises(error, match=message):
        GOOD.unpack(bucket, tensors)


def test_bad_updates() -> None:
    spec = replace(GOOD, update=RULES["adam"])
    buffers = random_buffers(spec)
    scalars = spec.step_scalars(0.1, 1)

    def run(buffers: Buffers, scalars: Any = scalars) -> None:
        spec.unpack_update(buffers.bucket, buffers.tensors, buffers.states, scalars)

    with pytest.raises(ValueError, match=r"states \['exp_avg', 'exp_avg_sq'\], got \['exp_avg'\]"):
        run(replace(buffers, states={"exp_avg": buffers.states["exp_avg"]}))
    with pytest.raises(ValueError, match="2 states and 2 scalars, got 2 and 1"):
        run(buffers, scalars[:1])
    wide = [array.astype("float64") for array in buffers.states["exp_avg"]]
    with pytest.raises(TypeError, match=r"exp_avg\[0\] must be of float32, got float64"):
        run(replace(buffers, states=buffers.states | {"exp_avg": wide}))
    with pytest.raises(ValueError, match=r"has an update rule: unpack it by unpack_update\(\)"):
        spec.unpack(buffers.bucket, buffers.tensors)
    with pytest.raises(ValueError, match="has no update rule"):
        GOOD.unpack_update(buffers.bucket, buffers.tensors, {}, ())


def test_all_dtypes_are_covered() -> None:
    """Specs with each dtype exist: the strategy's list is that of the error message."""
    with pytest.raises(ValueError, match=", ".join(DTYPES)):
        replace(GOOD, dtype="complex64")
