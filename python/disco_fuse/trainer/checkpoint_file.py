"""One checkpoint in one file that shows whether it is whole.

    magic | header: one line of JSON | tensors, one after another | SHA-256 of all before

The file is written beside its name, flushed to the disk and renamed: under its name there is a
whole checkpoint or none. Nothing in it is code: reading one runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401 - numpy learns the names of bfloat16 and its like
import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
_MAGIC = b"DISCO_FUSE_CHECKPOINT\n"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor of the state came from.

    Attributes
    ----------
    name, dtype : str
    shape : tuple of int
    rank : int or None
        The rank whose value it is; None if all ranks had the same.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rank: int | None = None

    @property
    def num_bytes(self) -> int:
        """Size of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a checkpoint says about itself.

    Attributes
    ----------
    step : int
        Steps done.
    world_size : int
        Ranks of the job that wrote it.
    plan, plan_digest : str
        Name and digest of the plan it was trained with.
    positions : tuple
        For every rank what ``state_dict()`` of its data returned, None without one.
    tensors : tuple of StoredTensor
        In the order in which they follow.
    """

    step: int
    world_size: int
    plan: str
    plan_digest: str
    positions: tuple[Any, ...]
    tensors: tuple[StoredTensor, ...] = field(repr=False)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """One line; TypeError if a position is not made of what JSON knows."""
        return json.dumps(asdict(self), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Header:
        """The header of :meth:`to_json`; ValueError if it is of another release."""
        data = json.loads(text)
        if data.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"format version {data.get('format_version')}; this release reads {FORMAT_VERSION}"
            )
        tensors = tuple(
            StoredTensor(**{**tensor, "shape": tuple(tensor["shape"])})
            for tensor in data.pop("tensors")
        )
        return Header(tensors=tensors, positions=tuple(data.pop("positions")), **data)


def write_checkpoint(
    path: Path, header: Header, value_of: Callable[[StoredTensor], NDArray[Any]]
) -> None:
    """Write a checkpoint; whatever goes wrong, `path` is what it was before, or the new one.

    Parameters
    ----------
    path : Path
    header : Header
    value_of : callable
        The value of one tensor; asked for one at a time, so that no second copy of all is needed.

    Raises
    ------
    OSError
        The disk is full, the folder cannot be written, ...
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            digest = hashlib.sha256()
            for piece in _pieces(header, value_of):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _pieces(
    header: Header, value_of: Callable[[StoredTensor], NDArray[Any]]
) -> Iterator[bytes | memoryview]:
    yield _MAGIC
    yield header.to_json().encode() + b"\n"
    for tensor in header.tensors:
        value = np.ascontiguousarray(value_of(tensor))
        assert value.nbytes == tensor.num_bytes, tensor
        yield value.reshape(-1).view(np.uint8).data


def _flush_folder(folder: Path) -> None:
    """The new name must reach the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(path: Path) -> Header:
    """Check a whole file and return its header.

    Raises
    ------
    ValueError
        It is cut short, changed, no checkpoint, or of another release.
    OSError
        It cannot be read.
    """
    digest_bytes = hashlib.sha256().digest_size
    size = path.stat().st_size - digest_bytes
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is no checkpoint, or its beginning is lost")
        file.seek(0)
        digest, left = hashlib.sha256(), size
        while left > 0:
            piece = file.read(min(_PIECE_BYTES, left))
            if not piece:
                break
            digest.update(piece)
            left -= len(piece)
        if left != 0 or file.read() != digest.digest():
            raise ValueError(f"{path} is cut short or damaged: its digest does not fit its content")
        file.seek(len(_MAGIC))
        try:
            return Header.from_json(file.readline().decode())
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def read_tensors(path: Path, header: Header) -> list[NDArray[Any]]:
    """The tensors of a file that :func:`read_header` found whole, in the order of the header."""
    with path.open("rb") as file:
        file.seek(len(_MAGIC))
        file.readline()
        return [_read_tensor(file, tensor) for tensor in header.tensors]


def _read_tensor(file: BinaryIO, tensor: StoredTensor) -> NDArray[Any]:
    flat = np.fromfile(file, np.uint8, tensor.num_bytes)
    return flat.view(np.dtype(tensor.dtype)).reshape(tensor.shape)


def as_bytes(arrays: Sequence[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """The same memory as plain bytes, whatever the dtypes: what a broadcast can carry."""
    return [array.reshape(-1).view(np.uint8) for array in arrays]


def check_tensors(header: Header, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """ValueError unless the checkpoint holds these tensors: name -> (shape, dtype)."""
    stored = {tensor.name: (tensor.shape, tensor.dtype) for tensor in header.tensors}
    missing = sorted(set(wanted) - set(stored))
    unknown = sorted(set(stored) - set(wanted))
    if missing or unknown:
        raise ValueError(
            f"the checkpoint of step {header.step} is of another model or optimizer: "
            f"it lacks {missing[:3]}, it holds {unknown[:3]} beyond the plan"
        )
    for name, expected in wanted.items():
        if stored[name] != expected:
            raise ValueError(
                f"the checkpoint of step {header.step} has {name!r} as {stored[name]}, "
                f"the plan wants {expected}"
            )
