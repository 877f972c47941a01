"""NVRTC compiles the CUDA source of buckets for the three targets, and what it makes of them."""

from __future__ import annotations

import re

import pytest
from bucket_reference import DTYPES, RULES
from nvrtc import compile_cuda, find_nvrtc

from disco_fuse.kernels.bucket import BucketSpec, BucketTensor, cuda_source, dense_bucket

pytestmark = pytest.mark.skipif(
    find_nvrtc() is None, reason="needs NVRTC: pip install 'disco-fuse[cuda]'"
)


def mixed(rule: str, dtype: str, num_copies: int = 1) -> BucketSpec:
    """Every dtype, at offsets that allow wide accesses and that do not."""
    tensors = tuple(
        BucketTensor(count=5000, dtype=DTYPES[i % 4], offset=5008 * i + (i // 4) % 2)
        for i in range(8 * num_copies)
    )
    count = 5008 * 8 * num_copies + 1
    return BucketSpec(tensors=tensors, dtype=dtype, count=count, scale=0.5, update=RULES[rule])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize(("rule", "dtype"), [("none", "float16"), ("adamw", "bfloat16")])
def test_every_target(arch: str, rule: str, dtype: str) -> None:
    cubin, _ = compile_cuda(cuda_source(mixed(rule, dtype)).code, arch)
    assert cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_rule(rule: str, dtype: str) -> None:
    """No array in local memory: tables and pointers are read where they lie."""
    _, ptx = compile_cuda(cuda_source(mixed(rule, dtype)).code, "sm_80")
    assert {"bucket_pack", "bucket_unpack"} == set(re.findall(r"\.entry (\w+)", ptx))
    assert ".local" not in ptx


def test_the_widest_bucket() -> None:
    """Thousands of tensors: pointers in memory, a table beyond constant memory, 64-bit counts."""
    many = mixed("adam", "float32", num_copies=625)
    spec = BucketSpec(
        tensors=(*many.tensors, BucketTensor(count=2**33, offset=many.count)),
        count=many.count + 2**33,
        update=many.update,
    )
    cubin, ptx = compile_cuda(cuda_source(spec).code, "sm_90")
    assert cubin.startswith(b"\x7fELF")
    assert ".local" not in ptx


def test_accesses_are_as_wide_as_offsets_allow() -> None:
    def widths(offset: int, alignment_bytes: int = 16) -> set[str]:
        spec = BucketSpec(
            tensors=(BucketTensor(count=4096, offset=offset),),
            count=8192,
            scale=0.5,
            alignment_bytes=alignment_bytes,
        )
        _, ptx = compile_cuda(cuda_source(spec).code, "sm_90")
        return set(re.findall(r"\b(?:ld|st)\.global\.(?:nc\.)?(v\d|f32)", ptx))

    # The last elements of a tensor are single ones.
    assert widths(0) == widths(4) == {"v4", "f32"}
    assert widths(2) == widths(0, alignment_bytes=8) == {"v2", "f32"}
    assert widths(1) == {"f32"}


def test_a_mistake_is_found() -> None:
    code = cuda_source(dense_bucket([3], ["float32"])).code.replace("ConvertTile<", "NoTile<", 1)
    with pytest.raises(ValueError, match="NoTile"):
        compile_cuda(code, "sm_80")
