"""Random buckets, and pack, unpack and update of one in numpy."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from disco_fuse.kernels.bucket import BucketSpec, BucketTensor, UpdateRule

Array = NDArray[Any]
DTYPES = ("float32", "float64", "float16", "bfloat16")
RULES = {
    "none": UpdateRule(),
    "sgd": UpdateRule(kind="sgd"),
    "sgd with weight decay": UpdateRule(kind="sgd", weight_decay=0.02),
    "momentum": UpdateRule(kind="sgd", momentum=0.9),
    "nesterov": UpdateRule(kind="sgd", momentum=0.8, nesterov=True, weight_decay=0.03),
    "adam": UpdateRule(kind="adam"),
    "adam with weight decay": UpdateRule(
        kind="adam", beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1
    ),
    "adamw": UpdateRule(kind="adamw", weight_decay=0.1),
    "adamw without weight decay": UpdateRule(kind="adamw"),
}
UPDATES = [name for name in RULES if name != "none"]
# Around the ends of 16-byte accesses, of blocks of 512 and of GPU tiles of 1024 to 8192 elements.
_SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([511, 512, 513, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 8191, 8193, 20001]),
)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of one of DTYPES."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@st.composite
def bucket_specs(draw: st.DrawFn, rules: Sequence[str] = tuple(RULES)) -> BucketSpec:
    """Buckets with gaps, in any order, all dtypes mixed."""
    tensors, end = [], 0
    for _ in range(draw(st.integers(1, 9))):
        offset = end + draw(st.integers(0, 9))
        count = draw(_SIZES)
        tensors.append(
            BucketTensor(count=count, dtype=draw(st.sampled_from(DTYPES)), offset=offset)
        )
        end = offset + count
    return BucketSpec(
        tensors=tuple(draw(st.permutations(tensors))),
        dtype=draw(st.sampled_from(DTYPES)),
        count=end + draw(st.integers(0, 3)),
        scale=draw(st.sampled_from([1.0, 0.25, 1 / 3])),
        update=RULES[draw(st.sampled_from(rules))],
        alignment_bytes=draw(st.sampled_from([8, 16, 64])),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Buffers:
    """Everything that the kernels of one spec read and write."""

    tensors: list[Array]
    bucket: Array
    states: dict[str, list[Array]]

    def guarded(self) -> Buffers:
        """The same values, each array at the end of readable memory."""
        return Buffers(
            tensors=[guarded(tensor) for tensor in self.tensors],
            bucket=guarded(self.bucket),
            states={k: [guarded(one) for one in v] for k, v in self.states.items()},
        )

    def copy(self) -> Buffers:
        """The same values in memory of their own."""
        return Buffers(
            tensors=[tensor.copy() for tensor in self.tensors],
            bucket=self.bucket.copy(),
            states={k: [one.copy() for one in v] for k, v in self.states.items()},
        )


def random_buffers(spec: BucketSpec, seed: int = 0) -> Buffers:
    """Normal values everywhere, squares where a root is taken."""
    rng = np.random.default_rng(seed)
    states = {
        name: [
            rng.standard_normal(one.count).astype(compute_dtype(one)) ** (1 + ("sq" in name))
            for one in spec.tensors
        ]
        for name in spec.state_names
    }
    return Buffers(
        tensors=[
            rng.standard_normal(one.count).astype(numpy_dtype(one.dtype)) for one in spec.tensors
        ],
        bucket=rng.standard_normal(spec.count).astype(numpy_dtype(spec.dtype)),
        states=states,
    )


def compute_dtype(tensor: BucketTensor) -> np.dtype[Any]:
    """What an update of the tensor computes in."""
    return np.dtype("float64" if tensor.dtype == "float64" else "float32")


def _rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """To 16 bits by way of float32."""
    return (values.astype("float32") if dtype.itemsize == 2 else values).astype(dtype)


def _converted(values: Array, dtype: np.dtype[Any], scale: float) -> Array:
    wide = np.dtype("float64" if 8 in (values.dtype.itemsize, dtype.itemsize) else "float32")
    return _rounded(values.astype(wide) * wide.type(scale), dtype)


def pack(spec: BucketSpec, tensors: Sequence[Array], bucket: Array) -> None:
    """What BucketSpec.pack must do."""
    for one, tensor in zip(spec.tensors, tensors, strict=True):
        place = slice(one.offset, one.offset + one.count)
        bucket[place] = _converted(tensor, bucket.dtype, spec.scale)


def unpack(spec: BucketSpec, bucket: Array, tensors: Sequence[Array]) -> None:
    """What BucketSpec.unpack must do."""
    for one, tensor in zip(spec.tensors, tensors, strict=True):
        tensor[:] = _converted(bucket[one.offset : one.offset + one.count], tensor.dtype, 1.0)


def update(spec: BucketSpec, buffers: Buffers, scalars: Sequence[float]) -> None:
    """What BucketSpec.unpack_update must do, operation by operation as the docstrings of SGD, Adam
    and AdamW in ``disco_fuse.frontend`` say it."""
    for i, one in enumerate(spec.tensors):
        c = compute_dtype(one)
        gradient = buffers.bucket[one.offset : one.offset + one.count].astype(c)
        parameter = buffers.tensors[i].astype(c)
        states = {name: arrays[i] for name, arrays in buffers.states.items()}
        rule = _sgd if spec.update.kind == "sgd" else _adam
        k = [c.type(scalar) for scalar in scalars]
        buffers.tensors[i][:] = _rounded(
            rule(spec.update, gradient, parameter, states, k, c.type), numpy_dtype(one.dtype)
        )


def _sgd(
    rule: UpdateRule, g: Array, p: Array, states: Mapping[str, Array], k: Sequence[Any], c: Any
) -> Array:
    if rule.weight_decay:
        g = g + p * c(rule.weight_decay)
    if rule.momentum:
        b = states["momentum_buffer"]
        b[:] = b * c(rule.momentum) + g
        g = g + b * c(rule.momentum) if rule.nesterov else b
    return p - g * k[0]


def _adam(
    rule: UpdateRule, g: Array, p: Array, states: Mapping[str, Array], k: Sequence[Any], c: Any
) -> Array:
    m, v = states["exp_avg"], states["exp_avg_sq"]
    if rule.weight_decay and rule.kind == "adam":
        g = g + p * c(rule.weight_decay)
    if rule.weight_decay and rule.kind == "adamw":
        p = p * k[2]
    m[:] = m * c(rule.beta1) + g * c(1.0 - rule.beta1)
    v[:] = v * c(rule.beta2) + g * g * c(1.0 - rule.beta2)
    return p - m / (np.sqrt(v) / k[1] + c(rule.eps)) * k[0]


def guarded(values: Array) -> Array:
    """A copy that ends where readable memory ends: a read beyond it stops the process."""
    page = mmap.PAGESIZE
    num_bytes = -(-values.nbytes // page) * page
    memory = mmap.mmap(-1, num_bytes + page)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + num_bytes
    no_access = 0  # PROT_NONE, which the module mmap does not name
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), no_access) == 0
    offset = num_bytes - values.nbytes
    copy = np.frombuffer(memory, values.dtype, len(values), offset)
    copy[:] = values
    return copy


def float32_around(values: Array) -> list[Array]:
    """All 16-bit values (NaN and infinity as 0), and float32 at and beside the middle of two.

    The last arrays are NaN of all kinds and what overflows.
    """
    finite = np.where(np.isfinite(values.astype("float32")), values, 0).astype("float32")
    bits, one = values.view(np.uint16), np.uint16(1)
    upper, lower = (x.view(values.dtype).astype("float32") for x in (bits + one, bits - one))
    with np.errstate(all="ignore"):
        # The second reaches half a step beyond the largest value, where infinity begins.
        middles = [finite + (upper - finite) / 2, finite + (finite - lower) / 2]
        huge = finite * np.float32(1e30)
    ends = (np.float32(-np.inf), np.float32(np.inf))
    around = [np.nextafter(middle, end) for middle in middles for end in ends]
    # Quiet and signalling, and one whose bits a rounding would carry into the sign.
    patterns = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    return [finite, *middles, *around, np.resize(patterns, len(values)).view("float32"), huge]


def assert_equal_values(actual: Array, expected: Array) -> None:
    """Equal, NaN where NaN is; numpy does not know that of bfloat16."""
    wide = "float64"
    np.testing.assert_array_equal(actual.astype(wide), expected.astype(wide))


def assert_same(actual: Buffers, expected: Buffers) -> None:
    """Equal everywhere, also where the bucket has gaps."""
    assert_equal_values(actual.bucket, expected.bucket)
    for mine, other in zip(actual.tensors, expected.tensors, strict=True):
        assert_equal_values(mine, other)
    for name, arrays in expected.states.items():
        for mine, other in zip(actual.states[name], arrays, strict=True):
            assert_equal_values(mine, other)
