"""The training step as plain values: ops, edges, and what they read from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from disco_fuse import _ffi


class OpKind(IntEnum):
    """Who executes an op."""

    COMPUTE = 0
    LIBRARY = 1
    ALLREDUCE = 2


class OpPattern(IntEnum):
    """TVM's ``OpPatternKind``, with TVM's numbers."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


class OpClass(StrEnum):
    """Kind of work: ops of one class reach the same share of a device's rates."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator; sizes are those of one execution on one rank.

    Attributes
    ----------
    name : str
        For messages and timelines.
    kind : OpKind
        Compute ops may be fused, library calls stay alone, allreduce ops share buckets.
    pattern : OpPattern
        How output elements depend on input elements.
    flops : float
        Operations, with exp and the like weighted (see ``kernels.analysis``).
    num_elements : int
        Elements of the output.
    rows : int
        Independent rows (row i of the output needs row i of the inputs); 0 if there are none.
    bytes_read, bytes_written : int
        Traffic of the op on its own. An allreduce op sends ``bytes_written`` bytes.
    signature : str
        Structural hash of the kernel, the key of its profile.
    is_output : bool
        The step returns the value.
    is_donated : bool
        The value overwrites an external one in place, so that it takes no memory of its own.
    collective : str
        Name of the collective, for example ``"allreduce"``.
    merge_class : str
        Only collectives of equal class share a bucket, for example ``"avg/float32/world"``.
    op_class : OpClass
        Kind of work, by which ``DeviceSpec.efficiency`` states what the op reaches.
    """

    name: str
    kind: OpKind = OpKind.COMPUTE
    pattern: OpPattern = OpPattern.OPAQUE
    flops: float = 0.0
    num_elements: int = 0
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    signature: str = ""
    is_output: bool = False
    is_donated: bool = False
    collective: str = ""
    merge_class: str = ""
    op_class: OpClass = OpClass.OTHER


@dataclass(frozen=True, kw_only=True)
class Edge:
    """``consumer`` reads ``bytes`` of what ``producer`` writes.

    With ``order_only`` no data flows: ``consumer`` overwrites in place what ``producer`` reads.
    Without ``keeps_rows`` a view between both gives the data other rows, so that the two never
    share a loop over rows.
    """

    producer: int
    consumer: int
    bytes: int = 0
    order_only: bool = False
    keeps_rows: bool = True


@dataclass(frozen=True, kw_only=True)
class ExternalRead:
    """``op`` reads ``bytes`` of the parameter or constant numbered ``value``."""

    op: int
    value: int
    bytes: int


_NUMBERS = (
    "kind",
    "pattern",
    "num_elements",
    "rows",
    "bytes_read",
    "bytes_written",
    "is_output",
    "is_donated",
)


class OpGraph:
    """An immutable graph; op ids are positions in ``ops`` and every edge goes to a larger id.

    Attributes
    ----------
    ops : tuple of Op
    edges : tuple of Edge
    external_reads : tuple of ExternalRead
    """

    def __init__(
        self,
        ops: tuple[Op, ...],
        edges: tuple[Edge, ...],
        external_reads: tuple[ExternalRead, ...],
        handle: Any,
    ) -> None:
        self.ops = ops
        self.edges = edges
        self.external_reads = external_reads
        self._handle = handle

    @classmethod
    def create(
        cls,
        ops: Iterable[Op],
        edges: Iterable[Edge] = (),
        external_reads: Iterable[ExternalRead] = (),
    ) -> OpGraph:
        """Check and index a graph.

        Raises
        ------
        ValueError
            Naming the op and the field that is wrong.
        """
        ops, edges, external_reads = tuple(ops), tuple(edges), tuple(external_reads)
        numbers = [[int(getattr(op, name)) for name in _NUMBERS] for op in ops]
        handle = _ffi.function("graph.create")(
            [op.name for op in ops],
            [op.signature for op in ops],
            [op.collective for op in ops],
            [op.merge_class for op in ops],
            [str(op.op_class) for op in ops],
            np.array(numbers, np.int64).reshape(-1),
            np.array([op.flops for op in ops], np.float64),
            np.array(
                [[e.producer, e.consumer, e.bytes, e.order_only, e.keeps_rows] for e in edges],
                np.int64,
            ).reshape(-1),
            np.array([[r.op, r.value, r.bytes] for r in external_reads], np.int64).reshape(-1),
        )
        return cls(ops, edges, external_reads, handle)

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal hash of everything in the graph, the same on every machine."""
        return str(_ffi.function("graph.digest")(self._handle))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpGraph) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"OpGraph({self.num_ops} ops, {len(self.edges)} edges, digest {self.digest[:8]})"

    def to_json(self) -> str:
        """All fields as JSON text."""
        return json.dumps(
            {
                "ops": [asdict(op) for op in self.ops],
                "edges": [asdict(edge) for edge in self.edges],
                "external_reads": [asdict(read) for read in self.external_reads],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> OpGraph:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        ValueError
            If the text is no graph, or the graph is wrong.
        """
        data = json.loads(text)
        try:
            ops = [_op_from_json(op) for op in data["ops"]]
            edges = [Edge(**edge) for edge in data["edges"]]
            reads = [ExternalRead(**read) for read in data["external_reads"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the JSON of an OpGraph: {error}") from error
        return cls.create(ops, edges, reads)


def _op_from_json(fields: dict[str, Any]) -> Op:
    typed = {
        "kind": OpKind(fields["kind"]),
        "pattern": OpPattern(fields["pattern"]),
        "op_class": OpClass(fields["op_class"]),
    }
    return Op(**{**fields, **typed})
