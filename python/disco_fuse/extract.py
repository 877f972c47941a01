"""Reads a lowered Relax module into plain values: the OpGraph that everything after works on.

    main, one dataflow block            Extraction
    ------------------------            ----------
    lv  = call_tir(multiply, (x, w))    op 0   reads externals x, w
    lv1 = reshape of lv                 glue   (a view: no kernel, no op; written where it is used)
    lv2 = matmul(lv1, w2)               op 1   edge 0 -> 1
    lv3 = allreduce(lv2)                op 2   edge 1 -> 2
    out = call_tir(subtract, (w, lv3))  op 3   edge 2 -> 3 and, where out is to overwrite w, an
                                               order-only edge from every other reader of w

An *external* is a parameter or a constant.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call
from tvm.ir import Op as RelaxOp

from disco_fuse.bindings import (
    Glue,
    allreduce_input,
    call_inputs,
    dtype_name,
    glue_source,
    is_op,
    look_through_views,
    packed_name,
    reduction_of,
    returned_values,
    static_shape,
    tensor_bytes,
    tensor_leaves,
)
from disco_fuse.graph import Edge, ExternalRead, Op, OpClass, OpGraph, OpKind, OpPattern
from disco_fuse.kernels import library
from disco_fuse.kernels.analysis import KernelFacts, analyze, num_bytes
from disco_fuse.kernels.convolution import LIBRARY_ATTR
from disco_fuse.kernels.cpu.gemm import FLOPS_ATTR
from disco_fuse.kernels.op_class import op_class
from disco_fuse.kernels.stages import num_elements
from disco_fuse.lower import check_single_dataflow_block

DONATED_ATTR = "disco_fuse.donated"
REDUCTIONS = ("avg", "sum")  # what the runtime can do
_PATTERNS = {int(pattern) for pattern in OpPattern}


@dataclass(frozen=True)
class Extraction:
    """A graph and how its ops sit in the module it was read from.

    Attributes
    ----------
    graph : OpGraph
    bindings : tuple of relax.VarBinding
        ``bindings[i]`` is the binding that op ``i`` came from.
    glue : dict
        Variable -> binding, for views, aliases, tuples and projections, which are no ops.
    origin : dict
        Variable -> id of the op whose result it is or looks at; externals are absent.
    """

    graph: OpGraph
    bindings: tuple[relax.VarBinding, ...]
    glue: dict[relax.Var, relax.VarBinding]
    origin: dict[relax.Var, int]


def extract(mod: tvm.IRModule) -> Extraction:
    """Read the ``main`` of a lowered module.

    Raises
    ------
    ValueError
        A binding is neither call_tir, a packed call, an allreduce nor glue; a shape is not static;
        a gradient is reduced twice; a donated parameter is read after its new value is known.
    """
    main = check_single_dataflow_block(mod)
    reader = _Reader(mod, main)
    for block in main.body.blocks:
        for binding in block.bindings:
            reader.visit(binding)
    return reader.finish()


def donated_outputs(
    main: relax.Function, glue: Glue, origin: dict[relax.Var, int]
) -> list[tuple[relax.Var, int]]:
    """(parameter, id of the op computing its new value) for every donated parameter of ``main``."""
    attrs = main.attrs or {}
    flat = [int(i) for i in attrs[DONATED_ATTR]] if DONATED_ATTR in attrs else []
    if len(flat) % 2:
        raise ValueError(f"{DONATED_ATTR} lists pairs, but has {len(flat)} numbers: {flat}")
    outputs = returned_values(main, glue)
    pairs = []
    for param_index, output_index in zip(flat[::2], flat[1::2], strict=True):
        if not 0 <= param_index < len(main.params) or not 0 <= output_index < len(outputs):
            raise ValueError(
                f"{DONATED_ATTR} names parameter {param_index} and output {output_index}, but main "
                f"has {len(main.params)} parameters and {len(outputs)} outputs"
            )
        param, output = main.params[param_index], outputs[output_index]
        if output not in origin:
            raise ValueError(
                f"output {output_index}, donated to parameter {param.name}, is not computed by main"
            )
        pairs.append((param, origin[output]))
    return pairs


class _Reader:
    """One walk over main, and the tables its bindings fill."""

    def __init__(self, mod: tvm.IRModule, main: relax.Function) -> None:
        self.mod = mod
        self.main = main
        self.bindings: list[relax.VarBinding] = []
        self.ops: list[Op] = []
        self.glue: dict[relax.Var, relax.VarBinding] = {}
        self.origin: dict[relax.Var, int] = {}
        self.externals: dict[relax.Expr, int] = {p: i for i, p in enumerate(main.params)}
        self.facts: dict[str, tuple[KernelFacts, OpClass, str]] = {}
        self.cut: set[tuple[int, int]] = set()  # data edges through a view with other rows

    def visit(self, binding: relax.VarBinding) -> None:
        value = binding.value
        glue = isinstance(value, relax.Var | relax.TupleGetItem | relax.Tuple)
        if glue or self._is_view(value):
            self.glue[binding.var] = binding
            source = glue_source(binding)
            if source is not None and source in self.origin:
                self.origin[binding.var] = self.origin[source]
            return
        if not isinstance(value, Call) or not isinstance(value.op, RelaxOp):
            raise ValueError(f"cannot read binding {binding.var.name} = {value}")
        self.ops.append(self._describe(binding))
        self.origin[binding.var] = len(self.bindings)
        self.bindings.append(binding)

    def _is_view(self, value: relax.Expr) -> bool:
        if is_op(value, "relax.reshape"):
            return True
        if not is_op(value, "relax.call_tir") or len(call_inputs(value)) != 1:
            return False
        source, result = call_inputs(value)[0].ty, value.ty_args[0]
        if not isinstance(source, relax.TensorType) or not isinstance(result, relax.TensorType):
            return False
        # A copy of equal shape is meant as a copy: OwnGradients and the frontend make some.
        shapes = static_shape(source), static_shape(result)
        if shapes[0] == shapes[1] or math.prod(shapes[0]) != math.prod(shapes[1]):
            return False
        return bool(relax.analysis.has_reshape_pattern(self.mod[value.args[0]]))

    def _describe(self, binding: relax.VarBinding) -> Op:
        call, name = binding.value, binding.var.name
        try:
            size = tensor_bytes(binding.var.ty)
        except ValueError as error:
            raise ValueError(f"binding {name} = {call}: {error}") from error
        reduction = reduction_of(call)
        if reduction is not None:
            if reduction not in REDUCTIONS:
                raise ValueError(
                    f"allreduce {name} asks for {reduction!r}; allowed: {', '.join(REDUCTIONS)}"
                )
            dtype = dtype_name(binding.var.ty)
            return Op(
                name=f"{name}:allreduce",
                kind=OpKind.ALLREDUCE,
                pattern=OpPattern.OPAQUE,
                flops=0.0,
                num_elements=math.prod(static_shape(binding.var.ty)),
                rows=0,
                bytes_read=size,
                bytes_written=size,
                signature=f"allreduce:{reduction}:{dtype}:{size}",
                collective="allreduce",
                merge_class=f"{reduction}/{dtype}/world",
            )
        if is_op(call, "relax.call_tir"):
            return self._describe_kernel(name, call, size)
        if is_op(call, "relax.call_dps_packed"):
            return _describe_packed(name, call, size)
        raise ValueError(f"binding {name} calls {call.op.name}, which was not lowered to a kernel")

    def _describe_kernel(self, name: str, call: Call, size: int) -> Op:
        kernel = call.args[0].name_hint
        func = self.mod[call.args[0]]
        if kernel not in self.facts:
            signature = f"{tvm_ffi.structural_hash(func) & (2**64 - 1):016x}"
            self.facts[kernel] = (_facts(func), op_class(func), signature)
        facts, kind_of_work, signature = self.facts[kernel]
        pattern = int(func.attrs.get("op_pattern", OpPattern.OPAQUE))
        return Op(
            name=f"{name}:{kernel}",
            kind=OpKind.LIBRARY if LIBRARY_ATTR in func.attrs else OpKind.COMPUTE,
            pattern=OpPattern(pattern) if pattern in _PATTERNS else OpPattern.OPAQUE,
            flops=facts.flops,
            num_elements=facts.num_elements,
            rows=facts.rows,
            bytes_read=facts.bytes_read,
            bytes_written=size,
            signature=signature,
            op_class=kind_of_work,
        )

    def finish(self) -> Extraction:
        edges, reads, readers = self._edges()
        donated = donated_outputs(self.main, self.glue, self.origin)
        order_only = self._before_overwriting(donated) | self._before_reducing(readers)
        position = _topological(len(self.ops), [*edges, *order_only])
        by_position = sorted(range(len(self.ops)), key=position.__getitem__)
        outputs = {
            self.origin[v] for v in returned_values(self.main, self.glue) if v in self.origin
        }
        writers = {writer for _, writer in donated}
        all_edges = [
            Edge(
                producer=position[p],
                consumer=position[c],
                bytes=size,
                keeps_rows=(p, c) not in self.cut,
            )
            for (p, c), size in edges.items()
        ]
        all_edges += [
            Edge(producer=position[p], consumer=position[c], bytes=0, order_only=True)
            for p, c in order_only
        ]
        graph = OpGraph.create(
            [
                replace(self.ops[i], is_output=i in outputs, is_donated=i in writers)
                for i in by_position
            ],
            sorted(all_edges, key=lambda edge: (edge.producer, edge.consumer)),
            [
                ExternalRead(op=op, value=value, bytes=size)
                for op, value, size in sorted((position[o], v, s) for (o, v), s in reads.items())
            ],
        )
        return Extraction(
            graph=graph,
            bindings=tuple(self.bindings[i] for i in by_position),
            glue=self.glue,
            origin={var: position[op] for var, op in self.origin.items()},
        )

    def _edges(
        self,
    ) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int], dict[int, set[int]]]:
        """Bytes per data edge, bytes per external read, and the readers of each op."""
        parts: dict[tuple[int, int], dict[relax.Expr, int]] = defaultdict(dict)
        reads: dict[tuple[int, int], int] = {}
        readers: dict[int, set[int]] = defaultdict(set)
        for consumer, binding in enumerate(self.bindings):
            for leaf in tensor_leaves(binding.value, self.glue):
                root = look_through_views(leaf, self.glue)
                if leaf in self.origin:
                    producer = self.origin[leaf]
                    readers[producer].add(consumer)
                    if not self._keeps_rows(leaf, self.ops[producer].rows):
                        self.cut.add((producer, consumer))
                    parts[producer, consumer][root] = self._bytes_read(consumer, root)
                else:
                    value = self.externals.setdefault(root, len(self.externals))
                    reads[consumer, value] = self._bytes_read(consumer, root)
        return {edge: sum(sizes.values()) for edge, sizes in parts.items()}, reads, readers

    def _bytes_read(self, op: int, value: relax.Expr) -> int:
        """What ``op`` reads of ``value``: all of it, but no more than it reads altogether."""
        return min(tensor_bytes(value.ty), self.ops[op].bytes_read)

    def _keeps_rows(self, leaf: relax.Expr, rows: int) -> bool:
        """Whether every view between ``leaf`` and the op behind it has the rows of that op."""
        while leaf in self.glue:
            binding = self.glue[leaf]
            if self._is_view(binding.value) and self._view_rows(binding.value) != rows:
                return False
            source = glue_source(binding)
            assert source is not None
            leaf = source
        return True

    def _view_rows(self, view: Call) -> int:
        return analyze(self.mod[view.args[0]]).rows if is_op(view, "relax.call_tir") else 0

    def _before_overwriting(self, donated: list[tuple[relax.Var, int]]) -> set[tuple[int, int]]:
        """Readers of a donated parameter before the op that overwrites it."""
        readers: dict[relax.Expr, set[int]] = defaultdict(set)
        for reader, binding in enumerate(self.bindings):
            for leaf in tensor_leaves(binding.value, self.glue):
                readers[look_through_views(leaf, self.glue)].add(reader)
        for param, writer in donated:
            if writer in readers[param]:
                self._check_elementwise(param, writer)
        return {(reader, w) for param, w in donated for reader in readers[param] - {w}}

    def _check_elementwise(self, param: relax.Var, writer: int) -> None:
        """An op may write over what it reads itself only element by element."""
        op = self.ops[writer]
        size = math.prod(static_shape(param.ty))
        if op.pattern > OpPattern.BROADCAST or op.num_elements != size:
            raise ValueError(
                f"{op.name} computes the new value of donated parameter {param.name} from its old "
                "one, but not element by element, so it cannot be written in place"
            )

    def _before_reducing(self, readers: dict[int, set[int]]) -> set[tuple[int, int]]:
        """Other readers of a gradient before its allreduce, which works in place."""
        result: set[tuple[int, int]] = set()
        for allreduce, op in enumerate(self.ops):
            if op.kind != OpKind.ALLREDUCE:
                continue
            gradient = allreduce_input(self.bindings[allreduce].value)
            if gradient not in self.origin:
                raise ValueError(f"{op.name} reduces an input of main, which no kernel computes")
            others = readers[self.origin[gradient]] - {allreduce}
            if any(self.ops[other].kind == OpKind.ALLREDUCE for other in others):
                raise ValueError(f"the gradient that {op.name} reduces is reduced more than once")
            result |= {(other, allreduce) for other in others}
        return result


def _facts(func: tvm.tirx.PrimFunc) -> KernelFacts:
    """Of a legalised operator by reading it, of a generated matmul by what it says of itself."""
    if FLOPS_ATTR not in func.attrs:
        return analyze(func)
    *inputs, output = func.params
    return KernelFacts(
        flops=float(func.attrs[FLOPS_ATTR]),
        num_elements=num_elements(output),
        bytes_read=sum(num_bytes(buffer) for buffer in inputs),
        bytes_written=num_bytes(output),
        rows=0,
    )


def _describe_packed(name: str, call: Call, size: int) -> Op:
    if library.is_library_matmul(call):
        flops, read, _ = library.op_facts(call)
        signature, kind_of_work = library.matmul_signature(call), OpClass.MATMUL
    elif library.is_library_convolution(call):
        flops, read, _ = library.convolution_facts(call)
        signature, kind_of_work = library.convolution_signature(call), OpClass.CONVOLUTION
    else:
        types = [arg.ty for arg in call_inputs(call) if isinstance(arg.ty, relax.TensorType)]
        flops, read = 0.0, sum(tensor_bytes(ty) for ty in types)
        signature = f"{packed_name(call)}({', '.join(str(ty) for ty in types)})"
        kind_of_work = OpClass.OTHER
    return Op(
        name=f"{name}:{packed_name(call)}",
        kind=OpKind.LIBRARY,
        pattern=OpPattern.OPAQUE,
        flops=flops,
        num_elements=max(1, size // 4),
        rows=0,
        bytes_read=read,
        bytes_written=size,
        signature=signature,
        op_class=kind_of_work,
    )


def _topological(num_ops: int, edges: list[tuple[int, int]]) -> list[int]:
    """Position of each op: the order of the module, changed only where an order-only edge asks."""
    consumers: dict[int, list[int]] = defaultdict(list)
    missing = [0] * num_ops
    for producer, consumer in edges:
        consumers[producer].append(consumer)
        missing[consumer] += 1
    ready = [op for op in range(num_ops) if missing[op] == 0]
    heapq.heapify(ready)
    position = [-1] * num_ops
    for rank in range(num_ops):
        if not ready:
            stuck = [op for op in range(num_ops) if position[op] < 0]
            raise ValueError(
                "no order fits: a donated parameter is read after its new value was computed, or "
                f"a gradient after its AllReduce (ops {stuck[:8]})"
            )
        op = heapq.heappop(ready)
        position[op] = rank
        for consumer in consumers[op]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, consumer)
    return position
