"""What every rule knows while it writes a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import tvm
from tvm import tirx
from tvm.target import Target, codegen
from tvm.tirx import ForKind

from ..stages import element_bytes, num_elements
from .affine import Affine, Axis
from .fast_math import has_fast_call
from .loops import Lanes, int_imm, on_stack
from .scalar import Node, is_guard
from .scope import FlatBuffers
from .traffic import STREAMED_BYTES, stream, streams

DEFAULT_VECTOR_BITS = 128
VECTOR_FEATURES = (("avx512f", 512), ("avx2", 256))
PARALLEL_ELEMENTS = 1 << 16
"""A nest is split over the target's cores when it computes at least this many elements."""


class DeclinedError(Exception):
    """A rule's reason for not serving a nest."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a target says about the CPU.

    Attributes
    ----------
    vector_bits
        Width of a vector register.
    num_cores
        Cores a kernel may use.
    has_streams
        Whether it is an x86, whose stores past the caches `traffic` knows.
    """

    vector_bits: int
    num_cores: int
    has_streams: bool = False

    @staticmethod
    def of(target: Target) -> Machine:
        """Read the ``mcpu``/``mattr`` and ``num-cores`` of an llvm target."""
        # codegen.llvm_get_vector_width(target) answers for the host, not for the target.
        bits = DEFAULT_VECTOR_BITS
        for feature, width in VECTOR_FEATURES:
            if bool(codegen.llvm_cpu_has_features(feature, target)):
                bits = width
                break
        return Machine(
            vector_bits=bits,
            num_cores=int(target.attrs.get("num-cores", 1)),
            has_streams=bool(codegen.llvm_cpu_has_features("sse2", target)),
        )

    def lanes(self, nodes: Iterable[Node], dtypes: Iterable[str]) -> int:
        """Elements of a vector for a loop that computes these nodes and stores these types.

        The widest floating point type decides; without one, 32-bit elements are assumed.
        """
        bits = 0
        for dtype in (*(node.dtype for node in nodes), *dtypes):
            if dtype.startswith(("float", "bfloat")):
                bits = max(bits, int(dtype.lstrip("bfloat")))
        return max(1, self.vector_bits // (bits or 32))


@dataclass(kw_only=True)
class Kernel:
    """State shared by the nests of one kernel.

    Attributes
    ----------
    machine
        The CPU.
    needed
        Buffers that some nest or the caller reads from memory.
    buffers
        Flat forms of all buffers.
    streamed
        Types and widths of the vectors that were stored past the caches.
    """

    machine: Machine
    needed: set[tirx.Buffer]
    buffers: FlatBuffers
    streamed: set[tuple[str, int]] = field(default_factory=set)

    def loop_kind(self, num_elements: int) -> int:
        """Kind of the outer loop of a nest that computes so many elements."""
        spread = self.machine.num_cores > 1 and num_elements >= PARALLEL_ELEMENTS
        return int(ForKind.PARALLEL if spread else ForKind.SERIAL)

    def store(
        self,
        buffer: tirx.Buffer,
        offset: tirx.Expr,
        value: tirx.Expr,
        lanes: Lanes | None = None,
    ) -> tirx.Stmt:
        """``buffer[offset] = value`` on the flat view.

        With `lanes`, whose elements must lie next to each other, large outputs are stored past
        the caches: the vector is collected in a register and stored behind the vector loop. One
        core writes them, so that the fence at the end of the kernel orders all.
        """
        view = self.buffers.view(buffer)
        if lanes is None or not self._streams(buffer, lanes.width):
            return tirx.BufferStore(view, value, [offset])
        dtype, width = str(buffer.ty.dtype), lanes.width
        self.streamed.add((dtype, width))
        line = tirx.decl_buffer((int_imm(width),), dtype, name="line", scope="local")
        lanes.allocations.append(on_stack(line))
        vector = tirx.BufferLoad(line, [tirx.Ramp(int_imm(0), int_imm(1), width)])
        lanes.after.append(stream(view, lanes.first(offset), vector, width))
        return tirx.BufferStore(line, value, [lanes.index])

    def _streams(self, buffer: tirx.Buffer, width: int) -> bool:
        """Whether vectors of a buffer are stored past the caches."""
        if not self.machine.has_streams or self.machine.num_cores > 1:
            return False
        size = num_elements(buffer) * element_bytes(buffer)
        return size >= STREAMED_BYTES and streams(str(buffer.ty.dtype), width)


def reachable(roots: Iterable[Node]) -> list[Node]:
    """All nodes that the roots are computed from, without repetition."""
    seen: dict[Node, None] = {}
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen[node] = None
            todo.extend(node.args)
    return list(seen)


def loaded_buffers(nodes: Iterable[Node]) -> set[tirx.Buffer]:
    """Buffers that the nodes read from memory."""
    return {node.payload[0] for node in nodes if node.kind == "load"}


def affine_values(nodes: Iterable[Node]) -> list[Affine]:
    """All index expressions among the nodes."""
    found: list[Affine] = []
    for node in nodes:
        if node.kind == "load":
            found.append(node.payload[1])
        elif node.kind == "index":
            found.append(node.payload)
    return found


def vectorizes(node: Node, group: Iterable[Axis]) -> bool:
    """Whether TVM can evaluate `node` for all lanes of a loop over `group` at once.

    It runs a branch on a varying condition, or a function without a vector form, lane by lane,
    and then loses the values that were named in the loop body.
    """
    if is_guard(node):
        return not node.args[0].axes & frozenset(group)
    if node.kind is tvm.ir.Call and node.axes & frozenset(group):
        return has_fast_call(node) or bool(node.payload.get_attr("TVectorizable"))
    return True
