"""Pack and unpack of one gradient bucket, generated for exactly that bucket.

    gradients   [ t0 ]  [ t1 ]  [ t2 ]      float32, float64, float16, bfloat16
                   |  x scale, cast     pack
    bucket      | t0 | t1 | t2 |            one dtype, one AllReduce
                   |  cast, update      unpack
    parameters  [ t0 ]  [ t1 ]  [ t2 ]  and optimizer states

The work is done in C++ (``src/kernels/bucket_*``). A :class:`BucketSpec` gives CUDA source, C
source, or runs at once on host memory by loops that are compiled into the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from disco_fuse import _ffi

# Offsets of a dense bucket: whole 16 bytes of any dtype, so that a GPU can use its widest accesses.
_OFFSET_ELEMENTS = 8

Passing = Literal["pointer", "pointer_array", "pointer_struct"]


@dataclass(frozen=True, kw_only=True)
class BucketTensor:
    """One tensor of a bucket.

    Attributes
    ----------
    count : int
        Elements.
    dtype : str
        Of the gradient, or of the parameter that an update writes: "float32", "float64", "float16"
        or "bfloat16".
    offset : int
        First element in the bucket.
    """

    count: int
    dtype: str = "float32"
    offset: int


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """What unpack does with averaged gradients; formulas of ``disco_fuse.frontend.SGD`` and so on.

    Attributes
    ----------
    kind : str
        "none" (gradients are written into the tensors), "sgd", "adam" or "adamw".
    momentum, nesterov : float, bool
        Of "sgd" only.
    beta1, beta2, eps : float
        Of "adam" and "adamw".
    weight_decay : float
        0 leaves the term out.
    """

    kind: str = "none"
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BucketSpec:
    """All that the kernels of a bucket depend on, except pointers.

    Attributes
    ----------
    tensors : tuple of BucketTensor
        In any order of offsets; what lies between them in the bucket is never touched.
    dtype : str
        Of the bucket.
    count : int
        Elements of the bucket.
    scale : float
        Factor of pack, for example 1 / world_size. Products are computed in float64 if the tensor
        or the bucket is, otherwise in float32; results of 16 bits are rounded from float32.
    update : UpdateRule
        Computed in float64 for float64 parameters, otherwise in float32, which is also the dtype
        of the states.
    name : str
        Prefix of generated functions, an identifier.
    alignment_bytes : int
        What every pointer is a multiple of; below 16, GPU accesses are narrower.

    Raises
    ------
    ValueError
        For no tensors, sizes that do not fit, overlapping tensors, an unknown dtype or rule, a
        scale that is not positive, and numbers out of range; the message shows the value.
    """

    tensors: tuple[BucketTensor, ...]
    dtype: str = "float32"
    count: int
    scale: float = 1.0
    update: UpdateRule = UpdateRule()
    name: str = "bucket"
    alignment_bytes: int = 16
    _handle: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = {
            "name": self.name,
            "dtype": self.dtype,
            "count": self.count,
            "scale": float(self.scale),
            "alignment_bytes": self.alignment_bytes,
            "update": asdict(self.update),
        }
        rows = [[one.count for one in self.tensors], [one.offset for one in self.tensors]]
        dtypes = [one.dtype for one in self.tensors]
        places = np.array(rows, np.int64)
        handle = _ffi.function("kernels.bucket_spec")(fields, places, dtypes)
        object.__setattr__(self, "_handle", handle)

    @property
    def state_names(self) -> tuple[str, ...]:
        """States of a parameter, in the order in which an update takes them."""
        return tuple(map(str, _ffi.function("kernels.bucket_state_names")(self._handle)))

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The numbers of an update that change between steps, in order."""
        return tuple(map(str, _ffi.function("kernels.bucket_scalar_names")(self._handle)))

    def step_scalars(self, learning_rate: float, step: int) -> tuple[float, ...]:
        """Values of :attr:`scalar_names`; the first step has number 1.

        Raises
        ------
        ValueError
            If the step is below 1 or the learning rate is no finite number >= 0.
        """
        function = _ffi.function("kernels.bucket_step_scalars")
        return tuple(map(float, function(self._handle, float(learning_rate), step)))

    def pack(self, tensors: Sequence[Any], bucket: Any) -> None:
        """Write every tensor times the scale into the bucket, both in host memory.

        Parameters
        ----------
        tensors : sequence
            One array (numpy, or anything with DLPack) for each tensor of the spec, contiguous,
            of any shape with that many elements.
        bucket : array
            Of `count` elements.

        Raises
        ------
        TypeError, ValueError
            For an array of another dtype; of another size, device or layout.
        """
        _ffi.function("kernels.bucket_pack")(
            self._handle, _exchangeable_all(tensors), _exchangeable(bucket)
        )

    def unpack(self, bucket: Any, tensors: Sequence[Any]) -> None:
        """Write the bucket into the tensors; arguments and errors as in :meth:`pack`."""
        _ffi.function("kernels.bucket_unpack")(
            self._handle, _exchangeable(bucket), _exchangeable_all(tensors)
        )

    def unpack_update(
        self,
        bucket: Any,
        parameters: Sequence[Any],
        states: Mapping[str, Sequence[Any]],
        scalars: Sequence[float],
    ) -> None:
        """Update parameters and states in place by the gradients in the bucket.

        Parameters
        ----------
        bucket : array
            Of `count` elements.
        parameters : sequence
            As the tensors of :meth:`pack`.
        states : mapping
            One sequence as `parameters` for each of :attr:`state_names`.
        scalars : sequence of float
            Of :meth:`step_scalars`.

        Raises
        ------
        TypeError, ValueError
            As in :meth:`pack`, and for other states or another number of scalars.
        """
        if set(states) != set(self.state_names):
            raise ValueError(
                f"the update needs the states {list(self.state_names)}, got {sorted(states)}"
            )
        _ffi.function("kernels.bucket_update")(
            self._handle,
            _exchangeable(bucket),
            _exchangeable_all(parameters),
            [_exchangeable_all(states[name]) for name in self.state_names],
            [float(scalar) for scalar in scalars],
        )


def dense_bucket(counts: Sequence[int], dtypes: Sequence[str], **options: Any) -> BucketSpec:
    """A bucket of the tensors in order, each at the next multiple of 8 elements.

    Parameters
    ----------
    counts, dtypes : sequence
        Elements and dtype of each tensor.
    **options
        Further fields of :class:`BucketSpec`.

    Raises
    ------
    ValueError
        As :class:`BucketSpec`, and for unequal lengths.
    """
    if len(counts) != len(dtypes):
        raise ValueError(f"{len(counts)} counts need as many dtypes, got {len(dtypes)}")
    tensors, end = [], 0
    for count, dtype in zip(counts, dtypes, strict=True):
        tensors.append(BucketTensor(count=count, dtype=dtype, offset=end))
        end += -(-count // _OFFSET_ELEMENTS) * _OFFSET_ELEMENTS
    return BucketSpec(tensors=tuple(tensors), count=end, **options)


@dataclass(frozen=True, kw_only=True)
class KernelArgument:
    """One argument of a generated function.

    Attributes
    ----------
    name : str
        "bucket", "tensors", "parameters", "scalars" (float64 values in memory) or a state's name.
    passing : str
        "pointer"; "pointer_array": the address of an array of pointers, one for each tensor of the
        spec; "pointer_struct": that array itself by value, one argument of 8 bytes a tensor.
    """

    name: str
    passing: Passing


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One generated function; on a CPU both launch numbers are 1."""

    name: str
    arguments: tuple[KernelArgument, ...]
    num_blocks: int
    threads_per_block: int


@dataclass(frozen=True, kw_only=True)
class GeneratedSource:
    """Source text with its two functions; equal specs give equal text."""

    code: str
    pack: KernelEntry
    unpack: KernelEntry


def cuda_source(spec: BucketSpec) -> GeneratedSource:
    """CUDA source for compute capability 7.5 and later; it includes no header."""
    return _source("kernels.bucket_cuda_source", spec)


def c_source(spec: BucketSpec) -> GeneratedSource:
    """C99 source for one thread of a CPU."""
    return _source("kernels.bucket_c_source", spec)


def _source(function: str, spec: BucketSpec) -> GeneratedSource:
    fields = _ffi.function(function)(spec._handle)
    return GeneratedSource(
        code=str(fields["code"]), pack=_entry(fields["pack"]), unpack=_entry(fields["unpack"])
    )


def _entry(fields: Any) -> KernelEntry:
    return KernelEntry(
        name=str(fields["name"]),
        arguments=tuple(
            KernelArgument(name=str(name), passing=str(passing))  # type: ignore[arg-type]
            for name, passing in fields["arguments"]
        ),
        num_blocks=int(fields["num_blocks"]),
        threads_per_block=int(fields["threads_per_block"]),
    )


def _exchangeable(array: Any) -> Any:
    """The array, or its bits where numpy has no DLPack type for it (bfloat16 of ml_dtypes)."""
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    return array


def _exchangeable_all(arrays: Sequence[Any]) -> list[Any]:
    return [_exchangeable(array) for array in arrays]
