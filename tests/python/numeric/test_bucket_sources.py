"""Generated bucket sources give the bits of numpy: C as it is, CUDA with threads as loops."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import bucket_reference as oracle
import numpy as np
import pytest
from bucket_build import HAS_COMPILER, BuiltBucket, build_c, build_emulated_cuda
from hypothesis import HealthCheck, given, settings

from disco_fuse.kernels.bucket import (
    BucketSpec,
    BucketTensor,
    GeneratedSource,
    c_source,
    cuda_source,
    dense_bucket,
)

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="needs gcc and g++")
BUILDERS = {"c": build_c, "cuda": build_emulated_cuda}
SOURCES = {"c": c_source, "cuda": cuda_source}
each_language = pytest.mark.parametrize("language", BUILDERS)
# A compiler runs in each example.
_SETTINGS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def check(built: BuiltBucket, num_steps: int = 3) -> None:
    """Pack, then unpack or a few updates, each against numpy."""
    spec = built.spec
    mine = oracle.random_buffers(spec)
    expected = mine.copy()
    built.pack(mine)
    oracle.pack(spec, expected.tensors, expected.bucket)
    oracle.assert_same(mine, expected)
    if spec.update.kind == "none":
        changed = oracle.random_buffers(spec, seed=1)
        mine = oracle.Buffers(tensors=mine.tensors, bucket=changed.bucket, states={})
        built.unpack(mine)
        oracle.unpack(spec, changed.bucket, expected.tensors)
        oracle.assert_same(mine, replace(expected, bucket=changed.bucket))
    else:
        for step in range(1, num_steps + 1):
            scalars = spec.step_scalars(0.1, step)
            built.unpack(mine, scalars)
            oracle.update(spec, expected, scalars)
        oracle.assert_same(mine, expected)
    if built.is_cuda:
        assert built.num_misaligned() == 0


def all_pairs(dtype: str, rule: str) -> BucketSpec:
    """Every dtype twice, wide and narrow accesses, with odd ends."""
    return BucketSpec(
        tensors=(
            *(
                BucketTensor(count=1030, dtype=t, offset=2000 * i)
                for i, t in enumerate(oracle.DTYPES)
            ),
            *(
                BucketTensor(count=37, dtype=t, offset=1901 + 2000 * i)
                for i, t in enumerate(oracle.DTYPES)
            ),
        ),
        dtype=dtype,
        count=8000,
        scale=1 / 3,
        update=oracle.RULES[rule],
    )


@each_language
@given(spec=oracle.bucket_specs())
@_SETTINGS
def test_random_buckets(language: str, spec: BucketSpec) -> None:
    check(BUILDERS[language](spec))


@each_language
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_every_pair_of_dtypes(language: str, dtype: str) -> None:
    check(BUILDERS[language](all_pairs(dtype, "none")))


@each_language
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_values_of_16_bits(language: str, dtype: str) -> None:
    """Subnormals, infinities and NaN, both ways; ties and what overflows on the way down."""
    built = BUILDERS[language](dense_bucket([2**16], ["float32"], dtype=dtype))
    buffers = oracle.random_buffers(built.spec)
    every_value = np.arange(2**16, dtype=np.uint16).view(oracle.numpy_dtype(dtype))
    buffers.bucket[:] = every_value
    built.unpack(buffers)
    np.testing.assert_array_equal(buffers.tensors[0], every_value.astype("float32"))
    for values in oracle.float32_around(every_value):
        buffers.tensors[0][:] = values
        built.pack(buffers)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(oracle.numpy_dtype(dtype))
        oracle.assert_equal_values(buffers.bucket, expected)


@each_language
@pytest.mark.parametrize("rule", oracle.UPDATES)
def test_every_update_rule(language: str, rule: str) -> None:
    check(BUILDERS[language](all_pairs("float32", rule)), num_steps=5)


@each_language
@pytest.mark.parametrize("num_tensors", [63, 64, 65, 170, 600])
def test_many_tensors(language: str, num_tensors: int) -> None:
    """Calls become tables, and pointers that no longer fit into the arguments an array."""
    counts = [i % 7 * (i % 5) for i in range(num_tensors)]
    spec = dense_bucket(
        counts,
        [oracle.DTYPES[i % 4] for i in range(num_tensors)],
        update=oracle.RULES["adamw"],
        scale=0.5,
    )
    check(BUILDERS[language](spec))


@each_language
@pytest.mark.parametrize("counts", [[0], [0, 0, 0], [1], [0, 5, 0]])
def test_empty_and_single(language: str, counts: list[int]) -> None:
    check(BUILDERS[language](dense_bucket(counts, ["float32"] * len(counts), scale=0.5)))


@each_language
@pytest.mark.parametrize("rule", ["none", "adamw"])
def test_nothing_is_read_beyond_the_end(language: str, rule: str) -> None:
    """Arrays of odd length end where memory ends, so wide accesses are not aligned here."""
    spec = BucketSpec(
        tensors=(BucketTensor(count=1041, offset=0),),
        count=1041,
        scale=0.5,
        update=oracle.RULES[rule],
        alignment_bytes=8,
    )
    built = BUILDERS[language](spec)
    buffers = oracle.random_buffers(spec).guarded()
    built.pack(buffers)
    np.testing.assert_array_equal(buffers.bucket, buffers.tensors[0] * np.float32(0.5))
    built.unpack(buffers, spec.step_scalars(0.1, 1))


@each_language
def test_a_place_beyond_32_bits(language: str) -> None:
    """The bucket's address is moved back, so that its only touched part is where memory is."""
    offset = 2**33
    far = BucketSpec(
        tensors=(BucketTensor(count=5001, offset=offset),), count=offset + 5001, scale=0.5
    )
    near = replace(far, tensors=(BucketTensor(count=5001, offset=0),), count=5001)
    mine = oracle.random_buffers(near)
    moved = (ctypes.c_float * 1).from_address(mine.bucket.ctypes.data - 4 * offset)
    BUILDERS[language](far).pack(replace(mine, bucket=np.ctypeslib.as_array(moved)))
    np.testing.assert_array_equal(mine.bucket, mine.tensors[0] * np.float32(0.5))


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_equal_specs_give_equal_text(source: Callable[[BucketSpec], GeneratedSource]) -> None:
    def make(**options: object) -> GeneratedSource:
        return source(dense_bucket([3, 70, 9], ["float32", "float16", "float32"], **options))

    assert make(update=oracle.RULES["adam"]) == make(update=oracle.RULES["adam"])
    texts = [
        make(),
        make(scale=0.5),
        make(dtype="float64"),
        make(name="b"),
        make(update=oracle.RULES["sgd"]),
    ]
    assert len({text.code for text in texts}) == len(texts)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("rule", ["none", "adamw"])
def test_text_of_thousands_of_tensors(
    source: Callable[[BucketSpec], GeneratedSource], rule: str
) -> None:
    """A row of the table each: at most 40 bytes."""
    spec = dense_bucket(
        [1000 + i for i in range(5000)],
        [oracle.DTYPES[i % 4] for i in range(5000)],
        update=oracle.RULES[rule],
    )
    assert len(source(spec).code) <= 16_000 + 40 * 5000


def test_pointers_fill_the_arguments_of_a_kernel() -> None:
    """4096 bytes hold the bucket, the scalars and 510 pointers."""

    def passing(num_tensors: int, rule: str) -> set[str]:
        spec = dense_bucket([4] * num_tensors, ["float32"] * num_tensors, update=oracle.RULES[rule])
        return {one.passing for one in cuda_source(spec).unpack.arguments}

    assert passing(510, "none") == {"pointer", "pointer_struct"}
    assert passing(511, "none") == {"pointer", "pointer_array"}
    assert passing(170, "adam") == {"pointer", "pointer_struct"}
    assert passing(171, "adam") == {"pointer", "pointer_array"}


def test_names_and_order_of_arguments() -> None:
    source = cuda_source(dense_bucket([4], ["float32"], update=oracle.RULES["adamw"], name="b7"))
    assert (source.pack.name, source.unpack.name) == ("b7_pack", "b7_unpack")
    assert [one.name for one in source.pack.arguments] == ["tensors", "bucket"]
    assert [one.name for one in source.unpack.arguments] == [
        "bucket", "parameters", "exp_avg", "exp_avg_sq", "scalars",
    ]  # fmt: skip


def test_a_tensor_of_many_tiles_has_its_own_blocks() -> None:
    source = cuda_source(dense_bucket([4096, 4097, 1], ["float32"] * 3))
    assert (source.pack.num_blocks, source.pack.threads_per_block) == (1 + 2 + 1, 256)
